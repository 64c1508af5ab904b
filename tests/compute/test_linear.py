"""Linear layers that keep their gradient in factors make the step that autograd's gradient makes."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from methods import MADE, STACKED
from tiny import CLASSES, LOCAL, SIDE, BatchNormed, federated, fit, train
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from fedshvr.algorithms.aggregation import Normalized
from fedshvr.algorithms.corrections import ControlVariates, Correction, Proximal
from fedshvr.compute import linear
from fedshvr.compute.vector import FlatNet
from fedshvr.rounds.federated import Federated

FACTORED, PLAIN = 0, 1 << 40  # values of linear.LARGE under which a client alone does one or the other


@pytest.fixture
def factored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "LARGE", FACTORED)


def flat(network: nn.Module) -> FlatNet:
    return FlatNet(network, torch.device("cpu"), torch.float64)


def step_of(net: FlatNet, x: Tensor, target: Tensor, uses: int = 1) -> tuple[list[Tensor], list[bool]]:
    """What a factored pass adds to each parameter, and which gradients autograd was left with."""
    with net.linears.factored():
        loss = sum(mse_loss(net(x[i]), target[i]) for i in range(uses))
    grads = torch.autograd.grad(loss, net.params, allow_unused=True)
    views = [torch.zeros_like(p) for p in net.params]
    for factors in net.linears.take():
        factors.add_to(views, 1.0)
    for view, grad in zip(views, grads, strict=True):
        view.add_(0 if grad is None else grad)
    return views, [grad is not None for grad in grads]


@pytest.mark.usefixtures("factored")
@pytest.mark.parametrize("uses", [1, 3])
def test_factors_are_the_gradient(uses: int) -> None:
    torch.manual_seed(0)
    net = flat(nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 2)))
    x, target = torch.randn(uses, 6, 5, dtype=torch.float64), torch.randn(uses, 6, 2, dtype=torch.float64)
    found, left = step_of(net, x, target, uses)
    loss = sum(mse_loss(net(x[i]), target[i]) for i in range(uses))
    for one, other in zip(found, torch.autograd.grad(loss, net.params), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-14)
    assert not any(left)
    assert net.linears.take() == []


@pytest.mark.usefixtures("factored")
def test_a_shared_weight_collects_from_all_its_layers() -> None:
    torch.manual_seed(0)
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    net = flat(nn.Sequential(first, nn.Tanh(), second))
    x, target = torch.randn(2, 1, 6, 4, dtype=torch.float64)
    found, _ = step_of(net, x, target)
    for one, other in zip(found, torch.autograd.grad(mse_loss(net(x[0]), target[0]), net.params), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-14)


@pytest.mark.usefixtures("factored")
def test_other_layers_keep_autograds_gradient() -> None:
    """A convolution, and a linear layer on a sequence (three dimensions)."""
    torch.manual_seed(0)
    net = flat(nn.Sequential(nn.Conv1d(2, 3, 1), nn.Linear(5, 5), nn.Flatten(), nn.Linear(15, 2)))
    x, target = torch.randn(1, 6, 2, 5, dtype=torch.float64), torch.randn(1, 6, 2, dtype=torch.float64)
    found, left = step_of(net, x, target)
    for one, other in zip(found, torch.autograd.grad(mse_loss(net(x[0]), target[0]), net.params), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-14)
    assert left == [True, True, True, True, False, False]


def test_small_layers_of_a_client_alone_are_left_to_autograd() -> None:
    net = flat(nn.Sequential(nn.Linear(5, 2)))
    assert all(step_of(net, torch.ones(1, 3, 5).double(), torch.zeros(1, 3, 2).double())[1])


@pytest.mark.usefixtures("factored")
def test_autocast_is_left_to_autograd() -> None:
    net = FlatNet(nn.Linear(5, 2), torch.device("cpu"), torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert all(step_of(net, torch.ones(1, 3, 5), torch.zeros(1, 3, 2))[1])


@pytest.mark.usefixtures("factored")
def test_plain_passes_leave_no_factors() -> None:
    net = flat(nn.Linear(5, 2))
    x, theta = torch.ones(3, 5, dtype=torch.float64), net.theta.clone().requires_grad_()
    with net.linears.factored():
        losses = net.untracked(x).sum(), net.at(theta)(x).sum()
    for loss, at in zip(losses, (net.params, [theta]), strict=True):
        assert all(g.abs().sum() > 0 for g in torch.autograd.grad(loss, at))
    assert net.linears.take() == []


def check_alike(monkeypatch: pytest.MonkeyPatch, train: Callable[[str], Federated], engine: str = "sequential") -> None:
    """Trained with factors by that engine, and with autograd's gradients one client after another: the same theta."""
    found = []
    for large, how in ((FACTORED, engine), (PLAIN, "sequential")):
        monkeypatch.setattr(linear, "LARGE", large)
        found.append(train(how).theta)
    torch.testing.assert_close(*found, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", MADE)
def test_every_objective_trains_alike(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_alike(monkeypatch, lambda _: fit(MADE[name](), ControlVariates(), Normalized()))


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_momentum_decay_and_pull_go_with_factors(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    local = replace(LOCAL, momentum=0.6, weight_decay=0.01)
    check_alike(monkeypatch, lambda how: fit(MADE["soft"](), Proximal(0.3), local=local, engine=how), engine)


def test_factors_beside_batch_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(engine: str) -> Federated:
        torch.manual_seed(0)
        return fit(MADE["soft"](), model=BatchNormed(), rounds=2)

    check_alike(monkeypatch, train)


class Tokens(nn.Sequential):
    """A linear layer on sequences, which is not factored, before one that is."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(1, 2), nn.Linear(SIDE, 4), nn.Tanh(), nn.Flatten(), nn.Linear(4 * SIDE, CLASSES))


def test_a_layer_on_sequences_in_a_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(engine: str) -> Federated:
        torch.manual_seed(0)
        return fit(MADE["soft"](), ControlVariates(), model=Tokens().double(), engine=engine)

    check_alike(monkeypatch, train, "vectorized")


def test_a_stack_under_autocast_is_one_client_after_another() -> None:
    one, many = (train(federated(MADE["soft"](), engine=e), 3, "bf16-mixed") for e in ("sequential", "vectorized"))
    start = federated(MADE["soft"]()).theta.detach()
    assert (one.theta - start).norm() > 0.1
    torch.testing.assert_close(
        many.theta, one.theta, rtol=0, atol=0.02 * float((one.theta - start).detach().abs().max())
    )


@pytest.mark.parametrize("correction", [Correction, ControlVariates])
@pytest.mark.parametrize(
    ("name", "engine"),
    [*((name, "sequential") for name in MADE), *((name, "vectorized") for name in STACKED)],
)
def test_a_step_that_waits_is_the_same_step(
    name: str, engine: str, correction: type[Correction], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "LARGE", FACTORED)
    monkeypatch.setattr(linear, "PART", 5 * 8)  # bytes: a row at a time of the first layer, several of the last
    thetas, settled, settle = [], [], linear.Due.settle
    monkeypatch.setattr(linear.Due, "settle", lambda *args: settled.append(len(args) > 1) or settle(*args))
    local = replace(LOCAL, epochs=2)  # labels are renewed within the round, and clients end at different steps
    for huge in (1 << 40, 1):
        monkeypatch.setattr(linear, "HUGE", huge)
        thetas.append(fit(MADE[name](), correction(), Normalized(), engine=engine, local=local).theta.detach())
        assert (len(settled) > 0) == (huge == 1 and not (MADE[name]().memory or MADE[name]().adapts))
    assert any(settled) or name not in ("supervised", "soft", "pi_model")  # together with the next step's forward pass
    torch.testing.assert_close(thetas[1], thetas[0], rtol=0, atol=1e-12)
