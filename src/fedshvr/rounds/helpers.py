"""Clients that help each other: who answers most alike, and the exchange of their models."""

from dataclasses import replace

import torch
from lightning import Trainer
from torch import Tensor

from fedshvr.algorithms.objectives.batch import MODEL
from fedshvr.compute.streams import stream
from fedshvr.compute.vector import wide
from fedshvr.rounds.bench import Bench
from fedshvr.rounds.client import receive
from fedshvr.rounds.reduce import from_rank, over_ranks
from fedshvr.rounds.server import Server


def exchange(bench: Bench, server: Server, owner: list[int], trainer: Trainer) -> None:
    """Give every client that has trained before the models of the nearest others; one row at a time travels."""
    table, slots = bench.tables[MODEL], bench.method.objective.memory
    said = over_ranks(outputs(bench, server.buffers_, len(owner)), trainer)
    helpers_of = nearest(said, server.done.nonzero().flatten().tolist(), len(slots))
    for j in sorted({j for helpers in helpers_of.values() for j in helpers}):
        mine = j if j in table.row_of else next(iter(table.row_of))
        model = from_rank(table.get([mine]), owner[j], trainer)
        for k in table.row_of.keys() & helpers_of.keys():
            if j in helpers_of[k]:
                slot = slots[helpers_of[k].index(j)]
                server.traffic[1] += model.nbytes  # the server has it from an Update: nothing more goes up
                receive(bench, replace(server.broadcast([k]), exchanged={slot: model}))


@torch.no_grad()
def outputs(bench: Bench, buffers: Tensor, total: int) -> Tensor:
    """What the models of this rank's clients make of one image of Gaussian noise, (K, classes); 0 for the others."""
    net, table, pool = bench.net, bench.tables[MODEL], bench.pool
    noise = torch.randn(1, *pool.x.shape[1:], generator=stream("helpers"), dtype=torch.float64).to(pool.x)
    net.module.eval()
    rows = {}
    for k in table.row_of:
        net.load(table.get([k])[0], buffers)
        rows[k] = net(noise).softmax(-1)[0].to(wide(noise.device))
    empty = torch.zeros_like(next(iter(rows.values())))
    return torch.stack([rows.get(k, empty) for k in range(total)])


def nearest(said: Tensor, known: list[int], count: int) -> dict[int, list[int]]:
    """For each known client the others whose outputs are nearest, at most `count`."""
    distance = torch.cdist(said, said, compute_mode="donot_use_mm_for_euclid_dist").tolist()
    return {k: sorted((j for j in known if j != k), key=lambda j: distance[k][j])[:count] for k in known}
