from math import log

import pytest
import torch
from hand import ZERO, column, line, slope

from fedshvr.algorithms.objectives.batch import Batch
from fedshvr.algorithms.objectives.ramp import Ramp
from fedshvr.algorithms.objectives.s3vm import S3VM, hinge, imbalance
from fedshvr.errors import UserError


def test_by_hand() -> None:
    """Margins |w x|, w = ln 3: that of the labelled 1/2 is w/2, those of -1/2 and 2 are w/2 and 2 w > 1.

    Mean outputs are (3/8, -3/8) w, the labelled image has shares (1, 0), which is (1/2, -1/2) around their mean.
    """
    net, objective, w = line(), S3VM(3.0, 0.5, Ramp(0)), log(3)
    objective.begin_round(0)
    loss, parts = objective.loss(net, Batch(column(0.5), ZERO, (column(-0.5, 2),)), {})
    balance = 2 * (3 / 8 * w - 1 / 2) ** 2
    assert parts["labeled"].item() == pytest.approx(1 - w / 2, abs=1e-15)
    assert parts["unlabeled"].item() == pytest.approx((1 - w / 2) / 2, abs=1e-15)
    assert parts["balance"].item() == pytest.approx(balance, abs=1e-15)
    assert loss.item() == pytest.approx(1 - w / 2 + 3 * ((1 - w / 2) / 2 + balance / 2), abs=1e-14)
    assert slope(parts["unlabeled"], net) == pytest.approx(-1 / 4, abs=1e-15)
    assert slope(parts["balance"], net) == pytest.approx(4 * (3 / 8 * w - 1 / 2) * 3 / 8, abs=1e-15)
    assert slope(loss, net) == pytest.approx(-1 / 2 - 3 / 4 + 3 / 2 * slope(parts["balance"], net), abs=1e-14)


def test_the_margin_is_to_the_best_other_class() -> None:
    logits = torch.tensor([[2.0, 1.5, -1.0]])
    assert [hinge(logits, torch.tensor([y])).item() for y in range(3)] == [0.5, 1.5, 4.0]


def test_with_two_classes_the_constraint_is_that_of_chapelle_and_zien() -> None:
    """f = z_0 - z_1 = 2, -1, 1/2 has mean 1/2; shares (3, 1)/4 are labels of mean 1/2: balanced, whatever is added."""
    f, shares = column(2, -1, 0.5), torch.tensor([0.75, 0.25], dtype=torch.float64)
    logits = torch.cat([f, 0 * f], 1) + column(5, -7, 3)
    assert imbalance(logits, shares).item() == pytest.approx(0, abs=1e-28)
    assert imbalance(logits, shares.flip(0)).item() == pytest.approx((1 / 2 + 1 / 2) ** 2 / 2, abs=1e-14)


def test_a_bad_option_is_refused() -> None:
    with pytest.raises(UserError, match=r"algorithm\.objective\.balance=-1: must be at least 0"):
        S3VM(1.0, -1, Ramp(0))
