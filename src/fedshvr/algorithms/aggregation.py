"""How the moves theta - theta_k become one server direction: as a rule sum_k coefficient_k (theta - theta_k)."""

import torch
from torch import Tensor

from fedshvr.compute.streams import stream
from fedshvr.errors import check


class Average:
    """FedAvg: theta' = sum_k w_k theta_k, so the coefficient is the weight."""

    groups = 0  # how many models the clients start from, if not all from theta
    linear = True  # is the direction a weighted sum? Else `combine` makes it from all moves

    def coefficients(self, weights: Tensor, effective: Tensor, tau: Tensor) -> Tensor:
        """Weights w_k (sum 1), effective steps a_k and steps tau_k of the cohort -> coefficients."""
        return weights

    def assign(self, clients: int, seed: int, round: int) -> list[int]:
        """The group of each client in this round, if there are groups."""
        return []

    def combine(self, moves: Tensor) -> Tensor:
        """The direction from the cohort's moves, (n, P): only asked if not linear."""
        raise NotImplementedError


class Normalized(Average):
    """FedNova (Wang et al. 2020): theta' = theta - tau_bar sum_k w_k (theta - theta_k) / a_k.

    a_k is how far a client moves, in units of eta, for a constant unit gradient: tau_k for plain SGD.
    FedNova leaves tau_bar open. "effective", sum_k w_k a_k, is what averaging implies: at equal a_k the step is that of
    FedAvg or FedProx. "steps", sum_k w_k tau_k, is what the published code takes with a proximal pull, to make up for
    the pull's shortening of a_k. Without pull and momentum they are equal; mu = eta = 0.01, 371 steps: 2 % apart.
    """

    TAU_BARS = ("effective", "steps")

    def __init__(self, tau_bar: str = "effective") -> None:
        check(
            tau_bar in self.TAU_BARS,
            f"algorithm.aggregation.tau_bar={tau_bar}: must be one of {', '.join(self.TAU_BARS)}",
        )
        self.tau_bar = tau_bar

    def coefficients(self, weights: Tensor, effective: Tensor, tau: Tensor) -> Tensor:
        counted = effective if self.tau_bar == "effective" else tau
        return (weights * counted).sum() * weights / effective


class Median(Average):
    """The median of the moves, coordinate by coordinate (Yin et al. 2018); every client counts alike."""

    linear = False

    def combine(self, moves: Tensor) -> Tensor:
        low, high = (torch.sort(moves, dim=0).values[i] for i in ((len(moves) - 1) // 2, len(moves) // 2))
        return (low + high) / 2


class TrimmedMean(Average):
    """The mean of the moves without the share `trim` of largest and smallest, by coordinate (Yin et al. 2018)."""

    linear = False

    def __init__(self, trim: float) -> None:
        check(0 <= trim < 0.5, f"algorithm.aggregation.trim={trim}: must be at least 0 and below 0.5")
        self.trim = trim

    def combine(self, moves: Tensor) -> Tensor:
        cut = int(self.trim * len(moves))
        return torch.sort(moves, dim=0).values[cut : len(moves) - cut].mean(0)


class Grouped(Average):
    """Grouping (Zhang et al. 2020): clients fall into random groups each round and go on from their group's average.

    A_g = sum_{k in g} w_k theta_k / sum_{k in g} w_k; theta' = the mean of the A_g.
    """

    def __init__(self, groups: int) -> None:
        check(groups >= 1, f"algorithm.aggregation.groups={groups}: must be at least 1")
        self.groups = groups

    def assign(self, clients: int, seed: int, round: int) -> list[int]:
        """Sizes differ by at most one."""
        order = torch.randperm(clients, generator=stream(seed, "groups", round))
        return (order % self.groups).tolist()

    def shares(self, weights: Tensor, group_of: list[int]) -> Tensor:
        """w_k over the weight of k's group."""
        index = torch.tensor(group_of)
        totals = torch.zeros(self.groups, dtype=weights.dtype).index_add(0, index, weights)
        return weights / totals[index]


def effective_steps(tau: int, eta: float, momentum: float, mu: float) -> float:
    """a_k: the move of tau steps under a constant unit gradient with momentum and proximal pull, over eta."""
    if not momentum and not mu:
        return float(tau)
    buffer = moved = 0.0
    for _ in range(tau):
        buffer = momentum * buffer + 1 - eta * mu * moved
        moved += buffer
    return moved
