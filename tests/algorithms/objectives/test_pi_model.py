import pytest
from hand import CE, CE_SLOPE, ZERO, column, line, slope

from fedshvr.algorithms.objectives.batch import Batch
from fedshvr.algorithms.objectives.pi_model import PiModel
from fedshvr.algorithms.objectives.ramp import Ramp


def test_by_hand() -> None:
    """f(1) = .75 and f(2) = .9 differ by .15 in both classes; the slope 2 (-.15) (.1875 - .18) has both branches."""
    net, objective = line(), PiModel(2.0, Ramp(0))
    objective.begin_round(0)
    loss, parts = objective.loss(net, Batch(column(1), ZERO, (column(1), column(2))), {})
    assert parts["unlabeled"].item() == pytest.approx(0.0225, abs=1e-15)
    assert loss.item() == pytest.approx(CE + 0.045, abs=1e-15)
    assert slope(parts["unlabeled"], net) == pytest.approx(-0.00225, abs=1e-15)
    assert slope(loss, net) == pytest.approx(CE_SLOPE - 0.0045, abs=1e-15)
