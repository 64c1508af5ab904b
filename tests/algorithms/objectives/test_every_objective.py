"""What must hold for every method alike."""

import pytest
import torch
from methods import MADE, STACKED
from tiny import BatchNormed, fit, hidden, images
from torch.utils._pytree import tree_map

from fedshvr.algorithms.aggregation import Normalized
from fedshvr.algorithms.corrections import ControlVariates
from fedshvr.algorithms.objectives.base import Objective
from fedshvr.compute.streams import Draws

each = pytest.mark.parametrize("name", MADE)
each_unlabeled = pytest.mark.parametrize("name", [name for name in MADE if name != "supervised"])


@pytest.mark.parametrize("name", STACKED)
def test_vectorized_is_sequential(name: str) -> None:
    options = {"correction": ControlVariates(), "aggregation": Normalized(), "participation": 0.67, "rounds": 4}
    one, many = (fit(MADE[name](), engine=engine, **options) for engine in ("sequential", "vectorized"))
    torch.testing.assert_close(many.theta, one.theta, rtol=0, atol=1e-10)
    for table in one.bench.tables:
        torch.testing.assert_close(many.bench.tables[table].rows, one.bench.tables[table].rows, rtol=0, atol=1e-10)


@each
def test_hidden_labels_do_not_matter(name: str) -> None:
    data, permuted = images(), images()
    permuted.y[hidden()] = permuted.y[hidden()].flip(0)
    assert not torch.equal(data.y, permuted.y)
    assert torch.equal(fit(MADE[name](), data=data).theta, fit(MADE[name](), data=permuted).theta)


def gradients(objective: Objective) -> tuple[dict[str, torch.Tensor], list[torch.Tensor]]:
    """The parts of one client's loss after three rounds, and its gradient with and without the unlabelled term."""
    module = fit(objective)
    bench, own = module.bench, [0]
    choices = bench.batcher.choose(Draws(0, 3, torch.tensor(own)), 1)
    batch = tree_map(lambda t: t[0, 0], bench.batcher.gather(choices, bench.pool))
    state = {key: bench.tables[key].get(own)[0] for key in objective.memory}
    bench.net.load(module.theta.detach(), module.server.buffers_)
    bench.net.module.train()
    found = []
    for alpha0 in (objective.alpha0, 0.0):
        objective.alpha0 = alpha0
        loss, parts = objective.loss(bench.net, batch, state)
        found.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, bench.net.params)]))
    return parts, found


@each
def test_the_parts_are_those_announced(name: str) -> None:
    objective = MADE[name]()
    assert tuple(gradients(objective)[0]) == objective.parts


@each_unlabeled
def test_the_unlabelled_term_has_a_gradient(name: str) -> None:
    objective = MADE[name]()
    with_it, without = gradients(objective)[1]
    assert (with_it - without).norm() > 1e-3


@each
def test_dropout_and_batch_norm(name: str) -> None:
    """Sequential training of a network with both is finite, repeatable, and moves the batch-norm statistics."""
    modules = []
    for _ in range(2):
        torch.manual_seed(0)
        modules.append(fit(MADE[name](), model=BatchNormed(), rounds=2))
    assert torch.isfinite(modules[0].theta).all()
    assert torch.equal(modules[0].theta, modules[1].theta)
    assert modules[0].server.buffers_[:6].abs().sum() > 0
