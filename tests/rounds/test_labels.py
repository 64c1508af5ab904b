"""Which view of an image is labelled: label_view."""

from dataclasses import replace
from typing import Any

import methods
import pytest
import tiny
import torch
from torch import Tensor, nn, softmax

from fedshvr.algorithms.objectives.fedsem import FedSem
from fedshvr.algorithms.objectives.hard_pseudo_label import HardPseudoLabel
from fedshvr.algorithms.objectives.labeling import Labeling
from fedshvr.algorithms.objectives.ramp import Ramp
from fedshvr.algorithms.objectives.soft_pseudo_label import SoftPseudoLabel
from fedshvr.compute import linear
from fedshvr.compute.streams import Draws
from fedshvr.errors import UserError
from fedshvr.federation.plan import LocalSGD
from fedshvr.rounds.federated import Federated

STILL = LocalSGD(eta=1e-300, epochs=1, batch_labeled=3, batch_unlabeled=6)  # theta stays where it is
LOOKS = {"clean": 1, "weak": 1, "mean4": 4}


def soft(label_view: str) -> SoftPseudoLabel:
    return SoftPseudoLabel(1.0, 0.75, 0.1, Ramp(0), label_view=label_view)


def labels(label_view: str, round: int, purpose: str = "label view") -> Tensor:
    """v of round `round` (from 0) at theta_0: alpha0/alpha1 = 4/3 of the mean prediction over the views."""
    x, net = tiny.images().x, tiny.network()
    v = torch.full((len(x), tiny.CLASSES), 1 / tiny.CLASSES, dtype=torch.float64)
    for k, split in enumerate(tiny.splits()):
        shape = (LOOKS[label_view], len(split.unlabeled), 1)
        moves = Draws(0, round, torch.tensor([k]))(purpose, shape)[0]
        views = [x[split.unlabeled] if label_view == "clean" else tiny.WEAK.apply(x[split.unlabeled], m) for m in moves]
        f = torch.stack([softmax(net(view), -1) for view in views]).mean(0)
        v[split.unlabeled] = f ** (4 / 3) / (f ** (4 / 3)).sum(-1, keepdim=True)
    return v.detach()


def made(module: Federated) -> Tensor:
    return module.bench.pool.v


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("view", LOOKS)
def test_labels_come_from_the_view_asked_for(view: str, engine: str) -> None:
    for rounds in (1, 3):
        module = tiny.fit(soft(view), rounds=rounds, local=STILL, engine=engine)
        torch.testing.assert_close(made(module), labels(view, rounds - 1), rtol=0, atol=1e-14)


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("view", LOOKS)
def test_each_epoch_of_a_round_has_views_of_its_own(view: str, engine: str) -> None:
    """After a round of E = 3 the labels are those of its epoch 2, for clients of 6, 9 and 12 steps alike."""
    objective = SoftPseudoLabel(1.0, 0.75, 0.1, Ramp(0), relabel="epoch", label_view=view)
    module = tiny.fit(objective, rounds=2, local=replace(STILL, epochs=3), engine=engine)
    assert module.plan.tau == [6, 9, 12]
    torch.testing.assert_close(made(module), labels(view, 1, "label view 2"), rtol=0, atol=1e-14)


@pytest.mark.parametrize("relabel", [HardPseudoLabel, SoftPseudoLabel])
def test_both_engines_renew_labels_of_moving_clients_alike(relabel: type[HardPseudoLabel | SoftPseudoLabel]) -> None:
    alphas = (1.0,) if relabel is HardPseudoLabel else (1.0, 0.75, 0.1)
    local = replace(tiny.LOCAL, epochs=3, momentum=0.5)
    one, many = (
        tiny.fit(relabel(*alphas, Ramp(2), relabel="epoch", label_view="mean4"), local=local, engine=engine)
        for engine in ("sequential", "vectorized")
    )
    torch.testing.assert_close(many.theta, one.theta, rtol=0, atol=1e-11)
    torch.testing.assert_close(made(many), made(one), rtol=0, atol=1e-11)


def test_a_labelling_in_the_round_sees_the_clients_batch_norm_and_leaves_it_training() -> None:
    """The labels are those of theta_k with its running statistics of that moment, without dropout."""
    seen: list[tuple[bool, Tensor]] = []

    class Watched(SoftPseudoLabel):
        def label(self, logits: Tensor) -> Tensor:
            seen.append((network.training, network[1].running_mean.clone()))
            return super().label(logits)

        def loss(self, net, batch, state):  # type: ignore[no-untyped-def]
            assert network.training
            return super().loss(net, batch, state)

    torch.manual_seed(0)
    network = tiny.BatchNormed().double()
    objective = Watched(1.0, 0.75, 0.1, Ramp(0), relabel="epoch")
    module = tiny.fit(objective, rounds=1, model=network, local=replace(tiny.LOCAL, epochs=2))
    (*start, first, second, third) = seen
    assert len(start) == 3
    assert not any(training for training, _ in seen)
    assert all((statistics == 0).all() for _, statistics in start)
    assert all((statistics != 0).all() for _, statistics in (first, second, third))
    assert torch.isfinite(module.theta).all()


def test_with_one_epoch_a_round_epoch_is_round() -> None:
    one, other = (
        tiny.fit(SoftPseudoLabel(1.0, 0.75, 0.1, Ramp(0), relabel=relabel, label_view="weak"))
        for relabel in ("round", "epoch")
    )
    assert torch.equal(one.theta, other.theta)


def test_each_labelling_has_views_of_its_own_and_each_image_too() -> None:
    first, second = labels("weak", 0), labels("weak", 1)
    unlabeled = tiny.hidden()
    assert ((first - second).abs().amax(-1)[unlabeled] > 1e-6).double().mean() > 0.7  # 9 shifts: 8/9 of them differ
    assert torch.equal(labels("clean", 0), labels("clean", 1))


def test_without_augmentation_every_view_is_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tiny.AUGMENTS, "weak", tiny.AUGMENTS["clean"])
    one, *others = (tiny.fit(soft(view), rounds=3) for view in LOOKS)
    for other in others:
        assert torch.equal(other.theta, one.theta)


def test_fedsem_labels_once_from_the_view_asked_for() -> None:
    module = tiny.fit(FedSem(1, 1, label_view="mean4"), rounds=3, local=STILL)
    hard = torch.nn.functional.one_hot(labels("mean4", 1).argmax(-1), tiny.CLASSES).double()
    unlabeled = tiny.hidden()
    assert torch.equal(made(module)[unlabeled], hard[unlabeled])


@pytest.mark.parametrize(("option", "value"), [("label_view", "strong"), ("relabel", "year")])
def test_an_unknown_choice_is_refused(option: str, value: str) -> None:
    with pytest.raises(UserError, match=rf"algorithm\.objective\.{option}={value}: must be one of"):
        SoftPseudoLabel(1.0, 0.75, 0.1, Ramp(0), **{option: value})


@pytest.mark.parametrize("relabel", ["round", "epoch"])
def test_labels_made_before_have_no_view_of_their_own(relabel: str) -> None:
    with pytest.raises(UserError, match=rf"label_view=own: there is such a view only with relabel=step, not {relabel}"):
        SoftPseudoLabel(1.0, 0.75, 0.1, Ramp(0), relabel=relabel, label_view="own")


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_the_own_view_is_the_augmented_image_that_is_learned(dropout: float) -> None:
    """By hand: one step of one client; with dropout the label is that of the whole network."""
    objective = SoftPseudoLabel(1.0, 0.75, 0.1, Ramp(0), relabel="step", label_view="own")
    seen: list[tuple[Tensor, Tensor]] = []
    label, look = objective.label, objective.look

    def watch(net: Any, batch: Any) -> tuple[Tensor, Tensor, Tensor]:
        (u,) = batch.u
        with torch.no_grad(), net.no_masks():
            expected = label(net.untracked(u))
        *logits, v = look(net, batch)
        seen.append((v, expected))
        return *logits, v

    objective.look = watch  # type: ignore[method-assign]
    tiny.fit(objective, rounds=1, engine="sequential", model=tiny.network(dropout=dropout))
    assert objective.in_one_pass == (dropout == 0)
    assert len(seen) > 3
    for got, expected in seen:
        torch.testing.assert_close(got, expected)
        assert got.std() > 1e-3


CONV = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.ReLU(), nn.Linear(72, tiny.CLASSES)).double()


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("objective", ["soft_step", "soft_stepwise", "soft_own", "hard_step", "hard_mean4"])
def test_labels_of_a_step_come_from_its_own_pass_where_the_network_is_the_same(
    objective: str, engine: str, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a huge layer makes its step together with it, and keeps the outputs of labelled samples."""
    labels_kept = tiny.AUGMENTS | {"labeled": tiny.AUGMENTS["clean"]}

    def theta(**options: object) -> tuple[Tensor, bool, int]:
        made = methods.MADE[objective]()
        return tiny.fit(made, engine=engine, **options).theta.detach(), made.in_one_pass, len(made.views)

    looks = {"soft_own": 0, "hard_mean4": 4}.get(objective, 1)
    assert theta(augments=tiny.AS_THEY_ARE, model=tiny.network(dropout=0.5))[1:] == (False, 1 + looks)
    assert theta(model=CONV)[1:] == (objective == "soft_own", 1 + looks)  # those aside would cost it too much
    for name in ("LARGE", "HUGE"):
        monkeypatch.setattr(linear, name, 0 if large else 1 << 40)
    options = [{"augments": augments} for augments in (tiny.AS_THEY_ARE, tiny.AUGMENTS, labels_kept)]
    one = [theta(**o) for o in options]
    assert [told for _, *told in one] == [[True, 1], [True, 1 + looks], [True, 1 + looks]]
    monkeypatch.setattr(Labeling, "label_in_one_pass", lambda self, one_view: None)
    two = [theta(**o) for o in options]
    assert not any(told for _, told, _ in two)
    for (a, *_), (b, *_) in zip(one, two, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
