"""A run that stopped and went on ends with the same bits, for every algorithm: all its state is in the checkpoint."""

from collections.abc import Callable

import pytest
import torch
from conftest import ALGORITHMS, SMALL

OWN_STATE = {  # overrides with which the state matters within four rounds, before and after the stop
    "fed_mt": [],
    "fedsem": ["algorithm.objective.labeled_rounds=1", "algorithm.objective.labeled_steps=labeled"],
    "fed_ds3l": [],
    "fedmatch": ["algorithm.objective.helpers_every=2"],
    "grouping": [],
    "fed_self_training": ["algorithm.objective.keep=true", "algorithm.objective.threshold=0.3"],
}


def case(algorithm: str) -> object:
    return pytest.param(algorithm, marks=() if algorithm in OWN_STATE else pytest.mark.slow)


@pytest.mark.parametrize("algorithm", [case(name) for name in ALGORITHMS])
def test_resume_is_exact(train: Callable, algorithm: str) -> None:
    assert_exact(train, f"algorithm={algorithm}", *OWN_STATE.get(algorithm, []), *SMALL)


def test_resume_with_labels_renewed_each_epoch(train: Callable) -> None:
    epochs = ["algorithm.objective.relabel=epoch", "algorithm.objective.label_view=weak", "client.epochs=3"]
    assert_exact(train, *SMALL, *epochs, "participation=0.5", "optimality_gap=true")


def test_resume_in_the_midst_of_a_ramp_by_steps(train: Callable) -> None:
    assert_exact(
        train, *SMALL, "ramp.by=step", "ramp.start=0.1", "ramp.epochs=3.5", "algorithm.objective.exponent=current"
    )


def assert_exact(train: Callable, *overrides: str) -> None:
    whole = train(*overrides, "rounds=4", folder="whole")
    train(*overrides, "rounds=2", folder="parts")
    parts = train(*overrides, "rounds=4", "ckpt_path=last", folder="parts")
    assert parts.theta == whole.theta
    assert parts.timeless == whole.timeless
    a, b = (torch.load(r.folder / "checkpoints" / "last.ckpt", weights_only=True)["clients"] for r in (whole, parts))
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
