"""Who takes part in a round, and which process a client belongs to."""

from dataclasses import dataclass
from math import floor

import torch

from fedshvr.compute.streams import stream
from fedshvr.errors import check


@dataclass(frozen=True)
class Cohorts:
    """The share of the clients that takes part, drawn anew for each round; the same on every rank."""

    seed: int
    participation: float = 1.0

    def __post_init__(self) -> None:
        share = self.participation
        check(0 < share <= 1, f"participation={share}: must be above 0 and at most 1")

    def size(self, clients: int) -> int:
        """How many of so many clients."""
        return max(1, floor(self.participation * clients + 0.5))

    def draw(self, clients: int, round: int) -> list[int]:
        """The clients of this round, of all from 0 on."""
        size = self.size(clients)
        if size == clients:
            return list(range(size))
        order = torch.randperm(clients, generator=stream(self.seed, "cohort", round))
        return order[:size].sort().values.tolist()


def owners(tau: list[int], ranks: int) -> list[int]:
    """The rank of each client: longest first, each to the rank with the least work so far."""
    load = [0] * ranks
    owner = [0] * len(tau)
    for k in sorted(range(len(tau)), key=lambda k: -tau[k]):
        owner[k] = min(range(ranks), key=lambda r: load[r])
        load[owner[k]] += tau[k]
    return owner
