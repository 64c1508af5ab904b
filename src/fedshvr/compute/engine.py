"""How the clients of one process do their round: one after another, or many at once in one batched step."""

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from operator import itemgetter

import torch
from torch import Tensor, nn
from torch._C import _functorch as functorch
from torch._functorch.vmap import lazy_load_decompositions, vmap_increment_nesting
from torch.nn.modules.conv import _ConvNd

from fedshvr.algorithms.objectives.base import Batch, State
from fedshvr.compute.streams import Draws
from fedshvr.compute.vector import FlatNet, StackedNet, aligned_rows, split_like
from fedshvr.data.batches import per_step
from fedshvr.errors import check
from fedshvr.rounds.client import Bench, Client, Descent, Round, client_offset, client_state, label_epochs, renew_labels

ENGINES = ("auto", "sequential", "vectorized", "measure")
STACK_BYTES = 256 << 20  # clients are stacked in groups whose parameters fit here


class Result:
    """What some clients hand back: theta_k (n, P), buffers (n, B), and the trace (steps, n, loss and parts)."""

    def __init__(self, clients: list[int], theta: Tensor, buffers: Tensor, trace: Tensor) -> None:
        self.clients, self.theta, self.buffers, self.trace = clients, theta, buffers, trace


Engine = Callable[[Bench, list[Client], Round, list[int]], Iterator[Result]]


def sequential(bench: Bench, clients: list[Client], round: Round, own: list[int]) -> Iterator[Result]:
    """The network is handed from client to client."""
    for k in own:
        trace = clients[k].fit(bench, round)
        yield Result([k], bench.net.theta[None], bench.net.buffers[None], trace[:, None])


def vectorizable(net: FlatNet) -> bool:
    """Networks that keep statistics (batch norm) or draw from torch's generator train one client at a time."""
    return not net.random and not any(True for _ in net.module.buffers())


def rule(net: FlatNet, clients: int) -> str:
    """engine=auto: by what is known before the first step, never by the clock, so that a command repeats its bits.

    Clients are stacked if there are several and the network can be, except for convolutions on a CPU: those of a stack
    become one grouped convolution, which is no faster there (docs/performance.md).
    """
    convolutional = any(isinstance(m, _ConvNd) for m in net.module.modules())
    slow = convolutional and net.theta.device.type == "cpu"
    return "vectorized" if clients > 1 and vectorizable(net) and not slow else "sequential"


def pick_engine(name: str, net: FlatNet, clients: int) -> Engine:
    """The engine by its name; `clients` take part in a round of this process."""
    check(name in ENGINES, f"engine={name}: must be one of {', '.join(ENGINES)}")
    if name == "auto":
        name = rule(net, clients)
    if name == "measure":
        return Measure() if vectorizable(net) else sequential
    check(
        name != "vectorized" or vectorizable(net),
        "engine=vectorized: this network has batch norm or random layers other than dropout; use engine=sequential, "
        "or change the model",
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

    def __call__(self, bench: Bench, clients: list[Client], round: Round, own: list[int]) -> Iterator[Result]:
        if not self.picked and len(own) <= self.ALONE:
            self.picked = "sequential"
        if self.picked:
            yield from {"sequential": sequential, "vectorized": vectorized}[self.picked](bench, clients, round, own)
            return
        self.rounds += 1
        trials = {"sequential": (sequential, own[: self.ALONE]), "vectorized": (vectorized, own[self.ALONE :])}
        for name, (engine, share) in trials.items():
            yield from timed(engine(bench, clients, round, share), partial(self._note, name, clients, share))
        if self.rounds == self.TRIAL_ROUNDS:
            self.picked = min(self.seconds, key=self.seconds.__getitem__)
            costs = ", ".join(f"{name} {1e6 * s:.0f} us" for name, s in self.seconds.items())
            print(f"engine=measure: {self.picked} ({costs} a local step of a client)", file=sys.stderr)

    def _note(self, name: str, clients: list[Client], share: list[int], seconds: float) -> None:
        if self.rounds > 1:
            self.seconds[name] = min(self.seconds[name], seconds / sum(clients[k].tau for k in share))


def timed(results: Iterator[Result], report: Callable[[float], None]) -> Iterator[Result]:
    """Pass the results on and report the seconds in which the clients worked, up to the end of what is queued."""
    spent, started = 0.0, time.perf_counter()
    for result in results:
        torch.get_device_module(result.theta.device).synchronize()
        spent += time.perf_counter() - started
        yield result
        started = time.perf_counter()
    report(spent)


def vectorized(bench: Bench, clients: list[Client], round: Round, own: list[int]) -> Iterator[Result]:
    """Clients with many steps first, in groups; those that are done drop out from the end of the stack."""
    order = sorted(own, key=lambda k: -clients[k].tau)
    size = max(1, STACK_BYTES // (round.theta.numel() * round.theta.element_size()))
    for start in range(0, len(order), size):
        yield _fit_stack(
            bench, round, order[start : start + size], [clients[k].tau for k in order[start : start + size]]
        )


def _fit_stack(bench: Bench, round: Round, group: list[int], tau: list[int]) -> Result:
    start = round.start(group)
    theta_k = aligned_rows(start)
    state, d = client_state(bench, round, group), client_offset(bench, round, group)
    m = torch.zeros_like(theta_k) if bench.local.momentum else None
    bench.net.module.train()
    done = round.done_of(group)
    choices = bench.batcher.choose(Draws(bench.seed, round.index, torch.tensor(group)), tau[0])
    epochs = [label_epochs(bench, t) for t in tau]
    trace, active, step = [], 0, 0
    for block in bench.batcher.blocks(choices, bench.pool, set().union(*epochs)):
        bench.progress(group[0], step)
        for batch in per_step(block, 1):
            now = sum(t > step for t in tau) if step >= tau[-1] else len(group)
            if now != active:
                active = now
                leaves = [v.requires_grad_() for v in split_like(theta_k.detach()[:active], bench.net.shapes)]
                active_state = {name: rows[:active] for name, rows in state.items()}
                d_active, m_active = (None if t is None else t[:active] for t in (d, m))
                descent = Descent(bench, leaves, theta_k[:active], start[:active], d_active, m_active)
            if active < len(group):
                batch = batch.map(itemgetter(slice(active)))
            losses, parts, adapted = _losses(bench, leaves, batch, active_state, done[:active] + step)
            for name, rows in adapted.items():
                active_state[name].copy_(rows.detach())
            descent.step(losses)
            if state:
                bench.objective.after_step(active_state, theta_k[:active], done[:active] + step)
            row = torch.stack([losses.detach(), *(part.detach() for part in parts)], dim=1)
            trace.append(row if active == len(group) else nn.functional.pad(row, (0, 0, 0, len(group) - active)))
            step += 1
        for i, k in enumerate(group):
            if step in epochs[i]:
                bench.net.load(theta_k[i], round.buffers)
                renew_labels(bench, round.index, k, epochs[i][step], choices.at(i, step).noise)
    for name, rows in state.items():
        bench.tables[name].put(group, rows)
    return Result(group, theta_k, round.buffers.expand(len(group), -1), torch.stack(trace))


def _losses(
    bench: Bench, rows: list[Tensor], batch: Batch, state: State, done: Tensor
) -> tuple[Tensor, list[Tensor], State]:
    """Each client's loss, its parts and its adapted memory: torch.vmap over everything's first dimension.

    Without torch.vmap's own search for the tensors in nested inputs: small clients are done sooner.
    """
    lazy_load_decompositions()
    clients, objective = len(done), bench.objective
    with vmap_increment_nesting(clients, "error") as level:

        def one(rows: Tensor) -> Tensor:
            return functorch._add_batch_dim(rows, 0, level)

        def each(value: Tensor) -> Tensor:
            return functorch._remove_batch_dim(value, level, clients, 0)

        net, batch, memory = StackedNet(bench.net, rows, one), batch.map(one), {k: one(v) for k, v in state.items()}
        bench.net.masks.begin_step(batch.noise.get("masks"))
        with objective.at_step(batch.noise, batch.x.dtype):
            adapted = objective.adapt(net, batch, memory, one(done)) if objective.adapts else {}
            loss, parts = objective.loss(net, batch, memory | adapted)
        return each(loss), [each(part) for part in parts.values()], {name: each(v) for name, v in adapted.items()}
