from math import log

import pytest
import tiny
import torch
from hand import CE, CE_SLOPE, ZERO, column, line, slope
from torch import Tensor

from fedshvr.algorithms.objectives.batch import Batch
from fedshvr.algorithms.objectives.ramp import Ramp
from fedshvr.algorithms.objectives.self_training import SelfTraining
from fedshvr.errors import UserError


def test_by_hand() -> None:
    """f_0(1) = .75 and f_1(-2) = .9 pass .7, f(1/2) does not; the joined 2 and -1 of three cost -ln .9 and -ln .75."""
    net, objective = line(), SelfTraining(2.0, 0.7, Ramp(0))
    objective.begin_round(0)
    v = objective.label(net(column(1, 0.5, -2)))
    assert v.tolist() == [[1, 0], [0, 0], [0, 1]]
    loss, parts = objective.loss(net, Batch(column(1), ZERO, (column(2, 5, -1),), v), {})
    assert parts["unlabeled"].item() == pytest.approx(-(log(0.9) + log(0.75)) / 3, abs=1e-15)
    assert loss.item() == pytest.approx(CE - 2 / 3 * (log(0.9) + log(0.75)), abs=1e-15)
    assert slope(loss, net) == pytest.approx(CE_SLOPE + 2 / 3 * (-0.1 * 2 - 0.25), abs=1e-15)


def test_who_has_joined_may_leave_or_stays_with_the_first_label() -> None:
    before = torch.tensor([[0.5, 0.5], [0.0, 0.0], [1.0, 0.0], [1.0, 0.0]])  # uniform at first: none
    made = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [0.0, 1.0]])
    assert torch.equal(SelfTraining(1.0, 0.7, Ramp(0)).revise(made, before), made)
    kept = [[1, 0], [0, 1], [1, 0], [1, 0]]
    assert SelfTraining(1.0, 0.7, Ramp(0), keep=True).revise(made, before).tolist() == kept


def joined(rounds: int, keep: bool) -> tuple[Tensor, dict[str, float]]:
    """v of the unlabelled samples after so many rounds, and the log."""
    module = tiny.fit(SelfTraining(1.0, 0.6, Ramp(0), keep=keep), rounds=rounds)
    return module.bench.pool.v[tiny.hidden()], module.row


@pytest.mark.parametrize("keep", [False, True])
def test_the_log_has_the_number_that_joined_and_the_share_that_is_right(keep: bool) -> None:
    v, row = joined(3, keep)
    inside = v.sum(-1) == 1
    right = v.argmax(-1)[inside] == tiny.images().y[tiny.hidden()][inside]
    assert 0 < row["pseudo_labels"] == int(inside.sum()) < len(v)
    assert row["pseudo_label_acc"] == pytest.approx(right.double().mean().item(), abs=1e-15)


def test_from_round_to_round() -> None:
    """With keep, every row of round 1 is there in round 3; without, some are not."""
    for keep in (True, False):
        (first, _), (third, _) = joined(1, keep), joined(3, keep)
        inside = first.sum(-1) == 1
        assert inside.any()
        assert torch.equal(first[inside], third[inside]) == keep


def test_a_bad_option_is_refused() -> None:
    with pytest.raises(UserError, match=r"algorithm\.objective\.threshold=1: must be at least 0 and below 1"):
        SelfTraining(1.0, 1, Ramp(0))
