"""A huge layer that keeps the outputs of samples that recur trains as one that multiplies with its weight each time."""

from dataclasses import replace

import pytest
import torch
from methods import MADE, STACKED
from tiny import AS_THEY_ARE, AUGMENTS, LOCAL, fit, network
from torch import nn

from fedshvr.algorithms.aggregation import Normalized
from fedshvr.algorithms.corrections import ControlVariates, Correction
from fedshvr.compute import linear
from fedshvr.compute.linear import FactoredLayers
from fedshvr.compute.recurring import Recurring, Uses

LONG = replace(LOCAL, epochs=4)  # clients end at different steps, and labels are renewed within the round
FIRST = ("supervised", "hard_round", "hard_step", "soft", "soft_clean", "soft_epoch", "soft_step", "pi_model", "fedsem")


@pytest.fixture
def owed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows the weights were owed, at each time."""
    found, owe = [], Recurring.owe
    monkeypatch.setattr(Recurring, "owe", lambda self, *args: found.append(args[0].numel()) or owe(self, *args))
    monkeypatch.setattr(linear, "LARGE", 0)
    return found


@pytest.mark.parametrize("correction", [Correction, ControlVariates])
@pytest.mark.parametrize(
    ("name", "engine"),
    [*((name, "sequential") for name in MADE), *((name, "vectorized") for name in STACKED)],
)
def test_the_same_training(
    name: str, engine: str, correction: type[Correction], owed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    thetas = []
    for huge in (1 << 40, 1):
        monkeypatch.setattr(linear, "HUGE", huge)
        model = fit(MADE[name](), correction(), Normalized(), engine=engine, local=LONG, augments=AS_THEY_ARE)
        thetas.append(model.theta.detach())
        assert not owed or huge == 1
    assert owed or name not in FIRST
    torch.testing.assert_close(thetas[1], thetas[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("sampling", ["replacement", "shuffle"])
def test_behind_input_dropout_nothing_recurs(sampling: str, owed: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "HUGE", 1)
    local = replace(LONG, sampling=sampling)
    fit(MADE["soft"](), local=local, augments=AS_THEY_ARE)
    assert owed
    owed.clear()
    fit(MADE["soft"](), local=local, augments=AS_THEY_ARE, model=nn.Sequential(nn.Dropout(0.5), network()))
    assert not owed


def test_augmented_samples_do_not_recur(owed: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "HUGE", 1)
    fit(MADE["soft"](), local=LONG, augments=AUGMENTS)
    assert not owed


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("name", ["soft_step", "hard_mean4", "soft_own", "fixmatch"])
def test_other_views_leave_the_weight_what_it_is_owed(
    name: str, dropout: float, engine: str, owed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Labelled samples recur, other views do not. With dropout the labels have their own pass: it settles nothing."""
    settled, settle = [], Recurring.settle
    monkeypatch.setattr(Recurring, "settle", lambda self: settled.append(1) or settle(self))
    thetas, augments = [], AUGMENTS | {"labeled": AUGMENTS["clean"]}
    for huge in (1 << 40, 1):
        monkeypatch.setattr(linear, "HUGE", huge)
        options = {"engine": engine, "local": LONG, "augments": augments, "model": network(dropout=dropout)}
        thetas.append(fit(MADE[name](), ControlVariates(), Normalized(), **options).theta.detach())
    assert owed
    clients, rounds = 3, 3
    assert len(settled) == clients * rounds
    torch.testing.assert_close(thetas[1], thetas[0], rtol=0, atol=1e-12)


def test_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps of one client: one sample that recurs, one of another kind, d = (1, -1), scale -.5."""
    layers = FactoredLayers(nn.Sequential(nn.Linear(2, 1)))
    weight, d = torch.tensor([[[1.0, 2.0]]]), torch.tensor([[[1.0, -1.0]]])
    layers.uses = Uses(torch.tensor([[[1.0, 0.0]]]), torch.tensor([[0]]))
    x, outer = torch.tensor([[[1.0, 0.0], [0.0, 2.0]]]), torch.tensor([[[2.0], [1.0]]])
    step = linear.Due(weight, d, [linear.Factors(0, None, outer, x)], -0.5)
    # a step: W - .5 (d + (2, 2)) = W - (1.5, .5)
    layers.put_off(step, whole=True)
    assert layers.product(0, weight, x).tolist() == [[[-0.5], [3.0]]]  # W = (-.5, 1.5)
    assert weight.tolist() == [[[0.5, 1.5]]]  # it is owed -.5 (2, 0)
    layers.put_off(step, whole=True)
    assert layers.product(0, weight, x[:, 1:]).tolist() == [[[2.0]]]  # W = (-2, 1), for others than those that recur
    layers.settle()
    assert weight.tolist() == [[[-2.0, 1.0]]]
    assert not layers.recurring
    assert not layers.due
