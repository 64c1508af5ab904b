from math import log

import pytest
from hand import CE, CE_SLOPE, ZERO, column, line, slope

from fedshvr.algorithms.objectives.batch import Batch
from fedshvr.algorithms.objectives.fixmatch import FixMatch
from fedshvr.algorithms.objectives.ramp import Ramp


def test_by_hand() -> None:
    """Of the weak views 1 and 0 only the first is sure (.75 >= .7): class 0, CE of its strong view 2 is -ln .9.

    The other counts 0 in the mean over both. The slope (.9 - 1) 2 / 2 has no share of the weak view.
    """
    net, objective = line(), FixMatch(3.0, 0.7, Ramp(0))
    objective.begin_round(0)
    loss, parts = objective.loss(net, Batch(column(1), ZERO, (column(1, 0), column(2, 5))), {})
    assert parts["unlabeled"].item() == pytest.approx(-log(0.9) / 2, abs=1e-15)
    assert loss.item() == pytest.approx(CE - 3 * log(0.9) / 2, abs=1e-15)
    assert slope(loss, net) == pytest.approx(CE_SLOPE - 3 * 0.1, abs=1e-15)


def test_the_label_is_that_of_the_weak_view() -> None:
    """-1 has class 1 with .75; its strong view 2 gives class 1 only .1."""
    net = line()
    _, parts = FixMatch(1.0, 0.7, Ramp(0)).loss(net, Batch(column(1), ZERO, (column(-1), column(2))), {})
    assert parts["unlabeled"].item() == pytest.approx(-log(0.1), abs=1e-14)
