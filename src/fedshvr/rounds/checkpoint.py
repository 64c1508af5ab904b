"""A checkpoint: the clients' state, gathered over ranks so that their number may change, and whose run it is."""

from typing import Any

import torch
from lightning import Trainer
from torch import Tensor

from fedshvr.compute.memory import Table
from fedshvr.data.holdings import Federation
from fedshvr.errors import check
from fedshvr.rounds.bench import Bench
from fedshvr.rounds.reduce import from_rank
from fedshvr.rounds.server import Server

SERVER = "server."  # where the module has the server's tensors


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
        for samples, rank in zip(bench.samples.unlabeled, owner, strict=True):
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


def fingerprint(server: Server, federation: Federation, client_state: str) -> dict[str, Any]:
    """What must agree for a checkpoint to be this run's."""
    method = server.method
    parts = {"objective": method.objective, "correction": method.correction, "aggregation": method.aggregation}
    return {
        "seed": server.seed,
        "parameters": len(server.theta),
        "partition_sha256": federation.sha256,
        "client_state": "disk" if client_state == "disk" else "memory",
        "privacy": str(server.release) if server.release else None,  # none before 0.3.0
        **{name: type(part).__name__ for name, part in parts.items()},
    }


def check_same(checkpoint: dict[str, Any], own: dict[str, Any], server: Server) -> None:
    """Refuse another run's checkpoint."""
    for name, value in own.items():
        found = checkpoint["federation"].get(name)
        check(found == value, f"ckpt_path: the checkpoint has {name}={found}, this run has {name}={value}")
    found, wanted = ("theta" if ema is None else "ema" for ema in (checkpoint["state_dict"].get("ema"), server.ema))
    check(found == wanted, f"ckpt_path: the checkpoint has evaluate={found}, this run has evaluate={wanted}")


def flat_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The server's tensors by their own names: theta, c, ... as in every checkpoint since 0.1.0."""
    return {name.removeprefix(SERVER): tensor for name, tensor in state.items()}


def module_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """... and as the module has them."""
    return {SERVER + name: tensor for name, tensor in state.items()}
