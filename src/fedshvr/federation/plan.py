"""Who holds what and works how long: each client's data, local steps tau_k and weight omega_k."""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import ceil, floor, inf

import torch
from torch import Tensor

from fedshvr.errors import check
from fedshvr.federation.partition import Split

WEIGHTINGS = ("samples", "labeled", "uniform")
STEPS = ("paper", "step_matched")
SAMPLINGS = ("replacement", "shuffle")
ROUNDINGS = ("floor", "ceil")


@dataclass(frozen=True)
class LocalSGD:
    """How every client trains: theta_k <- theta_k - eta (g + correction), `epochs` passes a round."""

    eta: float
    epochs: float
    batch_labeled: int
    batch_unlabeled: int
    momentum: float = 0.0
    weight_decay: float = 0.0
    sampling: str = "replacement"
    steps: str = "paper"
    rounding: str = "floor"

    def __post_init__(self) -> None:
        check(self.eta > 0, f"client.eta={self.eta}: must be positive")
        check(0 < self.epochs < inf, f"client.epochs={self.epochs}: must be positive and finite")
        for name in ("batch_labeled", "batch_unlabeled"):
            check(getattr(self, name) >= 1, f"client.{name}={getattr(self, name)}: must be at least 1")
        check(0 <= self.momentum < 1, f"client.momentum={self.momentum}: must be at least 0 and below 1")
        check(self.weight_decay >= 0, f"client.weight_decay={self.weight_decay}: must be at least 0")
        check(self.sampling in SAMPLINGS, f"client.sampling={self.sampling}: must be one of {', '.join(SAMPLINGS)}")
        check(self.steps in STEPS, f"client.steps={self.steps}: must be one of {', '.join(STEPS)}")
        check(self.rounding in ROUNDINGS, f"client.rounding={self.rounding}: must be one of {', '.join(ROUNDINGS)}")


class Sets:
    """Index sets of all clients as one flat tensor; client k's is flat[start[k] : start[k] + size[k]]."""

    def __init__(self, sets: list[Tensor]) -> None:
        self.flat = torch.cat(sets)
        self.size = torch.tensor([len(s) for s in sets])
        self.start = self.size.cumsum(0) - self.size

    def __getitem__(self, k: int) -> Tensor:
        return self.flat[self.start[k] : self.start[k] + self.size[k]]

    def or_else(self, other: "Sets") -> "Sets":
        """The same, with the other's set where one is empty."""
        return Sets([self[k] if n else other[k] for k, n in enumerate(self.size.tolist())])


@dataclass(frozen=True)
class Plan:
    """The federation before any work: index sets, tau (K,), omega (K,) summing to 1; 0 for who takes no part."""

    labeled: Sets
    unlabeled: Sets
    tau: list[int]
    tau_labeled: list[int]  # the steps of a round that counts the labelled data alone
    omega: Tensor

    @property
    def clients(self) -> int:
        return len(self.tau)

    @cached_property
    def able(self) -> list[int]:
        """The clients that can take part."""
        return self.omega.nonzero().flatten().tolist()

    @cached_property
    def with_labels(self) -> list[int]:
        """... if only labels count."""
        return ((self.omega > 0) & (self.labeled.size > 0)).nonzero().flatten().tolist()

    @cached_property
    def lacking(self) -> list[int]:
        """... that have no labelled or no unlabelled sample."""
        empty = (self.labeled.size == 0) | (self.unlabeled.size == 0)
        return ((self.omega > 0) & empty).nonzero().flatten().tolist()


def local_steps(labeled: int, unlabeled: int, local: LocalSGD) -> int:
    """tau_k = max(floor(M_k E / B_u), floor(N_k E / B_l)), at least 1.

    With rounding=ceil an epoch has ceil(N/B) batches, as of a loader that keeps the last one: tau_k = E ceil(N/B).
    """
    epochs = Fraction(str(local.epochs))  # as it is written: 100 * 0.58 / 29 is 2, and 1.99.. in floating point
    sets = ((unlabeled, local.batch_unlabeled), (labeled, local.batch_labeled))
    if local.rounding == "floor":
        return max(1, *(floor(n * epochs / batch) for n, batch in sets))
    return max(1, *(ceil(epochs * ceil(Fraction(n, batch))) for n, batch in sets))


def local_epoch(step: int, tau: int, epochs: float) -> int:
    """The epoch of its round, from 0, that a client of tau steps is in at this step: floor(E s / tau)."""
    return floor(step * Fraction(str(epochs)) / tau)


def epoch_starts(tau: int, epochs: float) -> dict[int, int]:
    """{first step: epoch} of a round's epochs 1, 2, ..: epoch e begins with the first step s with E s / tau >= e."""
    exact = Fraction(str(epochs))
    starts = {ceil(e * tau / exact): e for e in range(1, ceil(exact))}
    return {step: e for step, e in starts.items() if step < tau}


def make_plan(
    splits: list[Split],
    local: LocalSGD,
    uses_unlabeled: bool = True,
    reveal_labels: bool = False,
    weighting: str = "samples",
) -> Plan:
    """Steps and weights of each client.

    A method that ignores the unlabelled data takes the steps of its labelled data alone (the paper's FedAvg: 3 a round
    for 60 labels), or as many as a semi-supervised one if local.steps is step_matched. `reveal_labels` makes all data
    labelled. The weights are (N_k + M_k)/(N + M) for every method alike, unless `weighting` says otherwise. Who has
    nothing to learn from, or no weight, takes no part: tau_k = omega_k = 0, and the others' weights sum to 1. So is a
    supervised method run in the literature on clients of which some have no label: on those that have.
    """
    check(weighting in WEIGHTINGS, f"weighting={weighting}: must be one of {', '.join(WEIGHTINGS)}")
    labeled = [torch.from_numpy(s.labeled) for s in splits]
    unlabeled = [torch.from_numpy(s.unlabeled) for s in splits]
    if reveal_labels:
        labeled = [torch.cat(pair).sort().values for pair in zip(labeled, unlabeled, strict=True)]
        unlabeled = [u[:0] for u in unlabeled]
    known = torch.tensor([len(x) for x in labeled], dtype=torch.float64)
    total = known + torch.tensor([len(u) for u in unlabeled], dtype=torch.float64)
    counted = {"samples": total, "labeled": known, "uniform": torch.ones_like(total)}[weighting]
    omega = _weights(torch.where((total if uses_unlabeled else known) > 0, counted, 0), uses_unlabeled, weighting)
    tau = [local_steps(len(x), len(u), local) for x, u in zip(labeled, unlabeled, strict=True)]
    tau_labeled = tau if local.steps == "step_matched" else [local_steps(len(x), 0, local) for x in labeled]
    taus = [[t if w else 0 for t, w in zip(steps, omega.tolist(), strict=True)] for steps in (tau, tau_labeled)]
    plan = Plan(Sets(labeled), Sets(unlabeled), taus[not uses_unlabeled], taus[1], omega)
    _check_sizes(plan, local, uses_unlabeled)
    return plan


def _weights(counted: Tensor, uses_unlabeled: bool, weighting: str) -> Tensor:
    """omega_k, in proportion to what is counted."""
    check(
        uses_unlabeled or bool(counted.any()), "algorithm/objective: it learns from labels alone, but no client has one"
    )
    check(bool(counted.any()), f"weighting={weighting}: no client has a label; must be samples or uniform")
    return counted / counted.sum()


def _check_sizes(plan: Plan, local: LocalSGD, uses_unlabeled: bool) -> None:
    """Everybody has a sample, somebody an unlabelled one if they are used, and shuffled batches fit into each set."""
    sizes = plan.labeled.size + plan.unlabeled.size
    k = int(sizes.argmin())
    check(bool(sizes[k]), f"client {k} has no sample: the partition must give every client at least one")
    wanted = [("labeled", plan.labeled.size, local.batch_labeled)]
    if uses_unlabeled:
        wanted.append(("unlabeled", plan.unlabeled.size, local.batch_unlabeled))
        check(
            bool(plan.unlabeled.size.any()), "algorithm/objective: no client has an unlabelled sample; use supervised"
        )
    for name, sizes, batch in wanted:
        k = int(torch.where(sizes > 0, sizes, sizes.max() + 1).argmin())
        smallest = int(sizes[k])
        check(
            local.sampling == "replacement" or batch <= smallest or not smallest,
            f"client.batch_{name}={batch}: client.sampling=shuffle needs at most {smallest}, "
            f"the {name} samples of client {k}",
        )
