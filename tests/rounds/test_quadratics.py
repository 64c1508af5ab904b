"""Closed forms in float64: fixed points on quadratic clients with unequal steps, and two rounds by hand."""

import numpy as np
import pytest
import torch
from quadratics import solve

from fedshvr.algorithms.aggregation import Average, Normalized
from fedshvr.algorithms.corrections import VRLSGD, ControlVariates, Correction, Proximal
from fedshvr.algorithms.grouped import Grouped
from fedshvr.algorithms.robust import Median, TrimmedMean
from fedshvr.errors import UserError
from fedshvr.rounds.federated import Federated

A, B, TAU, ETA = [1.0, 2.0, 0.5], [3.0, -1.0, 7.0], [2, 5, 9], 0.05
OMEGA = np.array(TAU) / sum(TAU)
ROUNDS = 120


def value(module: Federated) -> float:
    return module.theta.item()


def optimum() -> float:
    weight = OMEGA * np.array(A)
    return float((weight * np.array(B)).sum() / weight.sum())


def fixed_point(coefficient: np.ndarray) -> float:
    """tau_k steps contract x - b_k by q_k = (1 - eta a_k)^tau_k, so x* = sum s_k (1 - q_k) b_k / sum s_k (1 - q_k)."""
    moved = coefficient * (1 - (1 - ETA * np.array(A)) ** np.array(TAU))
    return float((moved * np.array(B)).sum() / moved.sum())


def test_fedavg_reaches_its_biased_fixed_point() -> None:
    module = solve(A, B, TAU, Correction(), Average(), ROUNDS)
    assert value(module) == pytest.approx(fixed_point(OMEGA), abs=1e-10)
    assert abs(value(module) - optimum()) > 0.1


def test_fednova_reaches_its_biased_fixed_point() -> None:
    module = solve(A, B, TAU, Correction(), Normalized(), ROUNDS)
    assert value(module) == pytest.approx(fixed_point(OMEGA / np.array(TAU)), abs=1e-10)
    assert abs(value(module) - optimum()) > 0.01


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("aggregation", [Normalized(), Average()], ids=["fed_shvr", "scaffold"])
def test_control_variates_reach_the_optimum(option: str, aggregation: Average) -> None:
    module = solve(A, B, TAU, ControlVariates(option), aggregation, ROUNDS)
    assert value(module) == pytest.approx(optimum(), abs=1e-10)
    assert module.row["sum_omega_d"] < 1e-12


def test_control_variates_reach_the_optimum_with_a_part_of_the_clients() -> None:
    module = solve(A, B, TAU, ControlVariates(), Normalized(), 300, participation=0.67)
    assert value(module) == pytest.approx(optimum(), abs=1e-8)
    assert module.row["sum_omega_d"] < 1e-12


def test_proximal_fixed_point() -> None:
    """With g + mu (x_k - x) the local map is affine; at the fixed point the weighted moves cancel."""
    mu = 0.7
    module = solve(A, B, TAU, Proximal(mu), Average(), ROUNDS)
    slopes, x = [], value(module)
    for a, b, tau, omega in zip(A, B, TAU, OMEGA, strict=True):
        x_k = x
        for _ in range(tau):
            x_k -= ETA * (a * (x_k - b) + mu * (x_k - x))
        slopes.append(omega * (x - x_k))
    assert sum(slopes) == pytest.approx(0, abs=1e-12)


def test_fednova_normalises_momentum() -> None:
    """a_k sums the buffer's responses to a unit gradient; the fixed point has sum_k omega_k (x - x_k) / a_k = 0."""
    rho = 0.5
    module = solve(A, B, TAU, Correction(), Normalized(), ROUNDS, momentum=rho)
    x, total = value(module), 0.0
    for a, b, tau, omega in zip(A, B, TAU, OMEGA, strict=True):
        x_k, m, unit, a_k = x, 0.0, 0.0, 0.0
        for _ in range(tau):
            m = rho * m + a * (x_k - b)
            x_k -= ETA * m
            unit = rho * unit + 1
            a_k += unit
        total += omega * (x - x_k) / a_k
    assert total == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_fednova_with_a_proximal_pull_by_hand(engine: str) -> None:
    """x_k = b_k s_k (1 - (1 - eta s)^tau) with s = a_k + mu, s_k = a_k/s; a_k^nova = (1 - (1 - eta mu)^tau)/(eta mu).

    x' = tau_bar sum_k omega_k x_k / a_k^nova, with tau_bar = sum_k omega_k a_k^nova or sum_k omega_k tau_k.
    """
    mu, tau = 0.7, np.array(TAU)
    s = np.array(A) + mu
    x_k = np.array(B) * np.array(A) / s * (1 - (1 - ETA * s) ** tau)
    nova = (1 - (1 - ETA * mu) ** tau) / (ETA * mu)
    for tau_bar, counted in (("effective", nova), ("steps", tau)):
        module = solve(A, B, TAU, Proximal(mu), Normalized(tau_bar), 1, engine=engine)
        expected = (OMEGA * counted).sum() * (OMEGA * x_k / nova).sum()
        assert value(module) == pytest.approx(expected, abs=1e-14)


def test_fednova_is_fedprox_at_equal_steps() -> None:
    """... with tau_bar "effective"; "steps" undoes the shortening by the pull, here tau_k / a_k."""
    fedprox = solve(A, B, [3, 3, 3], Proximal(0.7), Average(), 1)
    shorter = (1 - (1 - ETA * 0.7) ** 3) / (ETA * 0.7) / 3
    assert value(solve(A, B, [3, 3, 3], Proximal(0.7), Normalized(), 1)) == pytest.approx(value(fedprox), abs=1e-14)
    longer = value(solve(A, B, [3, 3, 3], Proximal(0.7), Normalized("steps"), 1))
    assert longer == pytest.approx(value(fedprox) / shorter, abs=1e-14)


def test_an_unknown_tau_bar_is_refused() -> None:
    with pytest.raises(UserError, match="tau_bar=tau: must be one of effective, steps"):
        Normalized("tau")


def test_one_round_of_fed_shvr_by_hand() -> None:
    """eta = 0.1, x = 0, a = (1, 2, 1), b = (1, 2, -3), tau = (1, 2, 1), omega = (1/4, 1/2, 1/4).

    Round 1 (d = 0). Client 0: g = -1, x_0 = 0.1, Delta_0 = -1.
      Client 1: g = -4, x = 0.4; g = 2 (0.4 - 2) = -3.2, x_1 = 0.72; Delta_1 = -0.72/0.2 = -3.6.
      Client 2: g = 3, x_2 = -0.3, Delta_2 = 3.
      tau_bar = 1/4 + 1 + 1/4 = 1.5; sum omega Delta = -0.25 - 1.8 + 0.75 = -1.3; x = 0 + 0.1 * 1.5 * 1.3 = 0.195.
      d_k = (0 - 0.195)/0.15 - Delta_k = -1.3 - Delta_k = (-0.3, 2.3, -4.3); sum omega d = -0.075 + 1.15 - 1.075 = 0.
    Round 2. Client 0: g + d = -0.805 - 0.3 = -1.105, x_0 = 0.3055, Delta_0 = -1.105.
      Client 1: -3.61 + 2.3 = -1.31, x = 0.326; 2 (0.326 - 2) + 2.3 = -1.048, x_1 = 0.4308; Delta_1 = -1.179.
      Client 2: 3.195 - 4.3 = -1.105, x_2 = 0.3055, Delta_2 = -1.105.
      sum omega Delta = -0.27625 - 0.5895 - 0.27625 = -1.142; x = 0.195 + 0.15 * 1.142 = 0.3663.
      d_k <- d_k - 1.142 - Delta_k = (-0.337, 2.337, -4.337).
    """
    a, b, tau = [1.0, 2.0, 1.0], [1.0, 2.0, -3.0], [1, 2, 1]
    for rounds, x, d in ((1, 0.195, [-0.3, 2.3, -4.3]), (2, 0.3663, [-0.337, 2.337, -4.337])):
        module = solve(a, b, tau, ControlVariates(), Normalized(), rounds, eta=0.1)
        c_k = module.bench.tables["c_k"].get([0, 1, 2])[:, 0]
        assert value(module) == pytest.approx(x, abs=1e-14)
        np.testing.assert_allclose((module.server.c - c_k).numpy(), d, atol=1e-13)


def test_no_proximal_pull_is_fedavg_bit_for_bit() -> None:
    fedavg = solve(A, B, TAU, Correction(), Average(), 5)
    assert torch.equal(solve(A, B, TAU, Proximal(0.0), Average(), 5).theta, fedavg.theta)


def test_normalized_is_average_at_equal_steps() -> None:
    average = solve(A, B, [3, 3, 3], Correction(), Average(), 5)
    normalized = solve(A, B, [3, 3, 3], Correction(), Normalized(), 5)
    assert value(normalized) == pytest.approx(value(average), abs=1e-14)


def test_the_variance_reduced_methods_agree_at_equal_steps_and_weights() -> None:
    shvr, scaffold, vrl = (
        solve(A, B, [4, 4, 4], correction, aggregation, 7)
        for correction, aggregation in (
            (ControlVariates(), Normalized()),
            (ControlVariates("II"), Average()),
            (VRLSGD(), Average()),
        )
    )
    assert value(scaffold) == pytest.approx(value(shvr), abs=1e-13)
    assert value(vrl) == pytest.approx(value(shvr), abs=1e-13)
    d = shvr.server.c - shvr.bench.tables["c_k"].get([0, 1, 2])
    np.testing.assert_allclose(vrl.bench.tables["d_k"].get([0, 1, 2]).numpy(), d.numpy(), atol=1e-12)


def one_round(tau: list[int]) -> np.ndarray:
    """x_k of each client after its first round from x = 0."""
    q = (1 - ETA * np.array(A)) ** np.array(tau)
    return np.array(B) * (1 - q)


def test_median_and_trimmed_mean_by_hand() -> None:
    x_k = one_round(TAU)
    assert value(solve(A, B, TAU, Correction(), Median(), 1)) == pytest.approx(np.median(x_k), abs=1e-14)
    middle = np.sort(x_k)[1]
    assert value(solve(A, B, TAU, Correction(), TrimmedMean(0.34), 1)) == pytest.approx(middle, abs=1e-14)
    assert value(solve(A, B, TAU, Correction(), TrimmedMean(0.0), 1)) == pytest.approx(x_k.mean(), abs=1e-14)


def test_median_of_an_even_number_is_the_mean_of_the_middle() -> None:
    moves = torch.tensor([[1.0], [2.0], [4.0], [100.0]])
    assert Median().combine(moves).item() == 3.0


def test_grouping_by_hand() -> None:
    """Two rounds: groups average their own clients and go on from there; the server has the mean of the groups."""
    grouped = Grouped(2)
    starts = np.zeros(3)
    for round in range(2):
        group_of = np.array(grouped.assign(3, 0, round))
        q = (1 - ETA * np.array(A)) ** np.array(TAU)
        x_k = np.array(B) + q * (starts - np.array(B))
        averages = np.array([np.average(x_k[group_of == g], weights=OMEGA[group_of == g]) for g in (0, 1)])
        starts = averages[group_of]
        module = solve(A, B, TAU, Correction(), Grouped(2), round + 1)
        assert value(module) == pytest.approx(averages.mean(), abs=1e-14)
        np.testing.assert_allclose(module.server.group_models[:, 0].numpy(), averages, atol=1e-14)


def test_one_group_is_fedavg() -> None:
    fedavg = solve(A, B, TAU, Correction(), Average(), 5)
    assert value(solve(A, B, TAU, Correction(), Grouped(1), 5)) == pytest.approx(value(fedavg), abs=1e-13)


def test_grouping_refuses_control_variates() -> None:
    with pytest.raises(UserError, match="grouping starts clients from different models"):
        solve(A, B, TAU, ControlVariates(), Grouped(2), 1)


@pytest.mark.parametrize("correction", [Correction(), Proximal(0.3), ControlVariates(), ControlVariates("I"), VRLSGD()])
def test_vectorized_is_sequential(correction: Correction) -> None:
    for momentum in (0.0,) if correction.plain_sgd else (0.0, 0.6):
        options = {"momentum": momentum, "participation": 0.67}
        aggregation = Normalized() if correction.memory else Grouped(2)
        one = solve(A, B, TAU, correction, aggregation, 6, **options)
        many = solve(A, B, TAU, correction, aggregation, 6, engine="vectorized", **options)
        assert value(many) == pytest.approx(value(one), abs=1e-12)
        for name, table in one.bench.tables.items():
            torch.testing.assert_close(many.bench.tables[name].rows, table.rows, rtol=0, atol=1e-12)


def test_a_client_between_rounds_holds_no_vector() -> None:
    module = solve(A, B, TAU, ControlVariates(), Normalized(), 2)
    for client in module.clients:
        assert not {"bench", "seat"} & set(vars(client))
        assert not any(isinstance(value, torch.Tensor) for value in vars(client).values())
