from math import exp, log

import pytest
import torch
from hand import ZERO, column, line, slope

from fedshvr.algorithms.objectives.batch import Batch
from fedshvr.algorithms.objectives.manifold import Manifold, graph
from fedshvr.algorithms.objectives.ramp import Ramp
from fedshvr.errors import UserError


def test_by_hand() -> None:
    """Of 0, 1 and 3 the nearest are 1, 0 and 1: pairs at squared distances 1 and 4, s = 5/2; f_0 = 1/2, 3/4, 27/28.

    |f(0) - f(1)|^2 = 2 (1/4)^2 and |f(1) - f(3)|^2 = 2 (3/14)^2, each pair twice in the sum over 3^2.
    """
    net, objective = line(), Manifold(2.0, 1, Ramp(0))
    objective.begin_round(0)
    loss, parts = objective.loss(net, Batch(column(0), ZERO, (column(1, 3),)), {})
    first, second = exp(-1 / 2.5), exp(-4 / 2.5)
    unlabeled = 2 / 9 * (first * 2 / 16 + second * 2 * (3 / 14) ** 2)
    assert parts["unlabeled"].item() == pytest.approx(unlabeled, abs=1e-15)
    assert loss.item() == pytest.approx(log(2) + 2 * unlabeled, abs=1e-15)
    at_1, at_3 = 3 / 16, 3 * 27 / 28**2  # the slope of f_0 is f_0 f_1 x
    rise = 2 / 9 * (first * 4 / 4 * at_1 + second * 4 * 3 / 14 * (at_3 - at_1))
    assert slope(parts["unlabeled"], net) == pytest.approx(rise, abs=1e-15)
    assert slope(loss, net) == pytest.approx(2 * rise, abs=1e-15)  # the labelled 0 has none


def test_the_graph_links_two_images_if_either_is_near_the_other() -> None:
    """Only 0 and 10 are no neighbours: each has the two in between."""
    w = graph(column(0, 1, 2.5, 10), 2)
    apart = torch.eye(4) + torch.eye(4).flip(0) * torch.tensor([1.0, 0, 0, 1])
    assert torch.equal(w == 0, apart == 1)
    assert torch.equal(w, w.T)


def test_images_that_are_all_the_same_are_linked_with_weight_1() -> None:
    assert graph(torch.ones(3, 1, 2, 2), 5).tolist() == [[0, 1, 1], [1, 0, 1], [1, 1, 0]]


def test_a_bad_option_is_refused() -> None:
    with pytest.raises(UserError, match=r"algorithm\.objective\.neighbors=0: must be at least 1"):
        Manifold(1.0, 0, Ramp(0))
