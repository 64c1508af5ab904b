"""The clients' state in a checkpoint: gathered over ranks, so that the number of ranks may change on resume."""

import torch
from lightning import Trainer
from torch import Tensor

from fedshvr.client import Bench
from fedshvr.memory import Table


def client_tensors(bench: Bench, owner: list[int], trainer: Trainer) -> dict[str, Tensor]:
    """Every client's rows on the CPU: {table: (K, width)}, and "v", the pseudo-labels by sample. All ranks call it."""
    tensors = {}
    for name, table in bench.tables.items():
        rows = [
            _from_owner(table.get([k])[0] if k in table.row_of else None, table, rank, trainer)
            for k, rank in enumerate(owner)
        ]
        tensors[name] = torch.stack(rows)
    v = bench.pool.v
    if len(v) and trainer.world_size > 1:
        mine = torch.zeros_like(v)
        own = torch.cat([bench.unlabeled[k] for k, rank in enumerate(owner) if rank == trainer.global_rank])
        mine[own] = v[own]
        v = trainer.strategy.reduce(mine, reduce_op="sum")  # every sample has one owner
    tensors["v"] = v.cpu()
    return tensors


def _from_owner(row: Tensor | None, table: Table, rank: int, trainer: Trainer) -> Tensor:
    if trainer.world_size == 1:
        assert row is not None
        return row.cpu()
    value = row.clone() if row is not None else torch.empty(table.width, dtype=table.dtype, device=table.device)
    torch.distributed.broadcast(value, src=rank)
    return value.cpu()


def restore_clients(bench: Bench, tensors: dict[str, Tensor]) -> None:
    """Fill this rank's rows from a checkpoint."""
    for name, table in bench.tables.items():
        for k in table.row_of:
            table.put([k], tensors[name][k][None].to(table.device, table.dtype))
    bench.pool.v.copy_(tensors["v"])
