from math import exp

import pytest
import torch
from hand import CE, CE_SLOPE, ZERO, column, line, slope
from tiny import UNLABELED, fit

from fedshvr.algorithms.objectives.batch import Batch
from fedshvr.algorithms.objectives.mean_teacher import MeanTeacher
from fedshvr.algorithms.objectives.ramp import Ramp


def test_by_hand() -> None:
    """The student says .75 of u' = 1, the teacher (w = 0) .5 of anything: MSE 1/16, slope 2 (1/4) (3/16)."""
    net, objective = line(), MeanTeacher(2.0, 0.99, Ramp(0))
    objective.begin_round(0)
    teacher = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    loss, parts = objective.loss(net, Batch(column(1), ZERO, (column(1), column(2))), {"teacher": teacher})
    assert parts["unlabeled"].item() == pytest.approx(1 / 16, abs=1e-15)
    assert loss.item() == pytest.approx(CE + 1 / 8, abs=1e-15)
    assert slope(loss, net) == pytest.approx(CE_SLOPE + 2 * 3 / 32, abs=1e-15)
    assert torch.autograd.grad(loss, teacher, allow_unused=True) == (None,)


def test_the_weight_ramps_up_exponentially() -> None:
    objective = MeanTeacher(8.0, 0.99, Ramp(50, "exp"))
    weights = []
    for epoch in (0, 25, 50, 70):
        objective.begin_round(epoch)
        weights.append(objective.alpha0)
    assert weights == pytest.approx([8 * exp(-5), 8 * exp(-1.25), 8, 8])


def test_the_teacher_is_the_plain_mean_at_first_and_decays_later() -> None:
    """decay 0.75 is reached at t = 3: 1/2, 2/3, 3/4, 3/4, ..."""
    objective = MeanTeacher(1.0, 0.75, Ramp(0))
    state = {"teacher": torch.tensor([0.0], dtype=torch.float64)}
    seen = []
    for done, theta in enumerate([6.0, 3.0, 7.0, 8.0]):
        objective.after_step(state, torch.tensor([theta], dtype=torch.float64), torch.tensor(done))
        seen.append(state["teacher"].item())
    assert seen == pytest.approx([3, 3, 4, 5], abs=1e-14)  # means of (0, 6), (0, 6, 3), (0, 6, 3, 7); 3/4 4 + 8/4


def test_the_teacher_stays_with_its_client_or_starts_from_the_global_model() -> None:
    """With decay 0 the teacher is the client's last theta_k; a round begins there, or at theta."""
    theta = torch.tensor([5.0])
    for kind, done, expected in (("client", 0, 5.0), ("client", 4, 2.0), ("global", 4, 5.0)):
        state = {"teacher": torch.tensor([[2.0]])}
        MeanTeacher(1.0, 0.0, Ramp(0), kind).begin_client(state, theta, torch.tensor([done]))
        assert state["teacher"].item() == expected


def test_every_client_has_a_teacher_of_its_own() -> None:
    teachers = fit(MeanTeacher(1.0, 0.9, Ramp(0)), rounds=2).bench.tables["teacher"].rows
    assert len(teachers) == len(UNLABELED)
    assert (teachers[0] - teachers[1]).abs().max() > 1e-3
