"""Central differential privacy: what one client can do to the model, the noise, and the control variates."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch
from conftest import SMALL
from methods import MADE
from quadratics import solve
from torch import Tensor

from fedshvr.algorithms.aggregation import Average, Normalized
from fedshvr.algorithms.corrections import VRLSGD, ControlVariates, Correction, Proximal
from fedshvr.algorithms.privacy import Central
from fedshvr.compute.streams import stream
from fedshvr.errors import UserError
from fedshvr.rounds.federated import Federated

A, B, TAU, ETA = [1.0, 2.0, 0.5, 1.5], [3.0, -1.0, 7.0, 0.5], [2, 5, 9, 4], 0.05
OMEGA = np.array(TAU) / sum(TAU)


def central(clip: float = 0.1, noise: float = 0.0) -> Central:
    return Central(clip, noise, delta=1e-5)


def coefficients(aggregation: Average, share: float = 1.0) -> np.ndarray:
    """b_k: omega_k, or tau_bar omega_k / tau_k, over the share that is drawn."""
    tau = np.array(TAU)
    return (OMEGA * (OMEGA @ tau) / tau if isinstance(aggregation, Normalized) else OMEGA) / share


AGGREGATIONS = [Average(), Normalized()]


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("aggregation", AGGREGATIONS, ids=["average", "normalized"])
@pytest.mark.parametrize("k", [1, 2])
def test_one_client_moves_the_model_by_the_bound_and_can_reach_it(k: int, aggregation: Average, engine: str) -> None:
    """Its minimum far to the right, then far to the left: the models are 2 clip b_k apart."""
    ends = []
    for far in (1e6, -1e6):
        b = [far if i == k else b for i, b in enumerate(B)]
        ends.append(solve(A, b, TAU, Correction(), aggregation, 1, privacy=central(), engine=engine).theta.item())
    assert ends[0] - ends[1] == pytest.approx(2 * 0.1 * coefficients(aggregation)[k], abs=1e-12)


def replaced(k: int) -> tiny.ImageData:
    """The tiny federation with other samples on client k."""
    data, split = tiny.images(), tiny.splits()[k]
    own = torch.from_numpy(np.concatenate([split.labeled, split.unlabeled]))
    x, y = data.x.clone(), data.y.clone()
    x[own], y[own] = 30 * torch.randn(x[own].shape, generator=stream("other"), dtype=x.dtype), (y[own] + 1) % 3
    return replace(data, x=x, y=y)


@pytest.mark.parametrize("correction", [Correction(), ControlVariates(), VRLSGD()], ids=["none", "variates", "vrl"])
def test_other_samples_of_a_client_change_a_round_by_no_more_than_the_bound(correction: Correction) -> None:
    for k in range(3):
        modules = [
            tiny.fit(MADE["soft"](), correction, Normalized(), 1, data=data, privacy=central(0.3))
            for data in (tiny.images(), replaced(k))
        ]
        most = modules[0].method.aggregation.coefficient[k] * 0.3
        distance = torch.linalg.vector_norm(modules[0].theta - modules[1].theta).item()
        assert 0.5 * most < distance <= 2 * most * (1 + 1e-12)


def test_a_move_is_clipped_to_the_bound_or_left_as_it_is() -> None:
    theta = torch.zeros(3, 4, dtype=torch.float64)
    theta_k = torch.tensor([[3.0, 4.0, 0, 0], [0.3, 0, 0.4, 0], [0, 0, 0, -2.0]], dtype=torch.float64)
    short = theta_k[1].clone()
    central(clip=1.0).clip_(theta_k, theta)
    torch.testing.assert_close(theta_k[0], torch.tensor([0.6, 0.8, 0, 0], dtype=torch.float64), rtol=0, atol=1e-15)
    assert torch.equal(theta_k[1], short)
    assert theta_k[2].tolist() == [0, 0, 0, -1]


@pytest.mark.parametrize("aggregation", AGGREGATIONS, ids=["average", "normalized"])
def test_a_round_of_some_clients_by_hand(aggregation: Average) -> None:
    """The denominator is fixed: moves count b_k, whoever else was drawn, and one who failed counts as if at rest."""
    module = solve(
        A, B, TAU, Correction(), aggregation, 6, privacy=central(0.4), participation=0.75, client_dropout=0.3
    )
    x, a, b, weight = 0.0, np.array(A), np.array(B), coefficients(aggregation, share=0.75)
    for t in range(6):
        S = module.cohort(t)
        move = (1 - (1 - ETA * a[S]) ** np.array(TAU)[S]) * (x - b[S])
        x -= float((weight[S] * np.clip(move, -0.4, 0.4)).sum())
    assert len({len(module.cohort(t)) for t in range(6)}) > 1
    assert module.theta.item() == pytest.approx(x, abs=1e-13)


# ---- noise -----------------------------------------------------------------------------------------------------------


def noise_of(module: Federated, round: int, size: int) -> Tensor:
    direction = torch.zeros(size, dtype=torch.float64)
    module.server.release.add_noise(direction, direction[:0], round)
    return direction


@pytest.mark.parametrize("aggregation", AGGREGATIONS, ids=["average", "normalized"])
def test_the_noise_is_as_large_as_stated(aggregation: Average) -> None:
    module = solve(A, B, TAU, Correction(), aggregation, 1, privacy=central(0.1, noise=1.5), participation=0.5)
    size, stated = 200_000, 1.5 * 0.1 * coefficients(aggregation, share=0.5).max()
    first, second = (noise_of(module, round, size) / stated for round in (0, 1))
    for noise in (first, second):  # 4 standard deviations of each estimate
        assert abs(noise.mean().item()) < 4 / size**0.5
        assert abs(noise.square().mean().item() - 1) < 4 * (2 / size) ** 0.5
    assert abs((first * second).mean().item()) < 4 / size**0.5
    assert torch.equal(noise_of(module, 1, size) / stated, second)


def test_the_model_has_the_noise_of_its_round() -> None:
    quiet, noisy = (tiny.fit(MADE["supervised"](), rounds=1, privacy=central(0.3, noise)) for noise in (0.0, 2.0))
    assert noisy.server.release.deviation == pytest.approx(2 * 0.3 * quiet.plan.omega.max().item(), rel=1e-12)
    n = torch.randn(len(quiet.theta), generator=stream(0, "privacy", 0), dtype=torch.float64)
    torch.testing.assert_close(
        noisy.theta.data, quiet.theta.data - noisy.server.release.deviation * n, rtol=0, atol=1e-14
    )


# ---- control variates ------------------------------------------------------------------------------------------------


def surplus(module: Federated) -> Tensor:
    """c - sum_k omega_k c_k."""
    return module.server.c - module.plan.omega @ module.bench.tables["c_k"].rows


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_without_noise_the_corrections_cancel(engine: str) -> None:
    options = {"privacy": central(0.05), "participation": 0.67, "client_dropout": 0.3, "engine": engine}
    module = tiny.fit(MADE["soft"](), ControlVariates(), Normalized(), 6, **options)
    assert module.server.c.norm() > 0.01
    assert surplus(module).norm() < 1e-14
    assert module.row["sum_omega_d"] < 1e-14


def test_c_differs_from_the_clients_mean_by_the_noise_of_all_rounds() -> None:
    """kappa = omega_k / (eta tau_k b_k) = q / (eta tau_bar)."""
    module = tiny.fit(MADE["soft"](), ControlVariates(), Normalized(), 5, privacy=central(0.3, 0.5), participation=0.67)
    kappa = (2 / 3) / (tiny.LOCAL.eta * float(module.plan.omega @ torch.tensor(module.plan.tau).double()))
    deviation = module.server.release.deviation
    draws = [torch.randn(len(module.theta), generator=stream(0, "privacy", t), dtype=torch.float64) for t in range(5)]
    torch.testing.assert_close(surplus(module), kappa * deviation * sum(draws), rtol=0, atol=1e-13)


def test_the_memory_of_vrl_sgd_cancels_too() -> None:
    """sum_k omega_k tau_k d_k = 0: the clipped move is what it remembers, and the server's step is their average."""
    module = solve(A, B, TAU, VRLSGD(), Average(), 5, privacy=central(0.2))
    d = module.bench.tables["d_k"].rows[:, 0].numpy()
    assert abs(d).max() > 0.1
    assert abs((OMEGA * np.array(TAU) * d).sum()) < 1e-12


@pytest.mark.parametrize(
    "algorithm", ["fedavg", "fed_shvr", "scaffold", pytest.param("vrl_sgd", marks=pytest.mark.slow)]
)
def test_a_long_bound_without_noise_is_no_privacy_to_the_bit(train: Callable, algorithm: str) -> None:
    common = [*SMALL, f"algorithm={algorithm}", "rounds=2"]
    open_, private = (
        train(*common, *options, folder=folder)
        for folder, options in (("open", []), ("private", ["privacy=central", "privacy.clip=1e9", "privacy.noise=0"]))
    )
    assert private.theta == open_.theta
    assert [{k: v for k, v in row.items() if k != "epsilon"} for row in private.timeless] == open_.timeless
    assert [row["epsilon"] for row in private.rows] == ["inf", "inf"]
    assert private.summary["epsilon"] is None
    assert "epsilon" not in open_.summary


@pytest.mark.parametrize("correction", [Proximal(0.3), ControlVariates(), VRLSGD()])
def test_both_engines_agree(correction: Correction) -> None:
    one, many = (
        solve(A, B, TAU, correction, Normalized(), 5, privacy=central(0.2, 0.3), participation=0.5, engine=e)
        for e in ("sequential", "vectorized")
    )
    assert many.theta.item() == pytest.approx(one.theta.item(), abs=1e-12)


# ---- the account -----------------------------------------------------------------------------------------------------


def test_who_remembers_is_counted_by_the_rounds_that_it_took_part_in() -> None:
    """Clients with a memory show when they were drawn; those without one are counted as drawn in secret."""
    private = {"privacy": central(0.1, 2.0), "participation": 0.5}
    open_draws, secret = (solve(A, B, TAU, c, Normalized(), 8, **private) for c in (ControlVariates(), Correction()))
    most = max(Counter(k for t in range(8) for k in open_draws.cohort(t)).values())
    assert 4 <= most < 8
    assert open_draws.row["epsilon"] == central(noise=2.0).epsilon({}, most)
    assert secret.row["epsilon"] == central(noise=2.0).epsilon({(4, 2): 8}, most)


def test_resume_is_exact_and_counts_all_rounds(train: Callable) -> None:
    overrides = [*SMALL, "privacy=central", "privacy.noise=0.3", "participation=0.75"]
    whole = train(*overrides, "rounds=4", folder="whole")
    train(*overrides, "rounds=2", folder="parts")
    parts = train(*overrides, "rounds=4", "ckpt_path=last", folder="parts")
    assert parts.theta == whole.theta
    assert parts.timeless == whole.timeless
    epsilons = [float(row["epsilon"]) for row in whole.rows]
    assert epsilons == sorted(epsilons)
    assert epsilons[-1] == whole.summary["epsilon"] > epsilons[0] > 0


def test_no_part_of_a_run_is_left_out_of_the_account(train: Callable) -> None:
    """Not even with resume_anyway: epsilon would claim noise for rounds that had none."""
    train(*SMALL, "rounds=1")
    with pytest.raises(UserError, match=r"ckpt_path: the checkpoint has privacy=None, this run has privacy=clip=1.0, "):
        train(*SMALL, "privacy=central", "rounds=2", "ckpt_path=last", "resume_anyway=true")
