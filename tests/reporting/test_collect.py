"""Finding and reading runs."""

import json
import time
from pathlib import Path

import numpy as np
import pytest
from fabricate import base_config, curves, make_run, write_run

from fedshvr.reporting.collect import collect, flat, settings


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    make_run(tmp_path / "a" / "b", {"algorithm": "fed_mt"}, seed=3)
    (run,) = collect(tmp_path).runs
    assert (run.seed, run.choices["algorithm"], run.config["client.eta"]) == (3, "fed_mt", 0.01)
    lines = (tmp_path / "a" / "b" / "metrics.csv").read_text().splitlines()
    assert run.curves["test_acc"].tolist() == [float(line.split(",")[1]) for line in lines[1:]]


def test_a_run_that_stopped_early_is_one_of_the_rounds_that_it_made(tmp_path: Path) -> None:
    whole = base_config(experiment="mnist_iid", algorithm="fed_shvr", scale="laptop")
    write_run(tmp_path / "a", whole, curves({"experiment": "mnist_iid", "algorithm": "fed_shvr"}, seed=0, rounds=7))
    (run,) = collect(tmp_path).runs
    assert (whole["rounds"], run.config["rounds"]) == (100, 7)


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("metrics.csv", "round,test_acc,train_loss\n1,0.5,x\n", "could not convert"),
        ("metrics.csv", "round,test_acc\n1,0.5\n", "no column train_loss"),
        ("metrics.csv", "round,test_acc,train_loss\n1,0.5,1\n", "1 rows, but summary.json has 100 rounds"),
        ("metrics.csv", "round,test_acc,train_loss\n2,0.5,1\n", "the rounds are not 1, 2, 3"),
        ("metrics.csv", "", "no column"),
        ("metrics.csv", None, "No such file"),
        ("summary.json", '{"status": "fini', "summary.json: "),
        ("summary.json", "[]", "not an object"),
        ("summary.json", '{"status": "finished"}', "no config with a seed"),
        ("summary.json", '{"status": "finished", "config": {"seed": 0}}', "does not name experiment, algorithm, scale"),
    ],
)
def test_a_damaged_file_is_named_and_the_other_runs_are_kept(
    tmp_path: Path, file: str, text: str | None, reason: str
) -> None:
    make_run(tmp_path / "good", {}, seed=0)
    bad = make_run(tmp_path / "bad", {}, seed=1)
    (bad / file).unlink() if text is None else (bad / file).write_text(text)
    found = collect(tmp_path)
    assert [run.seed for run in found.runs] == [0]
    ((folder, why),) = found.damaged
    assert folder == bad
    assert file in why
    assert reason in why


def test_runs_that_have_not_finished_are_listed(tmp_path: Path) -> None:
    stopped = make_run(tmp_path / "stopped", {}, seed=0)
    summary = json.loads((stopped / "summary.json").read_text())
    (stopped / "summary.json").write_text(json.dumps(summary | {"status": "stopped"}))
    running = make_run(tmp_path / "running", {}, seed=1)
    (running / "summary.json").unlink()
    found = collect(tmp_path)
    assert not found.runs
    assert found.unfinished == [(running, "no summary.json"), (stopped, "stopped")]


def test_checkpoints_and_wandb_folders_are_not_searched(tmp_path: Path) -> None:
    make_run(tmp_path / "wandb" / "x", {}, seed=0)
    assert not collect(tmp_path).runs


def test_settings_leave_out_the_seed_and_where_things_are() -> None:
    config = flat({"seed": 1, "partition": {"seed": 1, "clients": 10}, "paths": {"run": "x"}, "engine": "vectorized"})
    config["model._target_"] = "fedshvr.models.mlp.MLP"
    assert settings(config | {"trainer.precision": "32-true"}) == {
        "partition.clients": 10,
        "model._target_": "MLP",
        "trainer.precision": "32-true",
    }


@pytest.mark.slow
def test_a_thousand_runs_of_a_thousand_rounds_take_seconds(tmp_path: Path) -> None:
    config = base_config(experiment="mnist_iid", algorithm="fed_shvr", scale="laptop")
    t = np.arange(1, 1001)
    columns = {"round": t, "test_acc": t / 1000} | {
        name: np.random.default_rng(0).random(1000) for name in ("test_loss", "train_loss", *"abcdefghi")
    }
    first = write_run(tmp_path / "0", config, columns)
    for i in range(1, 1000):
        (tmp_path / str(i)).mkdir()
        for name in ("metrics.csv", "summary.json"):
            (tmp_path / str(i) / name).hardlink_to(first / name)
    started = time.perf_counter()
    assert len(collect(tmp_path).runs) == 1000
    assert time.perf_counter() - started < 30
