"""Clients that fail and clients that are slow: who is left, their weights and steps, and what follows from them."""

from collections.abc import Callable

import numpy as np
import pytest
import tiny
import torch
from conftest import SMALL
from methods import MADE
from quadratics import solve

from fedshvr.algorithms.aggregation import Average, Normalized
from fedshvr.algorithms.corrections import VRLSGD, ControlVariates, Correction, Proximal
from fedshvr.errors import UserError
from fedshvr.federation.cohort import Cohorts
from fedshvr.rounds.federated import Federated

A, B, TAU, ETA = [1.0, 2.0, 0.5, 1.5], [3.0, -1.0, 7.0, 0.5], [2, 5, 9, 4], 0.05
UNRELIABLE = {"client_dropout": 0.4, "stragglers": 0.5}


def test_every_drawn_client_fails_with_the_probability_asked_for() -> None:
    cohorts = Cohorts(seed=3, client_dropout=0.3)
    left = [cohorts.draw(list(range(10)), round) for round in range(500)]
    assert np.mean([len(cohort) for cohort in left]) == pytest.approx(7, abs=0.2)
    assert np.mean([4 in cohort for cohort in left]) == pytest.approx(0.7, abs=0.06)
    assert left == [cohorts.draw(list(range(10)), round) for round in range(500)]


def test_one_client_remains() -> None:
    left = [Cohorts(seed=0, client_dropout=0.999, participation=0.5).draw([2, 5, 7, 9], t) for t in range(200)]
    assert {len(cohort) for cohort in left} == {1}
    assert {k for (k,) in left} == {2, 5, 7, 9}


def test_failing_draws_from_the_same_clients_as_without() -> None:
    sure, unsure = (Cohorts(seed=1, participation=0.5, client_dropout=p) for p in (0.0, 0.5))
    for round in range(20):
        assert set(unsure.draw(list(range(12)), round)) <= set(sure.draw(list(range(12)), round))


def test_a_share_of_the_cohort_makes_any_number_of_its_steps_alike() -> None:
    cohorts, tau, cohort = Cohorts(seed=0, stragglers=0.5), [8, 1, 4, 100], [0, 2, 3]
    made = [cohorts.steps(tau, cohort, round) for round in range(1000)]
    assert all(steps[1] == 1 for steps in made)
    few = [sum(a < b for a, b in zip(steps, tau, strict=True)) for steps in made]
    assert max(few) == 2  # floor(0.5 * 3 + 0.5)
    counts = np.bincount([steps[2] for steps in made], minlength=5)[1:]  # 2/3 of the rounds slow, 1 .. 4 alike
    np.testing.assert_allclose(counts / 1000, [1 / 6, 1 / 6, 1 / 6, 1 / 3 + 1 / 6], atol=0.065)  # 4 std


def test_without_stragglers_the_steps_are_the_plans_own() -> None:
    tau = [3, 4]
    assert Cohorts(seed=0).steps(tau, [0, 1], 5) is tau
    assert Cohorts(seed=0, stragglers=0.2).steps(tau, [0, 1], 5) is tau  # 0.2 of two clients is none


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ({"client_dropout": 1.0}, "client_dropout=1.0: must be at least 0 and below 1"),
        ({"client_dropout": -0.1}, "client_dropout=-0.1: must be at least 0 and below 1"),
        ({"stragglers": 1.5}, "stragglers=1.5: must be between 0 and 1"),
    ],
)
def test_bad_values_are_refused(option: dict[str, float], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Cohorts(seed=0, **option)


def by_hand(module: Federated, rounds: int, normalized: bool) -> float:
    """x after these rounds: tau_k steps take x to b_k + (1 - eta a_k)^tau_k (x - b_k), w_k = omega_k / sum omega."""
    x, a, b, omega = 0.0, np.array(A), np.array(B), np.array(TAU) / sum(TAU)
    for t in range(rounds):
        S = module.cohort(t)
        tau = np.array(module.cohorts.steps(TAU, S, t))[S]
        w = omega[S] / omega[S].sum()
        move = (1 - (1 - ETA * a[S]) ** tau) * (x - b[S])
        x -= float((w * tau).sum() * (w * move / tau).sum() if normalized else (w * move).sum())
    return x


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("aggregation", [Average(), Normalized()], ids=["fedavg", "fednova"])
def test_weights_and_steps_by_hand(aggregation: Average, engine: str) -> None:
    module = solve(A, B, TAU, Correction(), aggregation, 6, engine=engine, **UNRELIABLE)
    assert len({len(module.cohort(t)) for t in range(6)}) > 1
    assert any(module.cohorts.steps(TAU, module.cohort(t), t) != TAU for t in range(6))
    assert module.theta.item() == pytest.approx(by_hand(module, 6, isinstance(aggregation, Normalized)), abs=1e-13)
    made = [sum(module.cohorts.steps(TAU, S, t)[k] for t in range(6) if k in (S := module.cohort(t))) for k in range(4)]
    assert module.server.done.tolist() == made
    assert module.plan.tau == TAU


def test_fednova_finds_the_common_minimum_at_any_number_of_steps_and_fedavg_too() -> None:
    """With one minimum for all, b_k = 2, both stay there; at unequal ones random steps leave neither a fixed point."""
    for aggregation in (Average(), Normalized()):
        module = solve(A, [2.0] * 4, TAU, Correction(), aggregation, 60, eta=0.2, stragglers=1.0)
        assert module.theta.item() == pytest.approx(2.0, abs=1e-10)


def test_fednova_with_small_steps_is_unbiased_by_slow_clients_and_fedavg_is_not() -> None:
    """eta -> 0: FedNova follows sum_k w_k grad F_k whatever the tau_k, FedAvg weighs by the steps that were made."""
    a, b, tau, eta = [1.0, 1.0], [0.0, 1.0], [40, 40], 1e-4
    moved = {}
    for aggregation in (Average(), Normalized()):
        module = solve(a, b, tau, Correction(), aggregation, 1, eta=eta, stragglers=0.5)
        steps = module.server.tau
        moved[type(aggregation)] = module.theta.item() / (eta * (steps[0] + steps[1]) / 2)
    assert sorted(steps)[1] == 40 > sorted(steps)[0]
    assert moved[Normalized] == pytest.approx(0.5, abs=2e-3)  # omega_1 (b_1 - 0)
    assert moved[Average] == pytest.approx(steps[1] / sum(steps), abs=2e-3)


@pytest.mark.parametrize(
    "aggregation", [Normalized(), pytest.param(Average(), marks=pytest.mark.slow)], ids=["fed_shvr", "scaffold"]
)
def test_control_variates_cancel_and_reach_the_optimum(aggregation: Average) -> None:
    weight = np.array(TAU) / sum(TAU) * np.array(A)
    module = solve(A, B, TAU, ControlVariates(), aggregation, 250, eta=0.1, **UNRELIABLE)
    assert module.theta.item() == pytest.approx((weight * np.array(B)).sum() / weight.sum(), abs=1e-8)
    assert module.row["sum_omega_d"] < 1e-12


def test_a_client_that_fails_remembers_what_it_did() -> None:
    before, after = (solve(A, B, TAU, ControlVariates(), Normalized(), t, client_dropout=0.5) for t in (3, 4))
    failed = [k for k in range(4) if k not in after.cohort(3)]
    c_k = [module.bench.tables["c_k"].rows[:, 0] for module in (before, after)]
    assert failed
    assert [k for k in range(4) if c_k[0][k] == c_k[1][k]] == failed


@pytest.mark.parametrize("correction", [Proximal(0.3), ControlVariates(), ControlVariates("I"), VRLSGD()])
def test_both_engines_agree(correction: Correction) -> None:
    aggregation = Normalized()
    one, many = (
        solve(A, B, TAU, correction, aggregation, 6, engine=e, **UNRELIABLE) for e in ("sequential", "vectorized")
    )
    assert many.theta.item() == pytest.approx(one.theta.item(), abs=1e-12)
    for name, table in one.bench.tables.items():
        torch.testing.assert_close(many.bench.tables[name].rows, table.rows, rtol=0, atol=1e-12)


@pytest.mark.parametrize("objective", ["soft_epoch", "soft_stepwise", "teacher_client"])
def test_labels_ramps_and_teachers_agree_on_both_engines(objective: str) -> None:
    """A straggler makes the first of its steps, with the labels and the alpha0 that they would have."""
    local = tiny.LocalSGD(0.1, 2, 3, 6)
    one, many = (
        tiny.fit(MADE[objective](), local=local, engine=e, stragglers=0.67) for e in ("sequential", "vectorized")
    )
    assert one.server.tau != one.plan.tau
    torch.testing.assert_close(many.theta, one.theta, rtol=0, atol=1e-12)


def test_resume_is_exact(train: Callable) -> None:
    overrides = [*SMALL, "client_dropout=0.3", "stragglers=0.5", "participation=0.75"]
    whole = train(*overrides, "rounds=4", folder="whole")
    train(*overrides, "rounds=2", folder="parts")
    parts = train(*overrides, "rounds=4", "ckpt_path=last", folder="parts")
    assert parts.theta == whole.theta
    assert parts.timeless == whole.timeless
