"""epsilon of central differential privacy: published values, the exact bound of Gaussian noise, formulas by hand."""

from math import exp, inf, log, log1p, sqrt

import pytest
from scipy.stats import norm

from fedshvr.algorithms import privacy
from fedshvr.algorithms.privacy import Central
from fedshvr.errors import UserError


def account(noise: float, delta: float = 1e-5) -> Central:
    return Central(clip=1.0, noise=noise, delta=delta)


def exact_delta(epsilon: float, rounds: int, noise: float) -> float:
    """Of so many sums with Gaussian noise that differ by 2 clip (Balle and Wang 2018)."""
    mu = 2 * sqrt(rounds) / noise
    return norm.cdf(mu / 2 - epsilon / mu) - exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)


def test_the_published_noise_for_epsilon_1() -> None:
    """The accountant's own tests: sigma = 4.530877117 sensitivities give (1, 1e-6). A replaced client moves it by 2."""
    assert account(2 * 4.530877117, 1e-6).epsilon({}, 1) == pytest.approx(1, abs=2e-3)


@pytest.mark.parametrize(("rounds", "noise"), [(1, 1.0), (4, 1.0), (40, 3.0), (40, 20.0), (1000, 50.0)])
def test_epsilon_is_a_bound_and_a_close_one(rounds: int, noise: float) -> None:
    epsilon = account(noise).epsilon({}, rounds)
    assert exact_delta(epsilon, rounds, noise) <= 1e-5
    assert exact_delta(0.85 * epsilon, rounds, noise) > 1e-5


def test_rounds_add_up_as_squares() -> None:
    assert account(6.0).epsilon({}, 9) == pytest.approx(account(2.0).epsilon({}, 1), rel=1e-12)


def test_sampling_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Theorem 9 of Wang, Balle and Kasiviswanathan (2019) at order 2, turned into (epsilon, delta) as Canonne et al."""
    monkeypatch.setattr(privacy, "ORDERS", (2,))
    rounds, q, sigma, delta = 30, 5 / 200, 1.5 / 2, 1e-5
    renyi = log1p(q**2 * min(4 * (exp(1 / sigma**2) - 1), 2 * exp(1 / sigma**2)))
    by_hand = rounds * renyi + log1p(-1 / 2) - log(delta * 2)
    assert account(1.5).epsilon({(200, 5): rounds}, rounds) == pytest.approx(by_hand, rel=1e-12)


def test_a_secret_draw_from_many_costs_less_and_from_few_no_more() -> None:
    central, rounds = account(2.0), 40
    known = central.epsilon({}, rounds)
    assert central.epsilon({(1000, 20): rounds}, rounds) < known / 5
    assert central.epsilon({(2, 1): rounds}, rounds) <= known
    assert central.epsilon({(10, 10): rounds}, rounds) == pytest.approx(known, rel=2e-3)  # at fewer orders
    more = central.epsilon({(1000, 20): rounds, (500, 10): rounds}, 2 * rounds)
    assert more > central.epsilon({(1000, 20): rounds}, rounds)


def test_without_noise_nothing_is_promised() -> None:
    assert account(0.0).epsilon({}, 1) == inf


def test_without_the_package_a_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privacy, "find_spec", lambda name: None)
    with pytest.raises(
        UserError, match=r"privacy=central: needs the package dp-accounting: pip install 'fedshvr\[priv"
    ):
        account(1.0)
