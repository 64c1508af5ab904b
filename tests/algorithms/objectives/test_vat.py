from math import log

import pytest
import torch
from hand import CE, CE_SLOPE, ZERO, column, line, slope
from torch import Tensor, nn
from torch.func import grad, hessian

from fedshvr.algorithms.objectives.batch import Batch
from fedshvr.algorithms.objectives.formulas import normals
from fedshvr.algorithms.objectives.ramp import Ramp
from fedshvr.algorithms.objectives.vat import VAT, kl, steepest, unit
from fedshvr.compute.vector import FlatNet


def number(sign: int) -> Tensor:
    """A uniform number whose normal number has this sign."""
    candidates = torch.rand(20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return candidates[normals(candidates, column(*[0.0] * 20))[:, 0] * sign > 0][:1]


def net_and_images(dtype: torch.dtype = torch.float64) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(12, 9), nn.Tanh(), nn.Linear(9, 4)).double()
    u, d = torch.randn(2, 5, 12, dtype=torch.float64)
    return net.to(dtype), u.to(dtype), d.to(dtype)


def test_by_hand() -> None:
    """From u = 1 with epsilon = 1 to 2: KL((3, 1)/4 || (9, 1)/10); its slope (.9 - .75) 2 knows neither p* nor r."""
    net, objective = line(), VAT(3.0, 1.0, Ramp(0), entropy=0.5)
    objective.begin_round(0)
    batch = Batch(column(1), ZERO, (column(1),), noise={"direction": number(+1)})
    loss, parts = objective.loss(net, batch, {})
    divergence = 0.75 * log(0.75 / 0.9) + 0.25 * log(0.25 / 0.1)
    entropy = -0.75 * log(0.75) - 0.25 * log(0.25)
    assert parts["unlabeled"].item() == pytest.approx(divergence, abs=1e-14)
    assert parts["entropy"].item() == pytest.approx(entropy, abs=1e-14)
    assert loss.item() == pytest.approx(CE + 3 * (divergence + 0.5 * entropy), abs=1e-14)
    assert slope(parts["unlabeled"], net) == pytest.approx(0.15 * 2, abs=1e-14)
    # d entropy/dw = -f_0 f_1 x (ln f_0 - ln f_1)
    assert slope(loss, net) == pytest.approx(CE_SLOPE + 3 * (0.3 - 0.5 * 3 / 16 * log(3)), abs=1e-14)


def test_the_start_decides_the_side() -> None:
    """The other way from 1 by 1 is 0, where f = (1, 1)/2."""
    batch = Batch(column(1), ZERO, (column(1),), noise={"direction": number(-1)})
    _, parts = VAT(1.0, 1.0, Ramp(0)).loss(line(), batch, {})
    assert parts["unlabeled"].item() == pytest.approx(0.75 * log(1.5) + 0.25 * log(0.5), abs=1e-14)


def test_the_direction_is_the_dominant_one_of_a_linear_softmax() -> None:
    """Two classes: H = f_0 f_1 (w_0 - w_1)(w_0 - w_1)' has one direction, found from any start."""
    torch.manual_seed(4)
    net = nn.Linear(6, 2).double()
    u, d = torch.randn(2, 5, 6, dtype=torch.float64)
    with torch.no_grad():
        found = steepest(net, u, net(u).softmax(-1), d)
        best = nn.functional.normalize(net.weight[0] - net.weight[1], dim=0)
    torch.testing.assert_close(found * (d @ best).sign()[:, None], best.expand(5, -1), rtol=0, atol=1e-12)


def test_the_direction_is_one_power_iteration_with_the_hessian() -> None:
    net, u, d = net_and_images()
    log_p = net(u).log_softmax(-1).detach()
    found = steepest(net, u, log_p.exp(), d)
    for i in range(len(u)):
        h = hessian(lambda r, i=i: kl(log_p[i], net(u[i] + r).log_softmax(-1)[None]))(torch.zeros_like(u[i]))
        torch.testing.assert_close(found[i], nn.functional.normalize(h @ d[i], dim=0), rtol=0, atol=1e-10)


def test_the_published_difference_quotient_agrees_in_float64_and_ours_also_in_float32() -> None:
    net, u, d = net_and_images()
    log_p = net(u).log_softmax(-1).detach()
    found = steepest(net, u, log_p.exp(), d)
    published = unit(grad(lambda r: kl(log_p, net(u + r).log_softmax(-1)))(1e-6 * unit(d)))
    torch.testing.assert_close(found, published.detach(), rtol=0, atol=1e-5)
    net, u, d = net_and_images(torch.float32)
    torch.testing.assert_close(steepest(net, u, net(u).softmax(-1), d).double(), found, rtol=0, atol=1e-5)


def test_no_gradient_flows_through_the_direction() -> None:
    """The gradient is that of the divergence at a given r."""
    module, u, _ = net_and_images()
    net, numbers = FlatNet(module, u.device, u.dtype), torch.rand(5, dtype=torch.float64)
    batch = Batch(u[:1], ZERO, (u,), noise={"direction": numbers})
    _, parts = VAT(1.0, 1.5, Ramp(0)).loss(net, batch, {})
    log_p = net(u).log_softmax(-1).detach()
    r = 1.5 * steepest(net, u, log_p.exp(), normals(numbers, u)).detach()
    given = kl(log_p, net(u + r).log_softmax(-1))
    for found, expected in zip(*(torch.autograd.grad(d, net.params) for d in (parts["unlabeled"], given)), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_a_flat_network_gives_no_direction_and_no_nan() -> None:
    net = nn.Linear(6, 2)
    nn.init.zeros_(net.weight)
    u = torch.ones(3, 6)
    assert torch.equal(steepest(net, u, net(u).softmax(-1), u), torch.zeros(3, 6))


def test_batch_norm_keeps_the_statistics_of_the_labelled_pass() -> None:
    x, u = torch.randn(2, 4, 3, dtype=torch.float64)
    modules = [nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)) for _ in range(2)]
    nets = [FlatNet(module, torch.device("cpu"), torch.float64) for module in modules]
    batch = Batch(x, torch.tensor([0, 1, 1, 0]), (u,), noise={"direction": torch.rand(4, dtype=torch.float64)})
    VAT(1.0, 1.0, Ramp(0)).loss(nets[0], batch, {})
    nets[1](x)
    assert torch.equal(nets[0].buffers, nets[1].buffers)


def test_normals_are_normal_and_each_image_has_its_own() -> None:
    numbers = torch.tensor([0.0, 0.25, 0.25 + 2**-53], dtype=torch.float64)
    z = normals(numbers, torch.zeros(3, 1, 100, 100))
    assert z.dtype == torch.float32
    assert torch.isfinite(z).all()
    assert z.mean((1, 2, 3)).abs().max() < 0.04  # four standard errors
    assert (z.flatten(1).std(1) - 1).abs().max() < 0.03
    assert torch.corrcoef(z.flatten(1)).fill_diagonal_(0).abs().max() < 0.04
    assert torch.equal(normals(numbers[1:], z[1:]), z[1:])
