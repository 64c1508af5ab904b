"""What a private server releases in a round, and how much privacy the rounds have cost so far."""

from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor

from fedshvr.algorithms.aggregation import Average, Cohort, Normalized
from fedshvr.algorithms.privacy import Central
from fedshvr.compute.streams import stream
from fedshvr.errors import check
from fedshvr.federation.cohort import Cohorts
from fedshvr.federation.plan import Plan
from fedshvr.rounds.options import Method, ServerRule

Able = Callable[[int], list[int]]  # the clients of whom a round's are drawn


class Release:
    """The noise of each round, and the account of all; `algorithms/privacy.py` has the formulas."""

    def __init__(self, method: Method, plan: Plan, cohorts: Cohorts, able: Able) -> None:
        assert isinstance(method.privacy, Central)
        self.privacy, self.method, self.plan, self.cohorts, self.able = method.privacy, method, plan, cohorts, able
        objective, memory = method.objective, method.correction.memory
        # A client that remembers its rounds tells by its next move in which of them it was: then no draw is secret.
        self.remembers = bool(memory or objective.pseudo_labels or objective.widths(1, 1))
        self.counted, self.drawn, self.took_part = 0, Counter[tuple[int, int]](), torch.zeros(plan.clients).long()

    def begin(self, aggregation: Average, everybody: Cohort) -> None:
        """Coefficients that do not depend on the cohort: as if all took part, over the share that is drawn."""
        share = self.cohorts.size(len(everybody.clients)) / len(everybody.clients)
        coefficients = (aggregation.coefficients(everybody) / share).tolist()
        aggregation.coefficient = dict(zip(everybody.clients, coefficients, strict=True))
        self.deviation = self.privacy.deviation(max(coefficients))
        k, tau = everybody.clients[0], everybody.tau[0].item()
        self.kappa = self.plan.omega[k].item() / (self.method.local.eta * tau * coefficients[0])

    def add_noise(self, direction: Tensor, change: Tensor, round: int) -> None:
        """n to the direction and kappa n to the change of c, if there is one, in place."""
        generator = stream(self.cohorts.seed, "privacy", round)
        noise = self.deviation * torch.randn(len(direction), generator=generator, dtype=torch.float64)
        direction += noise.to(direction)
        if len(change):
            change += (self.kappa * noise).to(change)

    def epsilon(self, round: int) -> float:
        """Of all rounds to the end of this one; who was drawn follows from the seed, also after a resume."""
        for t in range(self.counted, round + 1):
            able = self.able(t)
            self.drawn[len(able), self.cohorts.size(len(able))] += 1
            self.took_part[self.cohorts.draw(able, t)] += 1
        self.counted = round + 1
        return self.privacy.epsilon({} if self.remembers else self.drawn, int(self.took_part.max()))

    def __str__(self) -> str:
        """What the account depends on: no part of a run may be under another."""
        told = {"clip": self.privacy.clip, "noise": self.privacy.noise, "participation": self.cohorts.participation}
        return ", ".join(f"{name}={v}" for name, v in (told | {"client_dropout": self.cohorts.client_dropout}).items())


def check_private(method: Method, plan: Plan, cohorts: Cohorts, rule: ServerRule, buffers: int) -> None:
    """Refuse what privacy=central cannot bound in this federation."""
    check(
        not buffers,
        "privacy=central: the network has batch statistics, which travel without noise; "
        "model must be one without batch norm (mlp, linear)",
    )
    check(
        not cohorts.stragglers,
        f"stragglers={cohorts.stragglers}: must be 0 with privacy=central, because who is slow depends on who is drawn",
    )
    check(
        rule.on_client_error == "fail",
        f"on_client_error={rule.on_client_error}: must be fail with privacy=central, because who is left out "
        "depends on the clients' data, and the others' weights on who is left out",
    )
    check(
        cohorts.attack == "none",
        f"attack={cohorts.attack}: must be none with privacy=central, because clients clip their own moves",
    )
    steps = {tau[k] for tau in (plan.tau, plan.tau_labeled) for k in plan.able if tau[k]}
    one_sum = isinstance(method.aggregation, Normalized) or len(steps) == 1
    check(
        one_sum or not method.correction.server_memory,
        f"privacy=central: with {min(steps)} to {max(steps)} local steps c and theta would follow from two sums, each "
        "with noise of its own; algorithm/aggregation must be normalized",
    )
