"""Processes forked from the run, as a user gets them: the same numbers, one sentence for an error, none left behind."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import QUICK, SMALL, Run
from lightning import Trainer
from sessions import as_printed, ended, none_left, processes_of, signal_all, started, type_in

from fedshvr.running import run as run_module

Cli = Callable[..., subprocess.CompletedProcess]
TWO = [*QUICK, "trainer.devices=2"]
LONG = ["rounds=1000", "partition.clients=4", "model.hidden=[16]"]


def trained(cli: Cli, tmp_path: Path, name: str, *options: str) -> Run:
    done = cli(*options, f"hydra.run.dir={name}")
    assert done.returncode == 0, done.stderr
    return Run(tmp_path / name)


def checkpoint(run: Run) -> dict:
    return torch.load(run.folder / "checkpoints" / "last.ckpt", weights_only=True)


def test_two_processes_repeat_to_the_bit(cli: Cli, tmp_path: Path) -> None:
    done = cli(*TWO, "hydra.run.dir=a")
    assert done.returncode == 0, done.stderr
    assert "\n2 processes of 1 thread (trainer.devices=2)\n" in done.stdout
    assert "in the first of 2 processes" in done.stdout
    assert all(line.startswith("round ") for line in done.stderr.splitlines()), done.stderr
    first, again = Run(tmp_path / "a"), trained(cli, tmp_path, "b", *TWO)
    assert first.theta == again.theta
    assert first.timeless == again.timeless
    assert first.summary["processes"] == 2
    assert first.summary["status"] == "finished"
    assert first.summary["test_acc"] == float(first.rows[-1]["test_acc"])
    assert (first.folder / "partition.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("place", "processes"),
    [("device", [2]), ("device", [2, 1]), ("disk", [1, 2])],
    ids=["two", "two then one", "one then two, on disk"],
)
def test_the_number_of_processes_does_not_show(
    cli: Cli, train: Callable[..., Run], tmp_path: Path, place: str, processes: list[int]
) -> None:
    """float64: the model and the clients' state agree to 1e-10 with those of one process, also when resumed."""
    options = ["trainer.precision=64-true", "participation=0.7", f"client_state={place}", "ckpt_path=last"]
    one = train(*options, folder="one")
    for number, rounds in zip(processes, (3,) if len(processes) == 1 else (2, 3), strict=True):
        if number == 1:
            train(*options, f"rounds={rounds}", folder="other")
        else:
            trained(cli, tmp_path, "other", *TWO, *options, f"rounds={rounds}")
    other = Run(tmp_path / "other")
    expected, found = checkpoint(one), checkpoint(other)
    for name, value in expected["state_dict"].items():
        torch.testing.assert_close(found["state_dict"][name], value, rtol=0, atol=1e-10)
    for name, value in expected["clients"].items() if place == "device" else ():
        torch.testing.assert_close(found["clients"][name], value, rtol=0, atol=1e-10)
    assert [row["test_acc"] for row in other.rows] == [row["test_acc"] for row in one.rows]


@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-mixed"])
def test_the_data_set_is_in_memory_once(train: Callable, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there before the fork is what clients read, so that all processes share it."""
    built, fitted = [], []
    build, fit = run_module.build, Trainer.fit
    monkeypatch.setattr(run_module, "build", lambda cfg: built.append(build(cfg)) or built[-1])
    places = lambda: [t.data_ptr() for t in (built[0][0].images.x, built[0][0].images.x_test)]  # noqa: E731
    monkeypatch.setattr(Trainer, "fit", lambda *args, **kwargs: fitted.append(places()) or fit(*args, **kwargs))
    train(f"trainer.precision={precision}")
    module = built[0][1]
    assert fitted == [[module.bench.pool.x.data_ptr(), module.test_set[0].data_ptr()]]


def test_an_error_of_a_process_is_one_sentence(cli: Cli, tmp_path: Path) -> None:
    done = cli(*TWO, "hydra.run.dir=a", "client.eta=1e30")
    assert done.returncode == 1
    assert done.stderr.startswith("error: round 1, client ")
    assert done.stderr.count("\n") == 1
    assert json.loads((tmp_path / "a" / "summary.json").read_text())["status"] == "failed"


@pytest.mark.fault("a stop by a signal")
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("everyone", [False, True], ids=["to the run", "to its group, as Ctrl-C"])
def test_a_stopped_run_leaves_no_process(tmp_path: Path, signum: int, everyone: bool) -> None:
    process = started(tmp_path, *TWO, *LONG)
    assert len(processes_of(process.pid)) == 3
    (os.killpg if everyone else os.kill)(process.pid, signum)
    code, text = ended(process)
    assert code == 128 + signum
    run = Run(tmp_path / "a")
    assert f"stopped by {signal.Signals(signum).name} after {len(run.rows)} of 1000 rounds" in text
    assert run.summary["status"] == "stopped"
    assert run.summary["rounds"] == len(run.rows) == checkpoint(run)["epoch"] + 1


@pytest.mark.fault("a process killed")
def test_a_killed_run_leaves_no_process(tmp_path: Path) -> None:
    process = started(tmp_path, *TWO, *LONG)
    process.kill()
    process.wait()
    assert none_left(process.pid)


@pytest.mark.fault("a process killed, or stopped by a signal", times=4)
@pytest.mark.slow
def test_killed_in_parts_and_stopped_it_ends_with_the_same_bits(cli: Cli, tmp_path: Path) -> None:
    """Either of two processes by SIGKILL, both by Ctrl-C once and twice; then the command that was printed."""
    options = [*TWO, *SMALL, "rounds=60", "client.epochs=4"]
    whole = trained(cli, tmp_path, "whole", *options)
    for rank in (0, 1):
        process = started(tmp_path, *options, "ckpt_path=last")
        os.kill(sorted(processes_of(process.pid))[1 + rank], signal.SIGKILL)
        code, text = ended(process)
        assert code == 1
        assert f"\nerror: process {rank} of 2 was ended by SIGKILL" in text
        assert json.loads((tmp_path / "a" / "summary.json").read_text())["status"] == "failed"
    for times in (2, 1):
        process = started(tmp_path, *options, "ckpt_path=last")
        for _ in range(times):
            signal_all(process, signal.SIGINT)
            time.sleep(0.02)
        code, text = ended(process)
        assert code == 130
        assert json.loads((tmp_path / "a" / "summary.json").read_text())["status"] == "stopped"
    done = type_in(as_printed(text), tmp_path)
    assert done.returncode == 0, done.stderr
    parts = Run(tmp_path / "a")
    assert parts.theta == whole.theta
    assert parts.timeless == whole.timeless
    a, b = checkpoint(whole)["clients"], checkpoint(parts)["clients"]
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.fault("a process killed")
def test_a_killed_process_ends_the_run_in_one_sentence(tmp_path: Path) -> None:
    process = started(tmp_path, *TWO, *LONG)
    os.kill(max(processes_of(process.pid)), signal.SIGKILL)
    code, text = ended(process)
    assert code == 1
    assert "\nerror: process 1 of 2 was ended by SIGKILL" in text
    assert json.loads((tmp_path / "a" / "summary.json").read_text())["status"] == "failed"


def test_a_sweep_forks_job_after_job_and_names_what_failed(cli: Cli, tmp_path: Path) -> None:
    done = cli("-m", *TWO, "client.eta=0.01,1e30,0.02", "hydra.sweep.dir=s")
    assert done.returncode == 1
    assert "2 jobs finished, 1 did not" in done.stdout
    assert "Traceback" not in done.stderr
    statuses = {path.parent.name: json.loads(path.read_text()) for path in (tmp_path / "s").glob("*/summary.json")}
    assert sorted(s["status"] for s in statuses.values()) == ["failed", "finished", "finished"]
    (failed,) = (s for s in statuses.values() if s["status"] == "failed")
    assert failed["error"].startswith("round 1, client ")


def test_jobs_at_once_do_not_fork(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large run on two cores: two processes alone, one in each of two jobs that joblib runs at once."""
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "2")
    large = ["logger=csv", "trainer=cpu", "model.hidden=[20000]", "client.epochs=6", "dry_run=true"]
    alone = cli(*large, "hydra.run.dir=a")
    assert "\n2 processes of 1 thread (10 clients, 2 cores); trainer.devices=1 forces one\n" in alone.stdout
    both = cli("-m", "seed=0,1", *large, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "hydra.sweep.dir=s")
    assert both.returncode == 0, both.stderr
    assert both.stdout.count("\n1 process of 1 thread (10 clients, 1 core, 2 jobs at once)\n") == 2
