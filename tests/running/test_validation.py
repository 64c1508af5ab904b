"""Samples held out for validation: whose they are, what is measured on them, and what is chosen by it."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import SMALL, compose_train
from torch.nn.functional import cross_entropy

from fedshvr.data import sources
from fedshvr.errors import UserError
from fedshvr.federation.held_out import hold_out, of_the_rest
from fedshvr.federation.partition import iid, sha256
from fedshvr.running.folder import score
from fedshvr.running.run import build

Train = Callable[..., object]
TENTH = ["validation=0.1", *SMALL]
Y = np.arange(200) % 3  # 67, 67 and 66 of a class


def test_a_share_of_every_class_is_held_out() -> None:
    held_out = hold_out(Y, 0.1, seed=0)
    assert np.bincount(Y[held_out]).tolist() == [7, 7, 6]
    assert (np.diff(held_out) > 0).all()
    assert held_out.tolist() == hold_out(Y, 0.1, seed=0).tolist() != hold_out(Y, 0.1, seed=1).tolist()
    assert len(hold_out(Y, 0.0, seed=0)) == 0


def test_the_partition_is_that_of_the_rest_in_indices_into_all() -> None:
    held_out = hold_out(Y, 0.1, seed=0)
    splits = of_the_rest(Y, held_out, lambda y: iid(y, clients=4, labeled_per_client=6, seed=0))
    given = [i for split in splits for i in (*split.labeled.tolist(), *split.unlabeled.tolist())]
    assert sorted([*given, *held_out.tolist()]) == list(range(200))
    assert [np.bincount(Y[split.labeled]).tolist() for split in splits] == [[2, 2, 2]] * 4


def test_without_validation_the_partition_is_what_it_was() -> None:
    make = lambda y: iid(y, clients=4, labeled_per_client=6, seed=0)  # noqa: E731
    assert sha256(of_the_rest(Y, hold_out(Y, 0.0, 0), make), hold_out(Y, 0.0, 0)) == sha256(make(Y))


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_a_share_outside_0_to_1_is_refused(share: float) -> None:
    with pytest.raises(UserError, match=f"validation={share}: must be at least 0 and below 1"):
        hold_out(Y, share, seed=0)


@pytest.mark.parametrize("share", [0.001, 0.999])
def test_every_class_must_be_on_both_sides(share: float) -> None:
    with pytest.raises(UserError, match=f"validation={share}: must hold out and leave .* the smallest has 66"):
        hold_out(Y, share, seed=0)


def test_a_run_measures_both_and_chooses_by_validation(train: Train, capsys: pytest.CaptureFixture) -> None:
    run = train(*TENTH)
    held_out = json.loads((run.folder / "partition.json").read_text())["validation"]
    assert len(held_out) == round(0.1 * 1437)
    assert list(run.rows[0])[:5] == ["round", "test_acc", "test_loss", "val_acc", "val_loss"]
    state = torch.load(run.folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    data = sources.load("digits", "")
    module = build(compose_train(*TENTH))[1]
    torch.nn.utils.vector_to_parameters(state["theta"], module.network.parameters())
    logits = module.network.eval()(data.x[held_out])
    accuracy = (logits.argmax(-1) == data.y[held_out]).double().mean().item()
    assert float(run.rows[-1]["val_acc"]) == pytest.approx(accuracy, abs=1e-12)
    assert float(run.rows[-1]["val_loss"]) == pytest.approx(cross_entropy(logits, data.y[held_out]).item(), rel=1e-5)

    best = max(run.rows, key=lambda row: float(row["val_acc"]))
    summary = run.summary
    assert score(summary) == summary["val_acc"] == float(run.rows[-1]["val_acc"])
    assert summary["best_val_acc"] == float(best["val_acc"])
    assert summary["test_acc_at_best_val"] == float(best["test_acc"])
    told = capsys.readouterr().out
    assert "144 samples of the training set are held out for validation" in told
    assert f"validation  {100 * summary['val_acc']:.2f} % (best {100 * summary['best_val_acc']:.2f} %" in told


def test_without_validation_nothing_is_best(train: Train, capsys: pytest.CaptureFixture) -> None:
    run = train(*SMALL, "rounds=1")
    assert not {"val_acc", "best_val_acc", "test_acc_at_best_val"} & set(run.summary)
    assert not {"val_acc", "val_loss"} & set(run.rows[0])
    assert score(run.summary) == run.summary["test_acc"]
    assert "best" not in capsys.readouterr().out


def test_resume_is_exact(train: Train) -> None:
    whole = train(*TENTH, "rounds=4", folder="whole")
    train(*TENTH, "rounds=2", folder="parts")
    parts = train(*TENTH, "rounds=4", "ckpt_path=last", folder="parts")
    assert parts.theta == whole.theta
    assert parts.timeless == whole.timeless
    for name in ("val_acc", "best_val_acc", "test_acc_at_best_val"):
        assert parts.summary[name] == whole.summary[name]
    with pytest.raises(UserError, match="ckpt_path: the checkpoint has partition_sha256="):
        train(*TENTH, "validation=0.2", "rounds=5", "ckpt_path=last", folder="parts")


def test_labels_of_held_out_samples_are_not_in_the_clients_data() -> None:
    federation = build(compose_train(*TENTH))[0]
    pool = federation.pool(torch.device("cpu"), torch.float64, pseudo_labels=False)
    assert (pool.y[federation.held_out] == -1).all()


def test_an_evaluation_that_is_not_made_is_no_number(train: Train, tmp_path: Path) -> None:
    run = train(*TENTH, "trainer.check_val_every_n_epoch=3")
    assert [row["val_acc"] != "nan" for row in run.rows] == [False, False, True]
    assert run.summary["best_val_acc"] == run.summary["val_acc"]
