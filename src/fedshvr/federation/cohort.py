"""Who takes part in a round, how much of its work each does, who lies, and which process a client belongs to."""

from dataclasses import dataclass
from math import floor

import torch

from fedshvr.compute.streams import Draws, stream
from fedshvr.errors import check

ATTACKS = ("none", "garbage", "sign_flip", "scale")


@dataclass(frozen=True)
class Cohorts:
    """Who takes part, drawn anew for each round; the same on every rank."""

    seed: int
    participation: float = 1.0  # the share of the clients that is drawn
    client_dropout: float = 0.0  # the probability that one of them fails: it gets nothing and sends nothing
    stragglers: float = 0.0  # the share of the others that makes only a part of its steps
    attack: str = "none"  # what the attackers send, rounds/attack.py
    attackers: int = 2  # how many clients these are, always the same ones

    def __post_init__(self) -> None:
        share, fails, slow = self.participation, self.client_dropout, self.stragglers
        check(0 < share <= 1, f"participation={share}: must be above 0 and at most 1")
        check(0 <= fails < 1, f"client_dropout={fails}: must be at least 0 and below 1")
        check(0 <= slow <= 1, f"stragglers={slow}: must be between 0 and 1")
        check(self.attack in ATTACKS, f"attack={self.attack}: must be one of {', '.join(ATTACKS)}")

    def liars(self, clients: int) -> set[int]:
        """The attackers among so many clients."""
        if self.attack == "none":
            return set()
        count = self.attackers
        check(0 < count < clients, f"attackers={count}: must be above 0 and below partition.clients={clients}")
        return set(torch.randperm(clients, generator=stream(self.seed, "attackers"))[:count].tolist())

    def size(self, clients: int) -> int:
        """How many of so many clients are drawn."""
        return max(1, floor(self.participation * clients + 0.5))

    def draw(self, able: list[int], round: int) -> list[int]:
        """The clients of this round, of those that are able to work: drawn, and not failed."""
        size = self.size(len(able))
        if size < len(able):
            order = torch.randperm(len(able), generator=stream(self.seed, "cohort", round))
            able = [able[i] for i in order[:size].sort().values.tolist()]
        return self._not_failed(able, round) if self.client_dropout else able

    def _not_failed(self, drawn: list[int], round: int) -> list[int]:
        """Each fails by itself with probability client_dropout; if all would, the one with the best luck does not."""
        luck = Draws(self.seed, round, torch.tensor(drawn))("client fails", ()).tolist()
        left = [k for k, u in zip(drawn, luck, strict=True) if u >= self.client_dropout]
        return left or [drawn[luck.index(max(luck))]]

    def steps(self, tau: list[int], cohort: list[int], round: int) -> list[int]:
        """tau_k of this round: a straggler's is uniform on 1 .. tau_k, the first of the steps that it would make.

        So in FedProx (Li et al. 2020), for a share of the cohort; with stragglers=1 for all, as in FedNova.
        """
        slow = floor(self.stragglers * len(cohort) + 0.5)
        if not slow:
            return tau
        turn, part = Draws(self.seed, round, torch.tensor(cohort))("straggles", (2,)).unbind(1)
        made = list(tau)
        for i in turn.argsort()[:slow].tolist():
            made[cohort[i]] = 1 + int(part[i] * tau[cohort[i]])
        return made


def owners(tau: list[int], ranks: int) -> list[int]:
    """The rank of each client: longest first, each to the rank with the least work so far."""
    load = [0] * ranks
    owner = [0] * len(tau)
    for k in sorted(range(len(tau)), key=lambda k: -tau[k]):
        owner[k] = min(range(ranks), key=lambda r: load[r])
        load[owner[k]] += tau[k]
    return owner
