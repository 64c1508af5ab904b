"""Clients in groups, each of which goes on from its own average."""

import torch
from torch import Tensor

from fedshvr.algorithms.aggregation import Average, Cohort
from fedshvr.compute.streams import stream
from fedshvr.errors import check


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

    def shares(self, cohort: Cohort) -> Tensor:
        """w_k over the weight of k's group."""
        index = torch.tensor([cohort.group_of[k] for k in cohort.clients])
        totals = torch.zeros(self.groups, dtype=cohort.weights.dtype).index_add(0, index, cohort.weights)
        return cohort.weights / totals[index]

    def coefficients(self, cohort: Cohort) -> Tensor:
        return self.shares(cohort) / len({cohort.group_of[k] for k in cohort.clients})

    def begin(self, cohort: Cohort, theta: Tensor) -> None:
        super().begin(cohort, theta)
        self.group_of = {k: cohort.group_of[k] for k in cohort.clients}
        self.theta, self.share = theta, dict(zip(cohort.clients, self.shares(cohort).tolist(), strict=True))
        self.averages = torch.zeros(self.groups, len(theta), dtype=theta.dtype, device=theta.device)

    def add(self, clients: list[int], move: Tensor, theta_k: Tensor) -> None:
        super().add(clients, move, theta_k)
        for k, model in zip(clients, theta_k, strict=True):
            self.averages[self.group_of[k]].add_(model, alpha=self.share[k])

    def keep(self, cohort: Cohort) -> None:
        """Each group's average over those of it who are left; the moves' coefficients sum to 1: theta - mean of A_g."""
        self.group_of = {k: cohort.group_of[k] for k in cohort.clients}
        some = {self.group_of[k]: (k, share) for k, share in zip(cohort.clients, self.shares(cohort), strict=True)}
        for g, (k, share) in some.items():
            self.averages[g] *= share.item() / self.share[k]
        self.direction = self.theta - self.averages[list(some)].mean(0)

    def sums(self) -> list[Tensor]:
        return [self.direction, self.averages]

    def renew(self, models: Tensor) -> None:
        for g in set(self.group_of.values()):
            models[g] = self.averages[g]
        del self.averages, self.theta
