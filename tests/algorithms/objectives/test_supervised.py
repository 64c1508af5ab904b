import pytest
from hand import CE, CE_SLOPE, ZERO, column, line, slope

from fedshvr.algorithms.objectives.batch import Batch
from fedshvr.algorithms.objectives.supervised import Supervised


def test_by_hand() -> None:
    net = line()
    loss, parts = Supervised().loss(net, Batch(column(1), ZERO), {})
    assert loss.item() == pytest.approx(CE, abs=1e-15)
    assert slope(loss, net) == pytest.approx(CE_SLOPE, abs=1e-15)
    assert parts == {}
