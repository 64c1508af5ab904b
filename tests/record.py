"""Short runs of every kind whose numbers are written down: a change of the code's form must not change one bit of them.

python tests/record.py writes tests/recorded.json: only when numbers are meant to change, and the log says why.
The last bits of a product depend on the processor and on torch, so the file names both: see `agrees`.
"""

import hashlib
import json
import math
import sys
import tempfile
from itertools import product
from pathlib import Path

import pytest
import torch
from conftest import ALGORITHMS, ROOT, SMALL, Run, enlarge_digits, run_here

from fedshvr.compute import engine
from fedshvr.compute.cpu import cpu_name

FILE = ROOT / "tests" / "recorded.json"
STRONG = ["algorithm.objective.weight=100.0", "algorithm.objective.decay=0.99"]  # of the mean teacher, when recorded
SOONER = {  # so that three rounds see all that the method does
    "fedsem": ["algorithm.objective.labeled_rounds=1", "algorithm.objective.labeled_steps=labeled"],
    "fedmatch": ["algorithm.objective.helpers_every=2"],
    "fed_self_training": ["algorithm.objective.keep=true", "algorithm.objective.threshold=0.2"],
    "fed_mt": STRONG,
}
CNN13 = ["model=cnn13", "model.width=0.0625", "partition.clients=3", "partition.unlabeled=60", "client.epochs=1"]
THREADED = ("huge", "cnn13", "cnn13, local buffers")  # networks that take all cores as threads
EXACT = "trainer.precision=64-true"
VARIANTS = {
    "participation": ["participation=0.5", "optimality_gap=true", "server_loss_every=2"],
    "participation, sequential": ["participation=0.5", "optimality_gap=true", "engine=sequential", EXACT],
    "resumed": ["participation=0.5", "algorithm=fed_mt", *STRONG],
    "resumed control variates": ["participation=0.5", EXACT],
    "two ranks": ["trainer.devices=2", "participation=0.75"],
    "two ranks, grouping": ["trainer.devices=2", "algorithm=grouping", EXACT],
    "two ranks, median": [
        "trainer.devices=2",
        "algorithm=fedmatch",
        "algorithm/aggregation=median",
        *SOONER["fedmatch"],
    ],
    "disk": ["client_state=disk", "algorithm=scaffold"],
    "cpu": ["client_state=cpu", "algorithm=fed_svr", "engine=sequential", "participation=0.5"],
    "server momentum": ["server=momentum", "evaluate=ema"],
    "median": ["algorithm=fed_fixmatch", "algorithm/aggregation=median", "participation=0.75"],
    "trimmed mean": ["algorithm=fedavg", "algorithm/aggregation=trimmed_mean", EXACT],
    "grouping, participation": ["algorithm=grouping", "participation=0.75"],
    "tau_bar": ["algorithm=fedprox", "algorithm/aggregation=normalized", "algorithm.aggregation.tau_bar=steps"],
    "momentum, decay": ["algorithm=fed_sh", "client.momentum=0.5", "client.weight_decay=0.01"],
    "option I": ["algorithm.correction.option=I", "client.weight_decay=0.01"],
    "relabel=epoch": ["algorithm.objective.relabel=epoch", "client.epochs=3"],
    "relabel=step": ["algorithm.objective.relabel=step", "ramp.by=step", "ramp.start=0.1", "ramp.epochs=4"],
    "dropout": ["model.dropout=0.3", "algorithm=fed_vat"],
    "wide": ["model.hidden=[5000]", "engine=sequential", "rounds=2"],
    "huge": ["model.hidden=[17000]", "rounds=2", "partition.clients=3"],
    "validation": ["validation=0.1", "weighting=uniform", "client.sampling=shuffle"],
    "cnn13": [*CNN13],
    "cnn13, local buffers": [*CNN13, "buffers=local", "algorithm=fed_mt", *STRONG, "participation=0.67", EXACT],
}


def cases() -> dict[str, list[str]]:
    """Every algorithm with stacked clients in float32 and one after another in float64, and the variants."""
    found = {}
    for name in ALGORITHMS:
        common = [f"algorithm={name}", *SOONER.get(name, [])]
        found |= {name: common, f"{name}, sequential": [*common, "engine=sequential", EXACT]}
    return found | VARIANTS


def made(case: str, folder: Path) -> Run:
    """The run of this name."""
    overrides = cases()[case]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "FEWEST", 2)  # as it was then: the rule on stacks is no part of the numbers
        if case.startswith("cnn13"):
            enlarge_digits(patch)
        else:
            overrides = [*SMALL, *overrides]
        if case.startswith("resumed"):
            run_here(folder, *overrides, "rounds=2")
            return run_here(folder, *overrides, "rounds=4", "ckpt_path=last")
        return run_here(folder, *overrides)


def numbers(run: Run) -> dict[str, object]:
    return {"theta_sha256": run.theta, "metrics": run.timeless}


def machine() -> dict[str, str]:
    """What the last bits depend on."""
    known = {"cpu": cpu_name(), "capability": torch.backends.cpu.get_cpu_capability(), "torch": torch.__version__}
    return known | {"products": last_bits(), "threaded": threaded_bits()}


def last_bits() -> str:
    """A digest of some products: processors of one name may differ in how they add up."""
    rng, digest = torch.Generator().manual_seed(0), hashlib.sha256()
    for dtype, (n, rows, inner, cols) in product(
        (torch.float32, torch.float64), ((1, 16, 64, 16), (4, 10, 64, 16), (1, 32, 784, 200), (1, 16, 64, 5000))
    ):
        a, b = (torch.rand(shape, dtype=dtype, generator=rng) for shape in ((n, rows, inner), (n, inner, cols)))
        digest.update(torch.bmm(a, b).log_softmax(-1).exp().numpy().tobytes())
    images, filters = (torch.rand(shape, generator=rng) for shape in ((8, 3, 16, 16), (8, 3, 3, 3)))
    digest.update(torch.conv2d(images, filters).numpy().tobytes())
    return digest.hexdigest()


def threaded_bits() -> str:
    """The same of what two threads share: the products of a huge layer, a convolution and its gradient."""
    rng, digest, threads = torch.Generator().manual_seed(0), hashlib.sha256(), torch.get_num_threads()
    x, w = (torch.rand(shape, generator=rng) for shape in ((16, 64), (64, 17_000)))
    images, filters = (torch.rand(shape, generator=rng) for shape in ((26, 8, 16, 16), (8, 8, 3, 3)))
    filters.requires_grad_()
    torch.set_num_threads(2)
    convolved = torch.conv2d(images, filters, padding=1)
    (gradient,) = torch.autograd.grad(convolved.square().sum(), filters)
    for found in (x @ w, (x @ w).T @ x, convolved.detach(), gradient):
        digest.update(found.numpy().tobytes())
    torch.set_num_threads(threads)
    return digest.hexdigest()


def agrees(case: str, run: Run, recorded: dict) -> bool | None:
    """Bit for bit on a machine like the one of the record, in every column that was recorded; later ones may be new.

    Elsewhere runs in float64 must have the same metrics up to a factor of 1e-5 (None: a run in float32, of which
    nothing can be said there).
    """
    wanted = recorded["runs"][case]
    found = [{name: row.get(name) for name in old} for row, old in zip(run.timeless, wanted["metrics"], strict=True)]
    here, there = machine(), recorded["machine"]
    if case not in THREADED:
        here, there = ({k: v for k, v in of.items() if k != "threaded"} for of in (here, there))
    if here == there:
        return {"theta_sha256": run.theta, "metrics": found} == wanted
    if EXACT not in cases()[case]:
        return None
    rows = zip(found, wanted["metrics"], strict=True)
    return all(value is not None and close(value, b[name]) for a, b in rows for name, value in a.items())


def close(a: str, b: str) -> bool:
    x, y = float(a), float(b)
    return math.isclose(x, y, rel_tol=1e-5, abs_tol=1e-12) or (math.isnan(x) and math.isnan(y))


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        runs = {case: numbers(made(case, Path(folder) / str(i))) for i, case in enumerate(cases())}
    FILE.write_text(json.dumps({"machine": machine(), "runs": runs}, indent=1) + "\n")
    print(f"{FILE.name}: {len(runs)} runs on {machine()}", file=sys.stderr)
