"""How the moves theta - theta_k become one server direction theta - theta', update by update and in any order.

A round is begin(cohort), add(...) for each client or stack of clients, then finish(). Where several processes share the
clients, each adds its own, and the tensors of sums() are summed over them before finish(). keep(cohort) comes between
the two where some clients were left out.
"""

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from fedshvr.errors import check


class Cohort(NamedTuple):
    """The clients of a round: weights w_k (sum 1), effective steps a_k, steps tau_k; and everybody's group, if any."""

    clients: list[int]
    weights: Tensor
    effective: Tensor
    tau: Tensor
    group_of: list[int]


class Average:
    """FedAvg: theta' = sum_k w_k theta_k, so the coefficient is the weight."""

    groups = 0  # how many models the clients start from, if not all from theta

    def coefficients(self, cohort: Cohort) -> Tensor:
        """Of each client of the cohort in the direction sum_k coefficient_k (theta - theta_k)."""
        return cohort.weights

    def assign(self, clients: int, seed: int, round: int) -> list[int]:
        """The group of each client in this round, if there are groups."""
        return []

    def begin(self, cohort: Cohort, theta: Tensor) -> None:
        """A new round from theta."""
        self.coefficient = dict(zip(cohort.clients, self.coefficients(cohort).tolist(), strict=True))
        self.direction = torch.zeros(theta.shape, dtype=theta.dtype, device=theta.device)

    def add(self, clients: list[int], move: Tensor, theta_k: Tensor) -> None:
        """What these clients came to: theta - theta_k and theta_k, (n, P) each."""
        coefficients = [self.coefficient[k] for k in clients]
        self.direction += torch.tensor(coefficients, dtype=move.dtype, device=move.device) @ move

    def keep(self, cohort: Cohort) -> None:
        """The others of the round were left out: what was added becomes that of this cohort; after sums()."""
        self.direction *= self.coefficients(cohort)[0].item() / self.coefficient[cohort.clients[0]]  # alike for all

    def sums(self) -> list[Tensor]:
        """What is to be summed over processes."""
        return [self.direction]

    def finish(self) -> Tensor:
        """theta - theta'."""
        direction = self.direction
        del self.direction
        return direction

    def renew(self, models: Tensor) -> None:
        """Change the groups' models, (S, P), in place: called before finish()."""


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

    def coefficients(self, cohort: Cohort) -> Tensor:
        counted = cohort.effective if self.tau_bar == "effective" else cohort.tau
        return (cohort.weights * counted).sum() * cohort.weights / cohort.effective


@cache
def effective_steps(tau: int, eta: float, momentum: float, mu: float) -> float:
    """a_k: the move of tau steps under a constant unit gradient with momentum and proximal pull, over eta."""
    if not momentum and not mu:
        return float(tau)
    buffer = moved = 0.0
    for _ in range(tau):
        buffer = momentum * buffer + 1 - eta * mu * moved
        moved += buffer
    return moved
