"""Sums over the processes that share the clients, and a round that has diverged."""

from math import isfinite

import torch
from lightning import Trainer
from torch import Tensor

from fedshvr.errors import Diverged

Steps = tuple[list[int], list[int], Tensor]  # clients, their tau_k, and how many steps each made with a finite loss


def over_ranks(tensor: Tensor, trainer: Trainer) -> Tensor:
    """The sum over all processes."""
    return tensor if trainer.world_size == 1 else trainer.strategy.reduce(tensor, reduce_op="sum")


def from_rank(tensor: Tensor, rank: int, trainer: Trainer) -> Tensor:
    """What that process has; the others give a tensor like it."""
    if trainer.world_size == 1:
        return tensor
    tensor = tensor.clone()
    torch.distributed.broadcast(tensor, src=rank)
    return tensor


def sum_over_ranks(tensors: list[Tensor], trainer: Trainer) -> None:
    """Every tensor becomes its sum over all processes: one all-reduce for each type, O(P) numbers."""
    if trainer.world_size == 1:
        return
    for dtype in sorted({t.dtype for t in tensors}, key=str):
        parts = [t for t in tensors if t.dtype == dtype]
        flat = over_ranks(torch.cat([t.reshape(-1) for t in parts]), trainer)
        for part, piece in zip(parts, flat.split([t.numel() for t in parts]), strict=True):
            part.copy_(piece.view_as(part))


def stop_if_diverged(means: list[float], sound: bool, made: list[Steps], round: int, eta: float) -> None:
    """Raise if a mean or the new model is not finite, naming the first local step whose loss is not."""
    if sound and all(map(isfinite, means)):
        return
    for clients, taus, finite in made:
        bad = [(step, k) for step, k, tau in zip(finite.tolist(), clients, taus, strict=True) if step < tau]
        if bad:
            step, k = min(bad, key=lambda pair: pair[0])
            raise Diverged(
                f"round {round + 1}, client {k}, local step {step + 1}: "
                f"the loss is not finite (client.eta={eta} may be too large)"
            )
    what = "the model" if all(map(isfinite, means)) else "a loss"
    raise Diverged(f"round {round + 1}: {what} is not finite (client.eta={eta} may be too large)")
