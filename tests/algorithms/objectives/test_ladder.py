from math import exp, log, sqrt

import pytest
import tiny
import torch
from hand import ZERO, column
from torch import nn

from fedshvr.algorithms.objectives.batch import Batch
from fedshvr.algorithms.objectives.ladder import Ladder
from fedshvr.algorithms.objectives.ladder_net import LadderNet, combine, stages_of
from fedshvr.algorithms.objectives.ramp import Ramp
from fedshvr.compute.vector import FlatNet
from fedshvr.errors import UserError
from fedshvr.models.mlp import MLP

EPS = 1e-5  # of batch norm
CPU = torch.device("cpu")


def ladder(noise: float = 0.0, lambdas: tuple[float, ...] = (5.0, 3.0)) -> Ladder:
    objective = Ladder(2.0, noise, noise, list(lambdas), 4.0, Ramp(0))
    objective.begin_round(0)
    return objective


def opposites(objective: Ladder) -> FlatNet:
    """Logits (x, -x) before batch norm; the logits are estimated by z/4 + 3u/8, the image by u = BN(e_0 - e_1)."""
    network = MLP((1,), 2, hidden=[])
    net = FlatNet(objective.wrap(network), CPU, torch.float64)
    with torch.no_grad():
        network.layers[0].weight.copy_(column(1, -1)), network.layers[0].bias.zero_()
        objective.ladder.v[0].weight.copy_(torch.tensor([[1.0, -1.0]]))
        objective.ladder.a[0][3], objective.ladder.a[1][3], objective.ladder.a[1][9] = 1.0, 0.5, 0.25
    return net


def test_by_hand() -> None:
    """Images 1 and -1: z = (r, -r) and its opposite, r = 1/sqrt(1 + eps); all that follows is +- one number too."""
    objective = ladder()
    net = opposites(objective)
    batch = Batch(column(1), ZERO, (column(-1),), noise={"noise": torch.zeros(2, 2)})
    loss, parts = objective.loss(net, batch, {})
    r = 1 / sqrt(1 + EPS)
    sure = 1 / (1 + exp(-2 * r))
    u = (sure - 1 / 2) / sqrt((sure - 1 / 2) ** 2 + EPS)
    estimate = r / 4 + 3 * u / 8
    image = 2 * estimate / sqrt(4 * estimate**2 + EPS)
    costs = [(1 - image) ** 2, (r - estimate * r) ** 2]
    assert parts["labeled"].item() == pytest.approx(-log(sure), abs=1e-14)
    assert parts["unlabeled"].item() == pytest.approx(5 * costs[0] + 3 * costs[1], abs=1e-14)
    assert loss.item() == pytest.approx(-log(sure) + 2 * (5 * costs[0] + 3 * costs[1]), abs=1e-14)


def test_the_combinator_by_hand() -> None:
    """u = ln 3: m = 4 (3/4) + 1 = 4, s = 2 (1/4) + 1 = 3/2, (6 - 4) 3/2 + 4 = 7; and u's own shares."""
    a = torch.tensor([4.0, 1, 0, 0, 1, 2, -1, 0, 0, 1], dtype=torch.float64)[:, None]
    u, z = column(log(3)), column(6)
    assert combine(a, z, u).item() == pytest.approx(7, abs=1e-14)
    a[3], a[8] = 2, 1
    m, s = 4 + 2 * log(3), 1.5 + log(3)
    assert combine(a, z, u).item() == pytest.approx((6 - m) * s + m, abs=1e-14)


def test_the_gradient_flows_through_the_clean_pass_and_the_noisy_one() -> None:
    objective = ladder()
    net = opposites(objective)
    x = column(1, -1, 0.5)
    passes = [objective.ladder.watch(net, x, numbers) for numbers in (None, torch.zeros(2, 3))]
    cost = objective.ladder.denoise(passes[1][0], passes[0][1], passes[1][1])[1]
    assert all(torch.autograd.grad(cost, layers[1].z, retain_graph=True)[0].any() for _, layers in passes)


def test_the_noise_is_that_of_the_numbers_and_only_in_the_noisy_pass() -> None:
    """Of two images batch norm makes opposites, so their sum is that of their noise."""
    net = LadderNet(MLP((1, 50, 40), 3, hidden=[2000]), noise=0.3, image_noise=0.9)
    x, numbers = torch.zeros(2, 1, 50, 40), torch.rand(3, 2, generator=torch.Generator().manual_seed(0)).double()
    (_, clean), (logits, noisy), (again, _) = (net.watch(net, x, n) for n in (None, numbers, numbers))
    assert not clean[0].z.any()
    for layer, noise in zip(noisy, (0.9, 0.3), strict=False):
        assert layer.z.sum(0).std().item() == pytest.approx(noise * sqrt(2), rel=0.05)
    assert torch.equal(logits, again)
    assert not torch.equal(net(x), logits)


def test_the_layers_of_an_mlp_and_of_another_network() -> None:
    stages = stages_of(MLP((4,), 3, hidden=[6, 5], dropout=0.5))
    kinds = [[type(layer).__name__ for layer in stage] for stage in stages]
    assert kinds == [["Linear"], ["ReLU", "Dropout", "Linear"], ["ReLU", "Dropout", "Linear"]]
    assert [len(a[0]) for a in LadderNet(MLP((4,), 3, hidden=[6, 5]), 0.3, 0.3).a] == [4, 6, 5, 3]
    other = LadderNet(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3)), 0.3, 0.3)
    assert [len(a[0]) for a in other.a] == [3]
    assert other(torch.randn(5, 1, 4, 4)).shape == (5, 3)


def test_weights_of_layers_and_of_the_top_alone() -> None:
    """The last lambda is that of all further layers; a network that is one layer has `top`."""
    for network, expected in ((MLP((4,), 3, hidden=[6, 5]), [5, 3, 3, 3]), (nn.Linear(4, 3), [4])):
        objective = ladder()
        net = FlatNet(objective.wrap(network), CPU, torch.float64)
        x = torch.randn(8, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        numbers = torch.zeros(1 + len(objective.ladder.stages), 8)
        parts = objective.loss(net, Batch(x[:3], torch.tensor([0, 1, 2]), (x[3:],), noise={"noise": numbers}), {})[1]
        (_, clean), (logits, noisy) = (objective.ladder.watch(net, x, n) for n in (None, numbers))
        costs = objective.ladder.denoise(logits, clean, noisy)
        wanted = sum(weight * cost.item() for weight, cost in zip(expected, costs, strict=True))
        assert parts["unlabeled"].item() == pytest.approx(wanted, rel=1e-12)


def test_the_clean_pass_moves_the_statistics_and_evaluation_uses_them() -> None:
    module = tiny.fit(ladder(0.3), rounds=2)
    net, x = module.bench.net, tiny.images().x
    net.load(module.theta.detach(), module.server.buffers_)
    net.module.eval()
    assert len(module.server.buffers_) == 2 * (7 + tiny.CLASSES)
    torch.testing.assert_close(net(x)[:3], net(x[:3]), rtol=0, atol=1e-12)  # no image sees the others


@pytest.mark.parametrize(
    ("option", "value", "valid"),
    [
        ("noise", -1, "at least 0"),
        ("image_noise", -1, "at least 0"),
        ("top", -1, "at least 0"),
        ("lambdas", [], "a list"),
    ],
)
def test_bad_options_are_refused(option: str, value: object, valid: str) -> None:
    options = {"weight": 1.0, "noise": 0.3, "image_noise": 0.3, "lambdas": [1.0], "top": 1.0, "ramp": Ramp(0)}
    with pytest.raises(UserError, match=rf"algorithm\.objective\.{option}=.*: must be {valid}"):
        Ladder(**options | {option: value})
