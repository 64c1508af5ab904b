"""Users' callbacks beside our own, and several loggers at once."""

import json
import subprocess
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from conftest import SMALL, Run

from fedshvr.errors import UserError

Train = Callable[..., Run]
Cli = Callable[..., subprocess.CompletedProcess]
LONG = ["validation=0.1", "rounds=40", *SMALL]
EARLY = ["callbacks=early_stopping", "callbacks.early_stopping.patience=2", *LONG]


def expected_end(accuracies: list[float], patience: int) -> int:
    """The round after which EarlyStopping must have ended the run."""
    best, waited = -1.0, 0
    for round, accuracy in enumerate(accuracies, start=1):
        best, waited = (accuracy, 0) if accuracy > best else (best, waited + 1)
        if waited == patience:
            return round
    return len(accuracies)


def test_a_run_ends_early_at_the_right_round_and_says_so(train: Train, capsys: pytest.CaptureFixture) -> None:
    whole = train(*LONG, folder="whole")
    early = train(*EARLY, folder="early")
    end = expected_end([float(torch.tensor(float(row["val_acc"]))) for row in whole.rows], 2)
    assert 2 < end < 40
    assert early.summary["status"] == "finished"
    assert early.summary["rounds"] == end == len(early.rows)
    assert early.timeless == whole.timeless[:end]
    assert f"rounds  {end} of 40, stopped early, in " in capsys.readouterr().out


def test_early_stopping_resumes_exactly_and_stays_stopped(train: Train) -> None:
    whole = train(*EARLY, folder="whole")
    train(*EARLY, f"rounds={whole.summary['rounds'] - 1}", folder="parts")
    for _ in range(2):
        parts = train(*EARLY, "ckpt_path=last", folder="parts")
        assert parts.theta == whole.theta
        assert parts.timeless == whole.timeless
        assert parts.summary["status"] == "finished"
    further = train(*LONG, f"rounds={whole.summary['rounds'] + 1}", "ckpt_path=last", folder="parts")
    assert further.summary["rounds"] == whole.summary["rounds"] + 1


def test_two_processes_end_at_the_same_round_as_one(train: Train) -> None:
    exact = "trainer.precision=64-true"
    one, two = train(*EARLY, exact, folder="one"), train(*EARLY, exact, "trainer.devices=2", folder="two")
    assert (two.summary["processes"], two.summary["rounds"]) == (2, one.summary["rounds"])
    assert [row["val_acc"] for row in two.rows] == [row["val_acc"] for row in one.rows]


def test_callbacks_of_the_trainer_are_merged_and_several_loggers_write(train: Train, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    stop = "{_target_:lightning.pytorch.callbacks.EarlyStopping,monitor:test_acc,mode:max,stopping_threshold:0.0}"
    run = train(f"+trainer.callbacks=[{stop}]", "logger=[csv,tensorboard]", "rounds=9", *SMALL)
    assert run.summary["rounds"] == 1
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run.folder / "tensorboard")).Reload()
    (point,) = events.Scalars("test_acc")
    assert (point.step, point.value) == (1, pytest.approx(run.summary["test_acc"]))


@pytest.mark.skipif(find_spec("mlflow") is not None, reason="mlflow is there")
def test_a_logger_whose_package_is_missing_is_one_sentence(train: Train, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^logger\.mlflow: .*pip install.*$"):
        train("logger=[csv,mlflow]")
    assert not (tmp_path / "run").exists()


def test_what_hydra_takes_is_taken(cli: Cli, tmp_path: Path) -> None:
    """A list of loggers, glob and choice in one sweep, and a folder of one's own configurations."""
    folder = tmp_path / "mine" / "callbacks"
    folder.mkdir(parents=True)
    (folder / "timer.yaml").write_text("timer:\n  _target_: lightning.pytorch.callbacks.Timer\n")
    options = ["--config-dir", "mine", "callbacks=timer", "logger=[csv,wandb]", "rounds=1", "trainer=cpu", *SMALL]
    done = cli("-m", *options, "algorithm=glob(fedavg_*)", "seed=choice(0,1)", "tags=[try]", "hydra.sweep.dir=s")
    assert done.returncode == 0, done.stderr
    summaries = [json.loads(path.read_text()) for path in (tmp_path / "s").glob("*/summary.json")]
    found = {(s["config"]["choices"]["algorithm"], s["config"]["seed"]) for s in summaries}
    assert found == {("fedavg_full", 0), ("fedavg_full", 1)}
    assert all(s["config"]["callbacks"]["timer"] and s["config"]["tags"] == ["try"] for s in summaries)
    assert len({path.read_text() for path in (tmp_path / "s").glob("*/wandb_id")}) == len(summaries) == 2


def test_debug_presets(train: Train, capsys: pytest.CaptureFixture) -> None:
    run = train("debug=default", "rounds=1", *SMALL)
    config = run.summary["config"]
    assert (config["engine"], config["trainer"]["detect_anomaly"], config["choices"]["scale"]) == (
        "sequential",
        True,
        "smoke",
    )
    same = train("scale=smoke", "rounds=1", "engine=sequential", *SMALL, folder="plain")
    assert run.theta == same.theta
    assert not torch.is_anomaly_enabled()
    train("debug=profile", "rounds=2", *SMALL, folder="profile")
    assert "where the time of a round went" in capsys.readouterr().err


@pytest.mark.slow
def test_optuna_maximises_the_validation_accuracy(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
    search = ["hydra/sweeper=optuna", "hydra.sweeper.n_trials=3", "hydra.sweeper.n_jobs=1"]
    search += ["hydra.sweeper.direction=maximize", "client.eta=tag(log,interval(0.01,0.3))", "hydra.sweep.dir=s"]
    done = cli("-m", *search, "validation=0.1", "scale=smoke", "logger=csv")
    assert done.returncode == 0, done.stderr
    summaries = [json.loads(path.read_text()) for path in (tmp_path / "s").glob("*/summary.json")]
    assert len(summaries) == 3
    best = max(summaries, key=lambda summary: summary["val_acc"])
    found = (tmp_path / "s" / "optimization_results.yaml").read_text()
    assert f"best_value: {best['val_acc']}" in found
