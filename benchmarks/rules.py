"""Where the engine rule (fedshvr.compute.engine) and the rule on processes (fedshvr.running.cores) change sides."""

from typing import Any

import torch
from fedavg import Rows
from loops import CLASSES, MNIST, Workload, network, synthetic
from ours import federated, here, ours
from timing import against, interleaved, race
from torch import nn

from fedshvr.models.cnn13 import CNN13

REPEATS = 3
STACKS = (2, 5, 10, 40)  # clients in a stack
OPERATIONS = 5e9  # of a round of the engines' trial, if 4 to 40 steps do it
BATCH = 32


def engines(work: Workload, net: nn.Module) -> float:
    """Seconds of a round of stacked clients over those of one after another, in one process of one thread."""
    x, y = synthetic(work)

    def last_round(engine: str) -> float:
        return here(federated(work, x, y, net, engine=engine), 2)[-1]

    rounds = {engine: lambda engine=engine: last_round(engine) for engine in ("sequential", "vectorized")}
    return against(interleaved(rounds, REPEATS, warmup=0), "vectorized", "sequential")["ours"]


def by_hidden(hidden: int, clients: int) -> float:
    steps = int(OPERATIONS / (clients * BATCH * hidden * 794 * 4))
    work = Workload("engines", clients, BATCH * max(4, min(40, steps)), MNIST, hidden, BATCH)
    return engines(work, network(work))


def by_side(side: int, width: float, clients: int) -> float:
    """CNN13 with group norm: batch norm cannot be stacked."""
    work = Workload("engines", clients, 2 * BATCH, (3, side, side), 0, BATCH)
    return engines(work, CNN13(work.shape, CLASSES, width, norm="group"))


def engine_rule(small: bool) -> list[dict[str, Any]]:
    hidden, stacks = ((8,), (2,)) if small else ((32, 200, 1_000, 5_000), STACKS)
    images = ((12, 1 / 16),) if small else ((16, 1 / 8), (32, 1 / 8))
    table = [{"network": f"784-{h}-10", "ratio": {n: by_hidden(h, n) for n in stacks}} for h in hidden]
    for side, width in images:
        cells = {n: by_side(side, width, n) for n in stacks if n <= 10}
        table.append({"network": f"CNN13, width 1/{1 / width:.0f}, {side}x{side}", "ratio": cells})
    return table


def process_rule(small: bool) -> list[dict[str, Any]]:
    """Two processes against one as a round grows: from which round on they are faster, and from which run on."""
    table = []
    for hidden, steps in ((8, (1,)),) if small else ((32, (2, 6, 20, 60, 200)), (200, (1, 3, 10, 33))):
        works = [Workload("processes", 10, BATCH * n, MNIST, hidden, BATCH) for n in steps]
        for work in works:
            pair = {n: ours(work, threads=1, **{"trainer.devices": n}) for n in (1, 2)}
            seconds = race({str(n): contestant for n, contestant in pair.items()}, REPEATS, warmup=1)
            row = against(seconds, "2", "1")
            gflop = 6 * work.clients * work.steps * BATCH * (784 * hidden + hidden * CLASSES) / 1e9
            later = pair[2].ready()["start"] - pair[1].ready()["start"]
            gained = row["seconds"]["1"] - row["seconds"]["2"]
            pays = gflop * later / gained if gained > 0 else None
            table.append({"network": f"784-{hidden}-10", "gflop": gflop, **row, "later": later, "run": pays})
    return table


def rules(repeats: int, small: bool) -> Rows:
    torch.set_num_threads(1)
    return {"rules": {"engine": engine_rule(small), "processes": process_rule(small)}}
