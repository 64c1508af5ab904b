"""Dropout masks are a function of (seed, round, client, step, layer, pass): engines, ranks and order cannot differ."""

from collections.abc import Callable

import pytest
import torch
from methods import MADE, STACKED
from tiny import CLASSES, SIDE, fit, network
from torch import Tensor, nn
from torch.nn.functional import dropout

from fedshvr.algorithms.objectives.ramp import Ramp
from fedshvr.algorithms.objectives.supervised import Supervised
from fedshvr.algorithms.objectives.vat import VAT
from fedshvr.compute.dropout import Masks
from fedshvr.compute.vector import FlatNet
from fedshvr.errors import UserError


def masked(layer: nn.Module, number: float = 0.3) -> tuple[nn.Module, Masks]:
    masks = Masks(layer)
    masks.begin_step(torch.tensor(number, dtype=torch.float64))
    return layer, masks


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
def test_units_are_dropped_at_the_rate_and_the_others_scaled(p: float) -> None:
    layer, _ = masked(nn.Dropout(p))
    out = layer(torch.ones(400, 501, dtype=torch.float64))
    values = out.unique()
    assert values[0] == 0
    assert values[1].item() == pytest.approx(1 / (1 - p), rel=1e-4)
    assert (out == 0).double().mean().item() == pytest.approx(p, abs=0.005)
    assert out.mean(0).std() == pytest.approx((p / (1 - p) / 400) ** 0.5, rel=0.1)  # columns and rows are independent
    assert out.mean(1).std() == pytest.approx((p / (1 - p) / 501) ** 0.5, rel=0.1)


def test_masks_change_with_the_number_the_layer_and_the_pass() -> None:
    layers, masks = masked(nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5)))
    x = torch.ones(8, 32)
    first = [layer(x) for layer in layers]
    again = [layer(x) for layer in layers]
    masks.begin_step(torch.tensor(0.3, dtype=torch.float64))
    repeated = [layer(x) for layer in layers]
    masks.begin_step(torch.tensor(0.4, dtype=torch.float64))
    other = [layer(x) for layer in layers]
    seen = [*first, *again, *other]
    assert all(torch.equal(a, b) for a, b in zip(first, repeated, strict=True))
    assert all(not torch.equal(a, b) for i, a in enumerate(seen) for b in seen[:i])


def test_channels_are_dropped_whole() -> None:
    out = masked(nn.Dropout2d(0.5))[0](torch.ones(20, 30, 4, 4)).flatten(2)
    assert ((out == 0).all(2) | (out == 2).all(2)).all()
    assert 0.4 < (out == 0).double().mean() < 0.6


def test_nothing_is_dropped_in_evaluation_or_on_request() -> None:
    layer, masks = masked(nn.Dropout(0.5))
    x = torch.rand(4, 5)
    with masks.none():
        assert torch.equal(layer(x), x)
    assert torch.equal(layer.eval()(x), x)


@pytest.mark.parametrize("name", STACKED)
def test_vectorized_is_sequential_with_dropout(name: str) -> None:
    one, many = (
        fit(MADE[name](), model=network(dropout=0.4), participation=0.67, engine=engine, rounds=3)
        for engine in ("sequential", "vectorized")
    )
    torch.testing.assert_close(many.theta, one.theta, rtol=0, atol=1e-12)
    assert not torch.allclose(one.theta, fit(MADE[name](), participation=0.67, rounds=3).theta)


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_vat_measures_the_perturbation_and_not_the_masks(engine: str) -> None:
    """With a perturbation of almost nothing the divergence is almost nothing, whatever is dropped."""
    module = fit(VAT(1.0, 1e-4, Ramp(0)), model=network(dropout=0.5), rounds=2, engine=engine)
    assert 0 < module.row["train_unlabeled"] < 1e-6


class Functional(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, 0.5, self.training)


RANDOM: dict[str, Callable[[], nn.Module]] = {
    "alpha": lambda: nn.AlphaDropout(0.5),
    "rrelu": nn.RReLU,
    "functional": Functional,
    "transformer": lambda: nn.TransformerEncoderLayer(8, 2, 8, dropout=0.1, batch_first=True),
}
PLAIN: dict[str, Callable[[], nn.Module]] = {
    "dropout": lambda: nn.Dropout(0.5),
    "dropout2d": lambda: nn.Dropout2d(0.5),
    "relu": nn.ReLU,
}


def with_layer(layer: nn.Module) -> nn.Module:
    return nn.Sequential(layer, nn.Flatten(), nn.Linear(SIDE * SIDE, CLASSES)).double()


class Squeezed(nn.Sequential):
    """For a layer on sequences: the image's rows are the sequence."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x[:, 0])


def test_networks_with_randomness_of_their_own_are_recognised() -> None:
    for name, make in (RANDOM | PLAIN).items():
        model = with_layer(make())
        if name == "transformer":
            model = Squeezed(*model)
        net = FlatNet(model, torch.device("cpu"), torch.float64)
        net.probe(torch.randn(2, 1, SIDE, SIDE, dtype=torch.float64))
        assert net.random == (name in RANDOM), name
    with pytest.raises(UserError, match="engine=vectorized: this network has batch norm or random layers"):
        fit(Supervised(), model=with_layer(nn.AlphaDropout(0.5)), engine="vectorized")
    with pytest.raises(UserError, match="VAT compares passes that must drop the same units"):
        fit(VAT(1.0, 2.0, Ramp(0)), model=with_layer(nn.AlphaDropout(0.5)))
