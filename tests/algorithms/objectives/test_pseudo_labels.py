"""Hard and soft pseudo-labels."""

from math import log

import pytest
import torch
from hand import CE, CE_SLOPE, ZERO, column, line, slope

from fedshvr.algorithms.objectives.batch import Batch
from fedshvr.algorithms.objectives.hard_pseudo_label import HardPseudoLabel
from fedshvr.algorithms.objectives.ramp import Ramp
from fedshvr.algorithms.objectives.soft_pseudo_label import SoftPseudoLabel


@pytest.mark.parametrize("relabel", ["round", "step"])
def test_hard_by_hand(relabel: str) -> None:
    """The clean image 1 has class 0, whether that is said at the start of the round or now: CE of u' = 2 is -ln .9."""
    net, objective = line(), HardPseudoLabel(3.0, Ramp(0), relabel)
    objective.begin_round(0)
    v = objective.label(net(column(1)))
    assert v.tolist() == [[1, 0]]
    batch = Batch(column(1), ZERO, (column(2), column(1))[: len(objective.views)], v)
    loss, _ = objective.loss(net, batch, {})
    assert loss.item() == pytest.approx(CE - 3 * log(0.9), abs=1e-15)
    assert slope(loss, net) == pytest.approx(CE_SLOPE + 3 * (0.9 - 1) * 2, abs=1e-15)


def test_soft_by_hand() -> None:
    """alpha0/alpha1 = 2 sharpens f(1) = (3, 1)/4 to v = (9, 1)/10; u' = 2 has f = v."""
    net, objective = line(), SoftPseudoLabel(1.0, 0.5, 0.1, Ramp(0))
    objective.begin_round(0)
    v = objective.label(net(column(1))).detach()
    torch.testing.assert_close(v, torch.tensor([[0.9, 0.1]], dtype=torch.float64))
    entropy = -(0.9 * log(0.9) + 0.1 * log(0.1))
    assert objective.label_cost(v).item() == pytest.approx(0.5 * (log(2) - entropy), abs=1e-14)
    loss, parts = objective.loss(net, Batch(column(1), ZERO, (column(2),), v), {})
    assert parts["unlabeled"].item() == pytest.approx(entropy, abs=1e-14)
    assert parts["r2"].item() == pytest.approx(log(2) - entropy, abs=1e-14)
    assert loss.item() == pytest.approx(CE + entropy + 0.1 * (log(2) - entropy), abs=1e-14)
    # at f = v the cross-entropy is stationary; d KL(f || uniform)/dw = f_0 f_1 x (ln f_0 - ln f_1) x, x = 2
    assert slope(parts["unlabeled"], net) == pytest.approx(0, abs=1e-14)
    assert slope(parts["r2"], net) == pytest.approx(0.09 * 2 * log(9), abs=1e-14)


def test_soft_labels_of_every_step_by_hand() -> None:
    """The label (9, 1)/10 of the clean image 1 comes from the network as it is; it has no gradient."""
    net, objective = line(), SoftPseudoLabel(1.0, 0.5, 0.0, Ramp(0), relabel="step")
    objective.begin_round(0)
    loss, parts = objective.loss(net, Batch(column(1), ZERO, (column(2), column(1)), ()), {})
    assert tuple(parts) == objective.parts
    assert parts["unlabeled"].item() == pytest.approx(-(0.9 * log(0.9) + 0.1 * log(0.1)), abs=1e-14)
    assert slope(parts["unlabeled"], net) == pytest.approx(0, abs=1e-14)
    assert slope(loss, net) == pytest.approx(CE_SLOPE, abs=1e-14)


def test_soft_labels_are_those_of_each_image_however_they_lie() -> None:
    objective, logits = SoftPseudoLabel(1.0, 0.5, 0.1, Ramp(0)), torch.randn(2, 4, 3, dtype=torch.float64)
    stacked = objective.label(logits)
    torch.testing.assert_close(stacked.sum(-1), torch.ones(2, 4, dtype=torch.float64))
    torch.testing.assert_close(stacked, torch.stack([objective.label(part) for part in logits]))


def test_soft_labels_become_hard_without_r1() -> None:
    objective = SoftPseudoLabel(1.0, 0.0, 0.1, Ramp(0))
    assert objective.label(torch.tensor([[1.0, 1.1, -3.0]])).tolist() == [[0, 1, 0]]
