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
