"""What the clients of one process work with."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from fedshvr.algorithms.objectives.batch import State
from fedshvr.compute.memory import Table, make_table
from fedshvr.compute.vector import FlatNet
from fedshvr.data.augment import Augment
from fedshvr.data.batches import Batcher, Pool
from fedshvr.data.holdings import Federation
from fedshvr.errors import check
from fedshvr.rounds.messages import Broadcast
from fedshvr.rounds.options import Method


@dataclass(frozen=True)
class Samples:
    """Whose the unlabelled samples are, on the device."""

    unlabeled: list[Tensor]  # client k's
    hidden: Tensor  # the true class of every sample: for the log alone, no objective sees it


@dataclass
class Bench:
    """What clients share in one process and borrow in turn: the network, the data, the method and their memory."""

    net: FlatNet
    pool: Pool
    batcher: Batcher
    method: Method
    tables: dict[str, Table]  # what clients remember: name -> (own clients, width)
    samples: Samples
    seed: int
    progress: Callable[[int, int], None] = field(default=lambda client, step: None)

    def state(self, broadcast: Broadcast, copied: bool = False) -> State:
        """The objective's memory of these clients, (n, ...) each, ready for the round; a copy leaves the tables be."""
        objective = self.method.objective
        state = {name: self.tables[name].get(broadcast.clients) for name in objective.memory}
        if copied:
            state = {name: rows.clone() for name, rows in state.items()}
        if state:
            objective.begin_client(state, broadcast.theta, self.steps_done(broadcast))
        return state

    def offset(self, broadcast: Broadcast) -> Tensor | None:
        """d_k of these clients, (n, P)."""
        correction = self.method.correction
        name = correction.memory
        return correction.offset(self.tables[name].get(broadcast.clients), broadcast.c) if name else None

    def steps_done(self, broadcast: Broadcast) -> Tensor:
        """The local steps that these clients have made, (n,) on the device."""
        return broadcast.done.to(self.net.theta.device, non_blocking=True)


@dataclass(frozen=True)
class Place:
    """Where this process computes and keeps what its clients remember."""

    device: torch.device
    dtype: torch.dtype
    own: list[int]  # its clients
    client_state: str
    folder: Path | None  # of client_state=disk


def set_up(
    net: FlatNet,
    federation: Federation,
    method: Method,
    augments: dict[str, Augment],
    seed: int,
    place: Place,
    local_buffers: bool,
) -> Bench:
    """The bench of this process: its data on the device and an empty memory of its clients."""
    plan, device, dtype = federation.plan, place.device, place.dtype
    pool = federation.pool(device, dtype, method.objective.pseudo_labels)
    net.probe(pool.x[:2])
    check(
        not (net.random and method.objective.repeats),
        f"model: {type(method.objective).__name__} compares passes that must drop the same units, but this network "
        "has random layers other than nn.Dropout",
    )
    one_view = not (augments["weak"].numbers and method.objective.label_views)
    alike = not (net.random or net.masks.layers or len(net.buffers))
    if alike and (one_view or not net.linears.others):  # other layers' gradients would take time for those aside too
        method.objective.label_in_one_pass(one_view)
    widths = method.objective.widths(len(net.theta), len(federation.images.classes))
    if method.correction.memory:
        widths[method.correction.memory] = len(net.theta)
    if local_buffers and len(net.buffers):
        widths["buffers"] = len(net.buffers)
    tables = {
        name: make_table(place.client_state, name, place.own, plan.clients, width, device, dtype, place.folder)
        for name, width in widths.items()
    }
    batcher = Batcher(plan, method.local, method.objective, augments, dropout=bool(net.masks.layers))
    samples = Samples([plan.unlabeled[k].to(device) for k in range(plan.clients)], federation.y.to(device))
    return Bench(net, pool, batcher, method, tables, samples, seed)
