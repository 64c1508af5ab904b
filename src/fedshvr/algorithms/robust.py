"""Aggregations that need all moves at once, (n, P): one client that is far off cannot pull the server along."""

import torch
from torch import Tensor

from fedshvr.algorithms.aggregation import Average, Cohort
from fedshvr.errors import check


class Median(Average):
    """The median of the moves, coordinate by coordinate (Yin et al. 2018); every client counts alike."""

    def begin(self, cohort: Cohort, theta: Tensor) -> None:
        self.position = {k: i for i, k in enumerate(cohort.clients)}
        self.moves = torch.zeros(len(cohort.clients), len(theta), dtype=theta.dtype, device=theta.device)

    def add(self, clients: list[int], move: Tensor, theta_k: Tensor) -> None:
        self.moves[[self.position[k] for k in clients]] = move

    def keep(self, cohort: Cohort) -> None:
        self.moves = self.moves[[self.position[k] for k in cohort.clients]]

    def sums(self) -> list[Tensor]:
        return [self.moves]

    def finish(self) -> Tensor:
        moves = self.moves
        del self.moves
        return self.combine(moves)

    def combine(self, moves: Tensor) -> Tensor:
        """The direction from the cohort's moves, (n, P)."""
        low, high = (torch.sort(moves, dim=0).values[i] for i in ((len(moves) - 1) // 2, len(moves) // 2))
        return (low + high) / 2


class TrimmedMean(Median):
    """The mean of the moves without the share `trim` of largest and smallest, by coordinate (Yin et al. 2018)."""

    def __init__(self, trim: float) -> None:
        check(0 <= trim < 0.5, f"algorithm.aggregation.trim={trim}: must be at least 0 and below 0.5")
        self.trim = trim

    def combine(self, moves: Tensor) -> Tensor:
        cut = int(self.trim * len(moves))
        return torch.sort(moves, dim=0).values[cut : len(moves) - cut].mean(0)


class GeometricMedian(Median):
    """The point with the least sum_k w_k |z - move_k| (RFA, Pillutla et al. 2022), by Weiszfeld's steps.

    z <- sum_k b_k move_k / sum_k b_k with b_k = w_k / max(1e-6, |z - move_k|), from the median by coordinate (RFA
    starts from the mean). A move far away counts by its direction alone, and no coordinate is cut by itself.
    """

    def __init__(self, steps: int) -> None:
        check(steps >= 1, f"algorithm.aggregation.steps={steps}: must be at least 1")
        self.steps = steps

    def begin(self, cohort: Cohort, theta: Tensor) -> None:
        super().begin(cohort, theta)
        self.weights = cohort.weights.to(theta)

    def keep(self, cohort: Cohort) -> None:
        super().keep(cohort)
        self.weights = cohort.weights.to(self.moves)

    def combine(self, moves: Tensor) -> Tensor:
        z = super().combine(moves)
        for _ in range(self.steps):
            b = self.weights / torch.linalg.vector_norm(moves - z, dim=1).clamp_min(1e-6)
            z = b @ moves / b.sum()
        return z
