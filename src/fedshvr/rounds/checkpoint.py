"""The clients' state in a checkpoint: gathered over ranks, so that the number of ranks may change on resume."""

import torch
from lightning import Trainer
from torch import Tensor

from fedshvr.compute.memory import Table
from fedshvr.rounds.client import Bench
from fedshvr.rounds.collect import from_rank


def client_tensors(bench: Bench, owner: list[int], trainer: Trainer) -> dict[str, Tensor]:
    """What each table saves, {name: (K, ...)}, and "v", the pseudo-labels by sample; on the CPU. All ranks call it."""
    tensors = {}
    for name, table in bench.tables.items():
        rows = [_from_owner(table, k, rank, trainer) for k, rank in enumerate(owner)]
        tensors[name] = torch.stack(rows)
        table.commit()
    v = bench.pool.v
    if len(v) and trainer.world_size > 1:
        mine = v.clone() if trainer.is_global_zero else torch.zeros_like(v)  # the first also has what is nobody's
        for samples, rank in zip(bench.unlabeled, owner, strict=True):
            mine[samples] = v[samples] if rank == trainer.global_rank else 0
        v = trainer.strategy.reduce(mine, reduce_op="sum")
    tensors["v"] = v.cpu()
    return tensors


def _from_owner(table: Table, client: int, rank: int, trainer: Trainer) -> Tensor:
    """Client's saved state, on every rank: one row at a time travels."""
    mine = client if client in table.row_of else next(iter(table.row_of))
    return from_rank(table.saved(mine).to(table.device), rank, trainer).cpu()


def restore_clients(bench: Bench, tensors: dict[str, Tensor]) -> None:
    """Fill this rank's rows from a checkpoint."""
    for name, table in bench.tables.items():
        for k in table.row_of:
            table.restore(k, tensors[name][k])
    bench.pool.v.copy_(tensors["v"])
