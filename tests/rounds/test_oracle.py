"""The framework does what the papers' formulas say: theta, client memory and labels agree with tests/oracle.py."""

import math
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import oracle
import pytest
import torch
from oracle import Data, FedAvg, FedNova, FedProx, FedSHVR, FedSHVRPartial, Local, Scaffold, ScaffoldI, Soft
from tiny import train
from torch import Tensor

from fedshvr.algorithms.aggregation import Average, Normalized
from fedshvr.algorithms.corrections import VRLSGD, ControlVariates, Correction, Proximal
from fedshvr.algorithms.objectives.ramp import Ramp
from fedshvr.algorithms.objectives.soft_pseudo_label import SoftPseudoLabel
from fedshvr.algorithms.objectives.supervised import Supervised
from fedshvr.compute.streams import Draws
from fedshvr.data import batches
from fedshvr.data.augment import Augment
from fedshvr.data.holdings import Federation
from fedshvr.data.sources import ImageData
from fedshvr.federation.partition import Split
from fedshvr.federation.plan import LocalSGD, make_plan
from fedshvr.models.mlp import MLP
from fedshvr.rounds import options
from fedshvr.rounds.federated import Federated

CLASSES, SIDE, ROUNDS, SEED = 3, 3, 4, 0
LABELED, UNLABELED = (5, 8, 12, 3), (14, 30, 9, 21)
LOCAL = Local(eta=0.3, E=1.5, B_l=3, B_u=8)
SOFT = Soft(alpha0=1.0, alpha1=0.75, alpha2=0.1, ramp=4.0)  # alpha0 = 0, 0.375, 0.75, 1 in the four rounds
PARTIAL = 0.5
TOLERANCE = 1e-12


@dataclass(frozen=True)
class Method:
    """The same method twice: the oracle's class, and the framework's parts."""

    formula: type[FedAvg]
    correction: Correction = field(default_factory=Correction)
    aggregation: Average = field(default_factory=Average)
    soft: bool = False
    partial: type[FedAvg] | None = None  # the oracle's class when a part of the clients take part, if it is another


METHODS = {
    "fed_shvr": Method(FedSHVR, ControlVariates(), Normalized(), soft=True, partial=FedSHVRPartial),
    "fed_sh": Method(FedNova, Correction(), Normalized(), soft=True),
    "fed_svr": Method(oracle.VRLSGD, VRLSGD(), soft=True),
    "fedavg": Method(FedAvg),
    "fedprox": Method(FedProx, Proximal(FedProx.mu)),
    "fednova": Method(FedNova, Correction(), Normalized()),
    "scaffold_I": Method(ScaffoldI, ControlVariates("I")),
    "scaffold_II": Method(Scaffold, ControlVariates("II")),
    "vrl_sgd": Method(oracle.VRLSGD, VRLSGD()),
    "soft_scaffold_I": Method(ScaffoldI, ControlVariates("I"), soft=True),
}
MOMENTUM_ALLOWED = ("fed_sh", "fedavg", "fedprox", "fednova")


@dataclass(frozen=True)
class Case:
    """A run."""

    method: str
    participation: float = 1.0
    local: Local = LOCAL
    sampling: str = "replacement"
    soft: Soft = SOFT
    eta_g: float = 1.0


@cache
def clients() -> Data:
    """Noise around one pattern a class, dealt at random to unequal clients."""
    rng = torch.Generator().manual_seed(3)
    total = sum(LABELED) + sum(UNLABELED)
    y = torch.arange(total) % CLASSES
    pattern = torch.randn(CLASSES, SIDE**2, generator=rng, dtype=torch.float64)
    x = pattern[y] + torch.randn(total, SIDE**2, generator=rng, dtype=torch.float64)
    sets = torch.randperm(total, generator=rng).split([*LABELED, *UNLABELED])
    return Data(x, y, list(sets[: len(LABELED)]), list(sets[len(LABELED) :]), CLASSES)


def network() -> MLP:
    torch.manual_seed(1)
    return MLP((1, SIDE, SIDE), CLASSES, hidden=[5]).double()


def federated(case: Case, engine: str = "sequential") -> Federated:
    """The framework's run, not trained yet; every view of an image is the image itself."""
    method, data, a, soft = METHODS[case.method], clients(), case.local, case.soft
    ramped = SoftPseudoLabel(
        soft.alpha0,
        soft.alpha1,
        soft.alpha2,
        Ramp(soft.ramp, start=soft.start, by=soft.by),
        exponent=soft.exponent,
        relabel=soft.relabel,
    )
    objective = ramped if method.soft else Supervised()
    local = LocalSGD(a.eta, a.E, a.B_l, a.B_u, momentum=a.rho, weight_decay=a.decay, sampling=case.sampling)
    x = data.x.view(-1, 1, SIDE, SIDE)
    images = ImageData("oracle", x, data.y, x[:3], data.y[:3], tuple("abc"))
    splits = [Split(L.numpy(), U.numpy(), tuple(range(CLASSES))) for L, U in zip(data.L, data.U, strict=True)]
    return Federated(
        network(),
        Federation(images, splits, make_plan(splits, local, objective.uses_unlabeled)),
        options.Method(objective, method.correction, method.aggregation, local),
        {"clean": Augment(), "weak": Augment(), "strong": Augment()},
        **options.grouped(
            optimizer=lambda params: torch.optim.SGD(params, lr=case.eta_g),
            seed=SEED,
            participation=case.participation,
            engine=engine,
        ),
    )


@cache
def trained(case: Case, engine: str = "sequential") -> Federated:
    return train(federated(case, engine), ROUNDS)


def truth(case: Case, formula: type[FedAvg], module: Federated) -> FedAvg:
    """The oracle's run, with the framework's cohorts and samples."""
    data, local = clients(), case.local

    def draw(round: int, k: int, steps: int) -> tuple[Tensor, Tensor]:
        choices = module.bench.batcher.choose(Draws(SEED, round, torch.tensor([k])), steps)
        xi, zeta = choices.labeled[0], choices.unlabeled[0]
        assert xi.shape == (steps, local.B_l)
        assert set(xi.flatten().tolist()) <= set(data.L[k].tolist())
        assert set(zeta.flatten().tolist()) <= set(data.U[k].tolist())
        return xi, zeta

    theta = torch.cat([p.detach().flatten() for p in network().parameters()])
    made = formula(data, local, theta, case.soft if METHODS[case.method].soft else None, case.eta_g)
    made.run(ROUNDS, module.cohort, draw)
    return made


def differences(case: Case, module: Federated, right: FedAvg) -> dict[str, float]:
    """The largest difference between framework and formula in everything that both keep."""
    pairs = {"theta": (module.theta.detach(), right.theta)}
    tables = module.bench.tables
    if "d_k" in tables:
        pairs["d_k"] = (tables["d_k"].rows, right.d_k)
    if "c_k" in tables:
        assert module.server.c is not None
        c, c_k = module.server.c, tables["c_k"].rows
        pairs |= {"c_k": (c_k, right.c_k), "c": (c, right.c), "c - c_k": (c - c_k, right.d_k)}
    if METHODS[case.method].soft:
        took_part = {k for t in range(ROUNDS) for k in module.cohort(t)}
        samples = torch.cat([right.data.U[k] for k in took_part])
        pairs["v"] = (module.bench.pool.v[samples], right.v[samples])
    return {name: (ours - theirs).abs().max().item() for name, (ours, theirs) in pairs.items()}


def assert_agreement(case: Case, *engines: str) -> None:
    method = METHODS[case.method]
    formula = method.partial if method.partial and case.participation < 1 else method.formula
    right = truth(case, formula, trained(case, engines[0]))
    for engine in engines:
        found = differences(case, trained(case, engine), right)
        assert all(difference <= TOLERANCE for difference in found.values()), (engine, found)


def test_the_clients_are_unequal_and_come_and_go() -> None:
    """tau_k and omega_k differ by client and by objective; with half of the clients some miss rounds and come back."""
    module = federated(Case("fed_shvr", PARTIAL))
    assert module.plan.tau == [2, 5, 6, 3]
    assert federated(Case("fedavg")).plan.tau == [2, 4, 6, 1]
    np.testing.assert_allclose(module.plan.omega.numpy(), np.array([19, 38, 21, 24]) / 102, rtol=1e-15)
    present = ["".join("x" if k in module.cohort(t) else "." for t in range(ROUNDS)) for k in range(len(LABELED))]
    assert all("x" in row for row in present), present
    assert any("x.x" in row or "x..x" in row for row in present), present


def test_the_runs_move_theta_the_variates_and_the_labels() -> None:
    """Agreement on numbers that stay where they start would mean nothing."""
    right = truth(Case("fed_shvr"), FedSHVR, trained(Case("fed_shvr")))
    start = torch.cat([p.detach().flatten() for p in network().parameters()])
    assert (right.theta - start).abs().max() > 0.1
    assert right.d_k.abs().amax(1).min() > 0.01
    assert (right.v[right.data.U[0]].amax(1) - 1 / CLASSES).max() > 0.1


@pytest.mark.parametrize("participation", [1.0, PARTIAL], ids=["full", "partial"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_its_formula_in_both_engines(method: str, participation: float) -> None:
    assert_agreement(Case(method, participation), "sequential", "vectorized")


@pytest.mark.parametrize(("participation", "engine"), [(1.0, "vectorized"), (PARTIAL, "sequential")])
@pytest.mark.parametrize("method", METHODS)
def test_with_weight_decay_momentum_and_shuffled_samples(method: str, participation: float, engine: str) -> None:
    """Momentum where it is allowed: it starts at 0 in every round, and FedNova's a_k counts it."""
    local = replace(LOCAL, decay=0.05, rho=0.6 if method in MOMENTUM_ALLOWED else 0.0)
    assert_agreement(Case(method, participation, local, "shuffle"), engine)


@pytest.mark.parametrize(
    "soft",
    [replace(SOFT, exponent="current"), replace(SOFT, alpha1=0.0), replace(SOFT, ramp=0.0)],
    ids=["ramped exponent", "hard labels", "no ramp"],
)
def test_fed_shvr_with_other_labels(soft: Soft) -> None:
    assert_agreement(Case("fed_shvr", soft=soft), "sequential")


@pytest.mark.parametrize("alpha1", [0.75, 0.0])
@pytest.mark.parametrize("epochs", [1.5, 3])
def test_fed_shvr_with_labels_renewed_each_epoch(epochs: float, alpha1: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients begin their epochs at different steps, also in the midst of what would be gathered at once."""
    local, soft = replace(LOCAL, E=epochs), replace(SOFT, alpha1=alpha1, relabel="epoch")
    assert_agreement(Case("fed_shvr", PARTIAL, local, soft=soft), "sequential", "vectorized")
    monkeypatch.setattr(batches, "BLOCK_BYTES", 1)  # a block a step
    assert_agreement(Case("fed_shvr", 1.0, local, soft=soft), "sequential", "vectorized")
    seldom = truth(Case("fed_shvr", soft=SOFT, local=local), FedSHVR, trained(Case("fed_shvr", local=local)))
    assert max(differences(Case("fed_shvr"), trained(Case("fed_shvr", 1.0, local, soft=soft)), seldom).values()) > 1e-3


@pytest.mark.parametrize("method", ["fed_shvr", "soft_scaffold_I"])
@pytest.mark.parametrize(
    "soft",
    [
        replace(SOFT, ramp=7.0, start=0.3, by="epoch"),
        replace(SOFT, ramp=7.0, by="step"),
        replace(SOFT, ramp=7.0, start=0.3, by="step", exponent="current", relabel="epoch"),
    ],
    ids=["epoch", "step", "exponent"],
)
def test_alpha0_that_grows_within_a_round(soft: Soft, method: str) -> None:
    """Clients of unequal steps are at different values in the same step; the last round is beyond the ramp."""
    local = replace(LOCAL, E=2.5)
    case = Case(method, PARTIAL, local, soft=soft)
    assert_agreement(case, "sequential", "vectorized")
    by_round = trained(replace(case, soft=replace(soft, by="round")))
    assert (by_round.theta - trained(case).theta).abs().max() > 1e-3
    assert isinstance(trained(case).method.objective.alpha0, float)  # for the log: that of the start of the round


@pytest.mark.parametrize("participation", [1.0, PARTIAL], ids=["full", "partial"])
def test_scaffold_with_a_server_step(participation: float) -> None:
    """x <- x + eta_g mean_S (y_k - x); c and c_k do not know eta_g."""
    assert_agreement(Case("scaffold_II", participation, eta_g=0.8), "sequential")


# ---- the oracle can fail: common mistakes, each of which shows -------------------------------------------------------


class WrongSign(FedSHVR):
    def d(self, k: int) -> Tensor:
        return -self.d_k[k]


class NeverWrittenBack(FedSHVR):
    def remember(self, theta_k: dict[int, Tensor], theta_new: Tensor) -> None:
        pass


class OwnTauForTauBar(FedSHVR):
    """Fed-SVR's rule in Fed-SHVR."""

    def remember(self, theta_k: dict[int, Tensor], theta_new: Tensor) -> None:
        for k in theta_k:
            self.d_k[k] += (theta_k[k] - theta_new) / (self.local.eta * self.tau[k])


class TauBarForOwnTau(FedSHVR):
    """Delta_k by everybody's mean steps."""

    def Delta(self, k: int, theta_k: Tensor) -> Tensor:
        return (self.theta - theta_k) / (self.local.eta * sum(self.tau) / len(self.tau))


class OldLabels(FedSHVR):
    """Labels made in the first round only."""

    def label(self, U: Tensor, theta: Tensor | None = None) -> None:
        if self.v[U].isnan().any():
            super().label(U, theta)


class StepsRoundedUp(FedNova):
    """The server divides by ceil instead of floor."""

    def a(self, k: int) -> float:
        by_unlabelled = math.ceil(len(self.data.U[k]) * self.local.E / self.local.B_u)
        return max(by_unlabelled, math.ceil(len(self.data.L[k]) * self.local.E / self.local.B_l))


class LabelledWeights(FedSHVR):
    def weights(self, S: list[int]) -> dict[int, float]:
        return {k: len(self.data.L[k]) / sum(len(self.data.L[j]) for j in S) for k in S}


class NoGradientThroughR2(FedSHVR):
    def r2(self, f: Tensor) -> Tensor:
        return super().r2(f).detach()


class NotRenormalised(FedSHVRPartial):
    def weights(self, S: list[int]) -> dict[int, float]:
        return {k: self.omega[k] for k in S}


class CohortWeightsInC(FedSHVRPartial):
    """c divided by |S|, not by N."""

    def remember(self, theta_k: dict[int, Tensor], theta_new: Tensor) -> None:
        omega, w = self.omega, self.weights(list(theta_k))
        self.omega = [w.get(k, 0.0) for k in range(len(omega))]
        super().remember(theta_k, theta_new)
        self.omega = omega


class MomentumNotCounted(FedNova):
    def a(self, k: int) -> float:
        return float(self.tau[k])


class GradientAtTheClient(ScaffoldI):
    def variate(self, k: int, theta_k: Tensor) -> Tensor:
        return self.gradient(theta_k, self.data.L[k], self.data.U[k])


class TauBarInVRL(oracle.VRLSGD):
    """Fed-SHVR's rule in Fed-SVR."""

    def remember(self, theta_k: dict[int, Tensor], theta_new: Tensor) -> None:
        FedSHVR.remember(self, theta_k, theta_new)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "case"),
    [
        (WrongSign, Case("fed_shvr")),
        (NeverWrittenBack, Case("fed_shvr")),
        (OwnTauForTauBar, Case("fed_shvr")),
        (TauBarForOwnTau, Case("fed_shvr")),
        (LabelledWeights, Case("fed_shvr")),
        (OldLabels, Case("fed_shvr")),
        (NoGradientThroughR2, Case("fed_shvr")),
        (NotRenormalised, Case("fed_shvr", PARTIAL)),
        (CohortWeightsInC, Case("fed_shvr", PARTIAL)),
        (FedSHVR, Case("fed_shvr", PARTIAL)),  # the d_k form needs full participation
        (StepsRoundedUp, Case("fed_sh")),
        (TauBarInVRL, Case("fed_svr")),
        (MomentumNotCounted, Case("fednova", local=replace(LOCAL, rho=0.6))),
        (GradientAtTheClient, Case("scaffold_I")),
        (Scaffold, Case("scaffold_I")),
        (FedAvg, Case("fedprox")),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else value.method,
)
def test_a_wrong_rule_differs(wrong: type[FedAvg], case: Case) -> None:
    """theta is off by more than 1e-3, a billion times what the right rule is allowed."""
    module = trained(case)
    assert differences(case, module, truth(case, wrong, module))["theta"] > 1e-3
