"""How the clients of one process do their round: one after another, or many at once in one batched step."""

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from fedshvr.compute.vector import FlatNet
from fedshvr.errors import check

ENGINES = ("auto", "sequential", "vectorized", "measure")
FEWEST = 4  # clients whose stack is faster than one after another on a CPU, whatever the hidden layer's size
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
STACK_BYTES = 256 << 20  # clients are stacked in groups whose parameters fit here

Work = Callable[[list[int], bool], Any]  # these clients' round, as one stack or not -> their Update


class Clients:
    """The clients of a round of this process: who, their steps tau_k by client, and the bytes of one's parameters."""

    def __init__(self, own: list[int], tau: list[int], row: int) -> None:
        self.own, self.tau, self.row = own, tau, row

    def only(self, some: list[int]) -> "Clients":
        return Clients(some, self.tau, self.row)


Engine = Callable[[Work, Clients], Iterator[Any]]


def sequential(work: Work, clients: Clients) -> Iterator[Any]:
    """The network is handed from client to client."""
    for k in clients.own:
        yield work([k], False)


def vectorized(work: Work, clients: Clients) -> Iterator[Any]:
    """Clients with many steps first, in groups: in a group those that are done drop out from the end."""
    order = sorted(clients.own, key=lambda k: -clients.tau[k])
    size = max(1, STACK_BYTES // clients.row)
    for start in range(0, len(order), size):
        yield work(order[start : start + size], True)


def vectorizable(net: FlatNet) -> bool:
    """Networks that keep statistics (batch norm), draw from torch's generator or do what vmap cannot go alone."""
    return not net.random and not any(True for _ in net.module.buffers()) and net.stacks()


def rule(net: FlatNet, clients: int) -> str:
    """engine=auto: by what is known before the first step, never by the clock, so that a command repeats its bits.

    Clients are stacked if the network can be and there are several: on a CPU at least FEWEST, and no convolutions:
    those of a stack become one grouped convolution, which is often slower there (docs/performance.md).
    """
    if net.theta.device.type != "cpu":
        worth = clients > 1
    else:
        worth = clients >= FEWEST and not any(isinstance(m, CONVOLUTIONS) for m in net.module.modules())
    return "vectorized" if worth and vectorizable(net) else "sequential"


def pick_engine(name: str, net: FlatNet, clients: int) -> Engine:
    """The engine by its name; `clients` take part in a round of this process."""
    if name == "auto":
        name = rule(net, clients)
    if name == "measure":
        return Measure() if vectorizable(net) else sequential
    check(
        name != "vectorized" or vectorizable(net),
        "engine=vectorized: this network has batch norm or random layers other than dropout, or does what vmap cannot; "
        "use engine=sequential, or change the model",
    )
    return {"sequential": sequential, "vectorized": vectorized}[name]


class Measure:
    """Measures both engines on the work of the first rounds, then takes the faster one.

    In these rounds a few clients train one after another and the others together, so no work is thrown away. The first
    round is warm-up. The engines agree up to rounding, so the choice shows in no digit that matters.
    """

    TRIAL_ROUNDS = 3
    ALONE = 2  # clients of a trial round that train one after another

    def __init__(self) -> None:
        self.rounds, self.picked = 0, ""
        self.seconds = {"sequential": float("inf"), "vectorized": float("inf")}  # a local step of one client, at best

    def __call__(self, work: Work, clients: Clients) -> Iterator[Any]:
        own = clients.own
        if not self.picked and len(own) <= self.ALONE:
            self.picked = "sequential"
        if self.picked:
            yield from {"sequential": sequential, "vectorized": vectorized}[self.picked](work, clients)
            return
        self.rounds += 1
        trials = {"sequential": (sequential, own[: self.ALONE]), "vectorized": (vectorized, own[self.ALONE :])}
        for name, (engine, share) in trials.items():
            yield from timed(engine(work, clients.only(share)), partial(self._note, name, clients.only(share)))
        if self.rounds == self.TRIAL_ROUNDS:
            self.picked = min(self.seconds, key=self.seconds.__getitem__)
            costs = ", ".join(f"{name} {1e6 * s:.0f} us" for name, s in self.seconds.items())
            print(f"engine=measure: {self.picked} ({costs} a local step of a client)", file=sys.stderr)

    def _note(self, name: str, share: Clients, seconds: float) -> None:
        if self.rounds > 1:
            self.seconds[name] = min(self.seconds[name], seconds / sum(share.tau[k] for k in share.own))


def timed(results: Iterator[Any], report: Callable[[float], None]) -> Iterator[Any]:
    """Pass the results on and report the seconds in which the clients worked, up to the end of what is queued."""
    spent, started = 0.0, time.perf_counter()
    for result in results:
        torch.get_device_module(result.theta.device).synchronize()
        spent += time.perf_counter() - started
        yield result
        started = time.perf_counter()
    report(spent)
