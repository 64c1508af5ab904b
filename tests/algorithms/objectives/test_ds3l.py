import pytest
import torch
from hand import CE, CE_SLOPE, ZERO, column, line, slope
from tiny import CLASSES, images, network
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedshvr.algorithms.objectives.batch import Batch
from fedshvr.algorithms.objectives.ds3l import DS3L, consistency, first_wnet, shares
from fedshvr.algorithms.objectives.ramp import Ramp
from fedshvr.compute.vector import FlatNet


def wnet(objective: DS3L, classes: int) -> dict[str, Tensor]:
    state = {"wnet": torch.zeros(1, objective.widths(0, classes)["wnet"], dtype=torch.float64)}
    objective.begin_client(state, torch.zeros(0), torch.tensor([0]))
    return {"wnet": state["wnet"][0]}


def made(eta_meta: float = 1e-3) -> DS3L:
    objective = DS3L(weight=2.0, eta_meta=eta_meta, eta_wnet=1e-2, ramp=Ramp(0))
    objective.begin_round(0)
    return objective


def test_by_hand() -> None:
    """l = (.15^2, .25^2) of u' = (2, 0) against u = 1; equal f(u) have equal shares."""
    net, objective = line(), made()
    state = wnet(objective, classes=2)
    loss, parts = objective.loss(net, Batch(column(1), ZERO, (column(2, 0), column(1, 1))), state)
    assert parts["unlabeled"].item() == pytest.approx((0.0225 + 0.0625) / 2, abs=1e-14)
    assert loss.item() == pytest.approx(CE + 0.085, abs=1e-14)
    # the target f(u) is fixed: d l_1/dw = 2 (.15) .18, and f(0) does not move
    assert slope(loss, net) == pytest.approx(CE_SLOPE + 2 * 0.3 * 0.18 / 2, abs=1e-14)


def test_the_loss_takes_the_shares_as_fixed() -> None:
    objective = made()
    state = wnet(objective, classes=2)
    state["wnet"].requires_grad_()
    loss, _ = objective.loss(line(), Batch(column(1), ZERO, (column(2, 0), column(1, 0.5))), state)
    assert torch.autograd.grad(loss, state["wnet"], allow_unused=True) == (None,)


def test_shares_follow_the_weight_network() -> None:
    """100 hidden units that pass f_0 on, an output weight of 1/100 and no bias: w = sigmoid(f_0)."""
    w1 = torch.tensor([[1.0, 0.0]]).repeat(100, 1).flatten()
    a = torch.cat([w1, torch.zeros(100), torch.full((100,), 0.01), torch.zeros(1)]).double()
    p = torch.tensor([[0.75, 0.25], [0.1, 0.9]], dtype=torch.float64)
    w = torch.sigmoid(p[:, 0])
    torch.testing.assert_close(shares(a, p), w / w.sum())


def test_the_meta_gradient_is_the_numerical_derivative_through_the_inner_step() -> None:
    data, objective = images(), made(eta_meta=0.5)
    net = FlatNet(network(), torch.device("cpu"), torch.float64)
    batch = Batch(data.x[:4], data.y[:4], (data.x[10:16] + 0.3, data.x[10:16]))
    a = wnet(objective, CLASSES)["wnet"].chunk(3)[0]
    p = net(batch.u[1]).softmax(-1).detach()
    theta = net.theta.clone().requires_grad_()

    def outer(a: Tensor) -> float:
        unlabeled = (shares(a, p) * consistency(net.at(theta)(batch.u[0]), p)).sum()
        inner = cross_entropy(net.at(theta)(batch.x), batch.y) + objective.alpha0 * unlabeled
        ahead = theta - 0.5 * torch.autograd.grad(inner, theta)[0]
        return cross_entropy(net.at(ahead)(batch.x), batch.y).item()

    gradient = objective.meta_gradient(net, batch, a)
    for direction in torch.randn(5, len(a), generator=torch.Generator().manual_seed(0), dtype=torch.float64):
        h = 1e-4
        numerical = (outer(a + h * direction) - outer(a - h * direction)) / (2 * h)
        assert (gradient @ direction).item() == pytest.approx(numerical, rel=1e-5, abs=1e-12)
    assert gradient.abs().max() > 1e-6


def test_images_that_hurt_the_labelled_ones_lose_weight() -> None:
    """The labelled image wants f_0(1) larger. u' = 1 below its target f(2) helps that, u' = 2 above f(1) hurts."""
    net, objective = line(), made()
    state = wnet(objective, classes=2)
    batch = Batch(column(1), ZERO, (column(1, 2), column(2, 1)))
    p = net(batch.u[1]).softmax(-1).detach()
    before = shares(state["wnet"].chunk(3)[0], p)
    for done in range(20):
        state = objective.adapt(net, batch, state, torch.tensor(done))
    helps, hurts = (shares(state["wnet"].chunk(3)[0], p) - before).tolist()
    assert helps > 0.01
    assert hurts < -0.01


def test_the_weight_network_takes_adam_steps() -> None:
    net, objective = line(), made()
    batch = Batch(column(1), ZERO, (column(1, 2), column(2, 1)))
    state = wnet(objective, classes=2)
    a = torch.nn.Parameter(state["wnet"].chunk(3)[0].clone())
    adam = torch.optim.Adam([a], lr=1e-2)
    for done in range(3):
        a.grad = objective.meta_gradient(net, batch, a.detach())
        adam.step()
        state = objective.adapt(net, batch, state, torch.tensor(done))
    torch.testing.assert_close(state["wnet"].chunk(3)[0], a.detach(), rtol=0, atol=1e-12)


def test_the_weight_network_starts_alike_everywhere_and_then_stays_with_its_client() -> None:
    objective = made()
    width = objective.widths(0, 10)["wnet"]
    assert width == 3 * (10 * 100 + 100 + 100 + 1)
    state = {"wnet": torch.full((2, width), 7.0)}
    objective.begin_client(state, torch.zeros(5), torch.tensor([0, 4]))
    assert torch.equal(state["wnet"][0, : width // 3], first_wnet(width // 3))
    assert (state["wnet"][1] == 7).all()
    assert first_wnet(width // 3).abs().max() <= 10**-0.5
