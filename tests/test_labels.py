"""Which view of an image is labelled: label_view."""

import pytest
import tiny
import torch
from torch import Tensor, softmax

from fedshvr.errors import UserError
from fedshvr.federated import Federated
from fedshvr.objectives.base import Ramp
from fedshvr.objectives.fedsem import FedSem
from fedshvr.objectives.soft_pseudo_label import SoftPseudoLabel
from fedshvr.plan import LocalSGD
from fedshvr.streams import Draws

STILL = LocalSGD(eta=1e-300, epochs=1, batch_labeled=3, batch_unlabeled=6)  # theta stays where it is
LOOKS = {"clean": 1, "weak": 1, "mean4": 4}


def soft(label_view: str) -> SoftPseudoLabel:
    return SoftPseudoLabel(1.0, 0.75, 0.1, Ramp(0), label_view=label_view)


def labels(label_view: str, round: int) -> Tensor:
    """v of round `round` (from 0) at theta_0: alpha0/alpha1 = 4/3 of the mean prediction over the views."""
    x, net = tiny.images().x, tiny.network()
    v = torch.full((len(x), tiny.CLASSES), 1 / tiny.CLASSES, dtype=torch.float64)
    for k, split in enumerate(tiny.splits()):
        shape = (LOOKS[label_view], len(split.unlabeled), 1)
        moves = Draws(0, round, torch.tensor([k]))("label view", shape)[0]
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
