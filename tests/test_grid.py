"""Every algorithm runs; every objective x correction x aggregation runs or is refused with a reason."""

from collections.abc import Callable
from functools import cache
from itertools import product

import pytest
import tiny
import torch
from conftest import ALGORITHMS, ROOT, SMALL, compose_train
from hydra.utils import instantiate
from omegaconf import DictConfig

from fedshvr.errors import UserError
from fedshvr.federation.plan import LocalSGD

LOCAL = LocalSGD(eta=0.01, epochs=0.5, batch_labeled=3, batch_unlabeled=6)
COMPARE_MOVES = ("control_variates", "scaffold", "vrl_sgd")  # from one common start, which groups do not have


def choices(part: str) -> list[str]:
    return sorted(path.stem for path in (ROOT / "configs" / "algorithm" / part).glob("*.yaml"))


@cache
def config(part: str, name: str) -> DictConfig:
    return compose_train(f"algorithm/{part}={name}").algorithm[part]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_runs_on_digits(train: Callable, algorithm: str) -> None:
    run = train(f"algorithm={algorithm}", *SMALL)
    assert run.summary["status"] == "finished"
    assert len(run.rows) == 3


@pytest.mark.parametrize("objective", choices("objective"))
def test_every_combination_runs_or_is_refused(objective: str) -> None:
    for correction, aggregation in product(choices("correction"), choices("aggregation")):
        parts = {"objective": objective, "correction": correction, "aggregation": aggregation}
        made = [instantiate(config(part, name)) for part, name in parts.items()]
        if aggregation == "grouped" and correction in COMPARE_MOVES:
            with pytest.raises(UserError, match=r"grouping starts clients from different models.*correction=none"):
                tiny.federated(*made, local=LOCAL)
        else:
            assert torch.isfinite(tiny.fit(*made, rounds=2, local=LOCAL).theta).all(), parts
