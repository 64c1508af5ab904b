from math import log, sqrt

import pytest
import tiny
import torch
from hand import CE, ZERO, column, line
from torch import Tensor, nn

from fedshvr.algorithms.objectives.batch import Batch
from fedshvr.algorithms.objectives.label_propagation import Graph, LabelPropagation, solve
from fedshvr.algorithms.objectives.ramp import Ramp
from fedshvr.errors import UserError


def propagation(**options: float) -> LabelPropagation:
    defaults = {"diffusion": 0.9, "neighbors": 2, "iterations": 3, "samples": 10}
    objective = LabelPropagation(2.0, ramp=Ramp(0), **defaults | options)
    objective.begin_round(0)
    return objective


def spread(objective: LabelPropagation, u: list[list[float]]) -> Tensor:
    """The labels of these vectors beside (2, 0) of class 0 and (0, 5) of class 1; the features are the input."""
    net = objective.wrap(nn.Linear(2, 3).double())
    known = torch.tensor([[2, 0], [0, 5]], dtype=torch.float64)
    return objective.spread(net, known, torch.tensor([0, 1]), torch.tensor(u, dtype=torch.float64))


def test_the_labels_by_hand() -> None:
    """(3, 4)/5 has similarities .6 and .8 to the labelled a and b: W_au = 2 (.6)^3, W_bu = 2 (.8)^3, a, b not linked.

    As S_au^2 + S_bu^2 = 1, z_u = .9 / (1 - .81) (S_au, S_bu, 0) ~ (sqrt 27, sqrt 64, 0); two classes of the three.
    """
    first = sqrt(27) / (sqrt(27) + 8)
    entropy = -first * log(first) - (1 - first) * log(1 - first)
    label = spread(propagation(), [[0.3, 0.4]])
    torch.testing.assert_close(
        label, torch.tensor([[0, 1 - entropy / log(3), 0]], dtype=torch.float64), rtol=0, atol=1e-14
    )


def test_the_loss_by_hand() -> None:
    """A label of weight 1/4 for the class of which u = 2 has .1, none for u = 5."""
    v = torch.tensor([[0, 0.25], [0, 0]], dtype=torch.float64)
    loss, parts = propagation().loss(line(), Batch(column(1), ZERO, (column(2, 5),), v), {})
    assert parts["unlabeled"].item() == pytest.approx(-0.25 * log(0.1) / 2, abs=1e-14)
    assert loss.item() == pytest.approx(CE - 0.25 * log(0.1), abs=1e-14)


def test_a_sample_that_no_label_reaches_gets_none() -> None:
    """(-1, 0) is like neither; (4, 0) is like a alone, so its label is sure."""
    torch.testing.assert_close(
        spread(propagation(), [[-1, 0], [4, 0]]), torch.tensor([[0.0, 0, 0], [1, 0, 0]]).double()
    )


def test_the_diffusion_is_that_of_the_matrices() -> None:
    """W written out, and the system solved directly."""
    rng = torch.Generator().manual_seed(0)
    g = nn.functional.normalize(torch.randn(30, 5, generator=rng, dtype=torch.float64))
    y = torch.rand(30, 4, generator=rng, dtype=torch.float64)
    similarity = g @ g.T - 2 * torch.eye(30)
    chosen = similarity >= similarity.topk(6).values[:, -1:]
    a = chosen * similarity.clamp_min(0) ** 3
    scale = (a + a.T).sum(1).rsqrt().diag()
    system = torch.eye(30) - 0.9 * scale @ (a + a.T) @ scale
    graph = Graph(g, 6)
    found = solve(lambda p: p - 0.9 * graph.step(p), y, 30)
    torch.testing.assert_close(found, torch.linalg.solve(system, y), rtol=0, atol=1e-10)


def test_labels_are_made_of_parts_with_all_the_labelled_samples() -> None:
    """18 unlabelled samples at once, or 7, 7 and 4."""
    whole, parts = (tiny.fit(propagation(samples=n), rounds=1) for n in (100, 7))
    net, data, split = tiny.network(), tiny.images(), tiny.splits()[1]
    for module, index in ((whole, split.unlabeled), (parts, split.unlabeled[7:14])):
        objective = propagation()
        objective.wrap(net)
        v = objective.spread(net, data.x[split.labeled], data.y[split.labeled], data.x[index])
        torch.testing.assert_close(module.bench.pool.v[index], v.detach(), rtol=0, atol=1e-12)


def test_a_network_without_a_linear_layer_is_refused() -> None:
    with pytest.raises(UserError, match="needs a model that ends with a linear layer"):
        propagation().wrap(nn.Sequential(nn.Flatten()))


@pytest.mark.parametrize(
    ("option", "value", "valid"),
    [
        ("diffusion", 1, "at least 0 and below 1"),
        ("neighbors", 0, "at least 1"),
        ("iterations", 0, "at least 1"),
        ("samples", 0, "at least 1"),
    ],
)
def test_bad_options_are_refused(option: str, value: float, valid: str) -> None:
    with pytest.raises(UserError, match=rf"algorithm\.objective\.{option}={value}: must be {valid}"):
        propagation(**{option: value})
