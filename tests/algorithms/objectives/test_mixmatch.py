from math import exp, log

import pytest
import torch
from hand import CE, ZERO, column, line, slope
from scipy.stats import beta, kstest

from fedshvr.algorithms.objectives.batch import Batch
from fedshvr.algorithms.objectives.mixmatch import MixMatch
from fedshvr.algorithms.objectives.ramp import Ramp
from fedshvr.compute.streams import Draws


def noise(share: list[float], partner: list[int]) -> dict[str, torch.Tensor]:
    return {"share": torch.tensor(share, dtype=torch.float64), "partner": torch.tensor(partner)}


def objective() -> MixMatch:
    made = MixMatch(2.0, 0.5, 0.75, Ramp(0))
    made.begin_round(0)
    return made


def test_without_mixing_by_hand() -> None:
    """Both views are 1: T = 1/2 sharpens (3, 1)/4 to q = (9, 1)/10, MSE .15^2; q is fixed, slope 2 (-.15) 3/16."""
    net = line()
    batch = Batch(column(1), ZERO, (column(1), column(1)), noise=noise([1, 1, 1], [2, 0, 1]))
    loss, parts = objective().loss(net, batch, {})
    assert parts["labeled"].item() == pytest.approx(CE, abs=1e-14)
    assert loss.item() == pytest.approx(CE + 2 * 0.0225, abs=1e-14)
    assert slope(parts["unlabeled"], net) == pytest.approx(-0.3 * 3 / 16, abs=1e-14)


def test_the_guess_is_the_sharpened_mean_over_the_views() -> None:
    """f(1) and f(-1) have the mean (1, 1)/2; f(1) and f(0) have (5, 3)/8, sharpened (25, 9)/34."""
    q = objective().guess(line(), (column(1, 1), column(-1, 0)))
    torch.testing.assert_close(q, torch.tensor([[0.5, 0.5], [25 / 34, 9 / 34]], dtype=torch.float64))


def test_mixing_by_hand() -> None:
    """(2, 1, 1) with partners (1, 0, 2) and shares (.75, .5, .9): images 1.75, 1.5, 1.

    Labels: .75 (1, 0) + .25 (.9, .1) = (.975, .025); .5 (.9, .1) + .5 (1, 0) = (.95, .05); (.9, .1).
    """
    net = line()
    batch = Batch(column(2), ZERO, (column(1), column(1)), noise=noise([0.75, 0.5, 0.9], [1, 0, 2]))
    _, parts = objective().loss(net, batch, {})
    f = [1 / (1 + exp(-x * log(3))) for x in (1.75, 1.5, 1)]
    assert parts["labeled"].item() == pytest.approx(-0.975 * log(f[0]) - 0.025 * log(1 - f[0]), abs=1e-14)
    assert parts["unlabeled"].item() == pytest.approx(((f[1] - 0.95) ** 2 + (f[2] - 0.9) ** 2) / 2, abs=1e-14)


def test_draws() -> None:
    """One share and one partner an image: l = max(l0, 1 - l0), l0 ~ Beta(.75, .75); partners are a permutation."""
    drawn = objective().draw(Draws(0, 0, torch.arange(2)), steps=50, labeled=3, unlabeled=4)
    assert drawn["share"].shape == drawn["partner"].shape == (2, 50, 11)
    assert torch.equal(drawn["partner"].sort(-1).values, torch.arange(11).expand(2, 50, 11))
    folded = lambda s: 2 * beta.cdf(s, 0.75, 0.75) - 1  # noqa: E731  # P(max(l0, 1 - l0) <= s) for s >= 1/2
    assert kstest(drawn["share"].flatten().numpy(), folded).pvalue > 0.01
