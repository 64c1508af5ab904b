"""evaluate=ema: the moving average of theta over the rounds is tested instead of theta."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from conftest import SMALL
from quadratics import solve
from tiny import fit

from fedshvr.algorithms.aggregation import Average
from fedshvr.algorithms.corrections import Correction
from fedshvr.algorithms.objectives.supervised import Supervised
from fedshvr.errors import UserError

A, B, TAU = [1.0, 2.0, 0.5], [3.0, -1.0, 7.0], [2, 5, 9]


def test_by_hand() -> None:
    """omega = tau / 16, so tau_bar = (4 + 25 + 81) / 16 and a = 0, 1/2, 2/3, then 0.95^6.875 = 0.703 < 3/4."""
    decay, expected = 0.95, 0.0
    for t in range(1, 6):
        module = solve(A, B, TAU, Correction(), Average(), t, evaluate="ema", ema_decay=decay)
        a = [0, 1 / 2, 2 / 3, decay**6.875, decay**6.875][t - 1]
        expected = a * expected + (1 - a) * module.theta.item()
        assert module.server.ema.item() == pytest.approx(expected, abs=1e-14)


def test_the_average_changes_nothing_but_the_test() -> None:
    plain = solve(A, B, TAU, Correction(), Average(), 4)
    averaged = solve(A, B, TAU, Correction(), Average(), 4, evaluate="ema")
    assert torch.equal(averaged.theta, plain.theta)
    assert plain.server.ema is None
    assert averaged.state_dict().keys() - plain.state_dict().keys() == {"server.ema"}


def test_the_average_of_the_clients_that_took_part_counts_their_steps() -> None:
    """Two of three clients: tau_bar is over them, with weights that sum to 1."""
    first, second = (
        solve(A, B, TAU, Correction(), Average(), t, participation=0.67, evaluate="ema", ema_decay=0.5) for t in (1, 2)
    )
    tau = np.array(TAU)[second.cohort(1)]
    a = 0.5 ** ((tau / tau.sum() * tau).sum())
    expected = a * first.theta.item() + (1 - a) * second.theta.item()
    assert second.server.ema.item() == pytest.approx(expected, abs=1e-14)


def test_what_is_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss on the test set is that of a model whose theta is this average."""
    averaged, plain = (fit(Supervised(), rounds=3, evaluate=name) for name in ("ema", "theta"))
    plain.theta.data.copy_(averaged.server.ema)
    for module in (averaged, plain):
        monkeypatch.setattr(module, "log_dict", lambda *_, **__: None)
        with torch.no_grad():
            module.validation_step(None, 0)
    assert averaged.row["test_loss"] == plain.row["test_loss"]
    assert not torch.equal(averaged.server.ema, averaged.theta)


def test_resume_is_exact_and_other_checkpoints_are_refused(train: Callable) -> None:
    options = ["algorithm=fed_fixmatch", "evaluate=ema", "ema_decay=0.9", *SMALL]
    whole = train(*options, "rounds=4", folder="whole")
    train(*options, "rounds=2", folder="parts")
    parts = train(*options, "rounds=4", "ckpt_path=last", folder="parts")
    assert parts.timeless == whole.timeless
    a, b = (torch.load(r.folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"] for r in (whole, parts))
    assert torch.equal(a["ema"], b["ema"])
    assert not torch.equal(a["ema"], a["theta"])
    with pytest.raises(UserError, match="the checkpoint has evaluate=ema, this run has evaluate=theta"):
        train(*options, "evaluate=theta", "rounds=5", "ckpt_path=last", folder="parts")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"evaluate": "teacher"}, "evaluate=teacher: must be one of theta, ema"),
        ({"evaluate": "ema", "ema_decay": 1.0}, "ema_decay=1.0: must be at least 0 and below 1"),
        ({"ema_decay": -0.1}, "ema_decay=-0.1: must be at least 0 and below 1"),
    ],
)
def test_bad_values_get_one_sentence(options: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        solve(A, B, TAU, Correction(), Average(), 1, **options)
