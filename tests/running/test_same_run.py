"""A checkpoint goes on only under the settings that it was made with."""

import re
from collections.abc import Callable

import pytest
from conftest import SMALL, compose_train
from omegaconf import OmegaConf

from fedshvr.errors import UserError
from fedshvr.running.moved import ADDED
from fedshvr.running.same_run import SameRun, mathematics


@pytest.mark.parametrize(
    ("option", "found", "here"),
    [
        ("client.eta=0.07", "client.eta=0.1", "client.eta=0.07"),
        ("algorithm.objective.alpha2=0.3", "algorithm.objective.alpha2=0.1", "algorithm.objective.alpha2=0.3"),
        ("client.epochs=1.5", "client.epochs=1", "client.epochs=1.5"),
        ("participation=0.5", "participation=1.0", "participation=0.5"),
        ("augment=none", "augment.pixels=1", "augment.pixels=None"),
    ],
)
def test_another_setting_is_refused_by_name(train: Callable, option: str, found: str, here: str) -> None:
    train(*SMALL, "rounds=1")
    with pytest.raises(UserError) as refused:
        train(*SMALL, option, "rounds=2", "ckpt_path=last")
    assert re.search(
        rf"ckpt_path: the checkpoint has .*{re.escape(found)}.*, this run has .*{re.escape(here)}", str(refused.value)
    )
    assert len(train(*SMALL, option, "rounds=2", "ckpt_path=last", "resume_anyway=true").rows) == 2


def test_what_changes_no_number_may_change(train: Callable) -> None:
    train(*SMALL, "rounds=1")
    free = ["engine=sequential", "client_state=cpu", "checkpoint_every=3", "server_loss_every=1", "threads=1"]
    assert len(train(*SMALL, *free, "rounds=2", "ckpt_path=last").rows) == 2


def test_every_root_option_is_one_or_the_other() -> None:
    """An option that is added later counts as mathematics until it is listed as free."""
    names = {name.split(".")[0] for name in mathematics({"new": 1, "client": {"eta": 1}, "trainer": {"precision": 2}})}
    assert names == {"new", "client", "trainer"}
    config = compose_train()
    assert config.resume_anyway is False


def test_a_checkpoint_from_before_an_option_had_its_default() -> None:
    now = OmegaConf.to_container(compose_train("logger=csv"), resolve=False)
    before = mathematics({name: value for name, value in now.items() if name not in ADDED})
    assert set(mathematics(now)) - set(before) >= {"privacy._target_", "client_dropout"}
    SameRun(now, anyway=False).on_load_checkpoint(None, None, {"settings": before})
    with pytest.raises(UserError, match=r"has stragglers=0.0, this run has stragglers=0.5"):
        SameRun(now | {"stragglers": 0.5}, anyway=False).on_load_checkpoint(None, None, {"settings": before})
