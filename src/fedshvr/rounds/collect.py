"""What the server adds up over the clients of a round, on one rank and then over all: O(P) numbers.

Vectors of the size of theta are summed in its type; counts and metrics in `wide`, float64 where there is one.
"""

from dataclasses import dataclass
from math import isfinite

import torch
from lightning import Trainer
from torch import Tensor

from fedshvr.algorithms.aggregation import Average, Grouped


class Diverged(RuntimeError):
    """A loss is not finite any more."""


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


@dataclass
class Sums:
    """Everything that is summed; a part that a method does not need is empty."""

    direction: Tensor  # (P,) sum_k coefficient_k (theta - theta_k)
    change: Tensor  # (P,) of the server's control variate
    buffers: Tensor  # batch-norm statistics
    means: Tensor  # loss, its parts, drift: weighted means, in `wide`
    labels: Tensor  # right pseudo-labels, all of them, their cost, their movement, in `wide`
    gradient: Tensor  # (P,) of F at theta, for the optimality gap
    groups: Tensor  # (S, P) averages of the groups
    moves: Tensor  # (n, P) all moves, for an aggregation that is not linear

    def over_ranks(self, trainer: Trainer) -> "Sums":
        """One all-reduce for what has theta's type, one for counts and metrics."""
        if trainer.world_size == 1:
            return self
        summed: dict[str, Tensor] = {}
        for dtype in {part.dtype for part in vars(self).values()}:
            parts = {name: part for name, part in vars(self).items() if part.dtype == dtype}
            flat = over_ranks(torch.cat([part.reshape(-1) for part in parts.values()]), trainer)
            pieces = flat.split([part.numel() for part in parts.values()])
            summed |= {name: piece.view_as(parts[name]) for name, piece in zip(parts, pieces, strict=True)}
        return Sums(**summed)


class Weights:
    """The numbers with which each client of a cohort enters the sums."""

    def __init__(
        self,
        cohort: list[int],
        omega: Tensor,
        effective: Tensor,
        tau: Tensor,
        aggregation: Average,
        groups: list[int],
    ) -> None:
        weights = omega[cohort] / omega[cohort].sum()
        if isinstance(aggregation, Grouped):
            present = [groups[k] for k in cohort]
            shares = aggregation.shares(weights, present)
            coefficients = shares / len(set(present))
        else:
            shares, coefficients = weights, aggregation.coefficients(weights, effective[cohort], tau[cohort])
        self.weight = dict(zip(cohort, weights.tolist(), strict=True))
        self.coefficient = dict(zip(cohort, coefficients.tolist(), strict=True))
        self.share = dict(zip(cohort, shares.tolist(), strict=True))  # of the client in its group
        self.position = {k: i for i, k in enumerate(cohort)}


def stop_if_diverged(means: list[float], traces: list[tuple[list[int], Tensor]], round: int, eta: float) -> None:
    """Raise if a mean is not finite, naming the first local step whose loss is not."""
    if all(map(isfinite, means)):
        return
    for clients, trace in traces:
        bad = (~trace[:, :, 0].isfinite()).nonzero()
        if len(bad):
            step, i = bad[0].tolist()
            raise Diverged(
                f"round {round + 1}, client {clients[i]}, local step {step + 1}: "
                f"the loss is not finite (client.eta={eta} may be too large)"
            )
    raise Diverged(f"round {round + 1}: a loss is not finite (client.eta={eta} may be too large)")
