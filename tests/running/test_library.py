"""run(cfg, folder) as a notebook calls it: no Hydra job, errors are raised, the files are those of the command line."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import QUICK, ROOT, SMALL, Run
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from fedshvr.errors import Diverged, UserError
from fedshvr.running.run import run


@pytest.fixture(autouse=True)
def no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    GlobalHydra.instance().clear()
    monkeypatch.setattr(HydraConfig.instance(), "cfg", None)


def composed(*overrides: str, hydra: bool = True) -> DictConfig:
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        return compose("train", [*QUICK, *SMALL, "rounds=1", *overrides], return_hydra_config=hydra)


def test_the_library_trains_what_the_command_line_trains(train: Callable[..., Run], tmp_path: Path) -> None:
    cfg = composed("algorithm=fedavg", "tags=[a,b]")
    before = OmegaConf.to_yaml(cfg)
    accuracy = run(cfg, tmp_path / "library")
    assert OmegaConf.to_yaml(cfg) == before
    own = Run(tmp_path / "library")
    assert accuracy == own.summary["test_acc"]
    assert own.summary["config"]["tags"] == ["a", "b"]
    assert own.summary["config"]["paths"]["run"] == str(tmp_path / "library")
    line = train(*SMALL, "rounds=1", "algorithm=fedavg", folder="line")
    assert own.theta == line.theta
    assert own.summary["config"]["choices"] == line.summary["config"]["choices"]
    assert own.summary["config"]["choices"]["algorithm"] == "fedavg"


def test_without_hydras_node_the_choices_are_unknown(tmp_path: Path) -> None:
    run(composed(hydra=False), tmp_path)
    assert set(json.loads((tmp_path / "summary.json").read_text())["config"]["choices"].values()) == {None}
    with pytest.raises(UserError, match="folder=None: give the run's folder"):
        run(composed(hydra=False))


def test_the_folder_is_hydras_if_none_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(composed())
    (summary,) = tmp_path.glob("logs/runs/digits/fed_shvr/*/summary.json")
    assert json.loads(summary.read_text())["status"] == "finished"


def test_a_finished_run_can_be_made_again_from_its_configuration(tmp_path: Path) -> None:
    run(composed(), tmp_path / "a")
    run(OmegaConf.load(tmp_path / "a" / "config.yaml"), tmp_path / "b")  # type: ignore[arg-type]
    assert Run(tmp_path / "a").theta == Run(tmp_path / "b").theta
    assert Run(tmp_path / "b").summary["config"]["choices"]["experiment"] == "digits"


def test_errors_are_raised(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="threads=0: must be a whole number of at least 1 or null"):
        run(composed("threads=0"), tmp_path)
    with pytest.raises(Diverged, match="round 1, client"):
        run(composed("client.eta=1e30"), tmp_path)
