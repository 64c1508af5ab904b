"""Run folders from before the package had rooms are known and can be built again."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import ALGORITHMS, SMALL, compose_train
from hydra.utils import get_object
from omegaconf import OmegaConf

from fedshvr.running.folder import finished_before
from fedshvr.running.moved import MOVED, as_of_today

BEFORE = [(now, before) for before, now in MOVED.items()]


def as_before(config: Any) -> Any:
    """As 0.1.0 wrote it before the move, when data had no _target_."""
    text = json.dumps(config)
    for now, before in BEFORE:
        text = re.sub(rf'("_target_": "){re.escape(now)}', rf"\g<1>{before}", text)
    tree = json.loads(text)
    del tree["data"]["_target_"]
    return tree


def targets(config: Any) -> list[str]:
    return re.findall(r'"_target_": "(fedshvr[^"]*)"', json.dumps(config))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_target_of_a_configuration_is_found_again(algorithm: str) -> None:
    cfg = compose_train(f"algorithm={algorithm}", "logger=wandb", "paths.run=x")
    now = OmegaConf.to_container(cfg, resolve=False)
    before = as_before(now)
    assert len([name for name in targets(before) if name not in targets(now)]) >= 4
    assert as_of_today(before) == now == as_of_today(now)
    assert all(callable(get_object(name)) for name in targets(now))


def test_a_run_that_has_finished_before_the_move_is_not_made_again(train: Callable, tmp_path: Path) -> None:
    run = train(*SMALL, "rounds=1")
    config = run.summary["config"]
    (run.folder / "summary.json").write_text(json.dumps(run.summary | {"config": as_before(config)}))
    found = finished_before(run.folder, config)
    assert found is not None
    assert found["theta_sha256"] == run.theta
    assert finished_before(run.folder, config | {"rounds": 2}) is None
    assert finished_before(run.folder, config | {"callbacks": {"mine": {"_target_": "x"}}}) is None
    assert finished_before(run.folder, config | {"tags": ["new"], "logger": {"wandb": {}}}) == found
    older = {name: value for name, value in as_before(config).items() if name not in ("callbacks", "tags")}
    (run.folder / "summary.json").write_text(json.dumps(run.summary | {"config": older}))
    assert finished_before(run.folder, config) is not None


def test_a_checkpoint_has_the_names_that_it_always_had(train: Callable) -> None:
    import torch

    run = train(*SMALL, "rounds=1", "evaluate=ema")
    checkpoint = torch.load(run.folder / "checkpoints" / "last.ckpt", weights_only=True)
    assert set(checkpoint["state_dict"]) == {"theta", "buffers_", "c", "ema", "done", "group_models"}
    assert set(checkpoint["clients"]) == {"c_k", "v"}
