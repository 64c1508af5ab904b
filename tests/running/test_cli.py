"""The command line in its own process: help, refusals, a killed run, several ranks."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import QUICK, ROOT, Run, command, environment

from fedshvr.running.checkpoints import newest, read

Cli = Callable[..., subprocess.CompletedProcess]


def test_help_names_the_options(cli: Cli) -> None:
    done = cli("--help")
    assert done.returncode == 0
    for word in ("experiment", "algorithm", "scale", "fed_shvr", "cifar_mismatch1", "dry_run", "ckpt_path"):
        assert word in done.stdout


def test_the_plan_of_the_default_experiment(cli: Cli, tmp_path: Path) -> None:
    done = cli("dry_run=true", "logger=csv", "hydra.run.dir=plan")
    assert done.returncode == 0, done.stderr
    assert "digits: 10 clients, 260 local steps a round, 15,010 parameters" in done.stdout
    assert "\n1 process of 1 thread (" in done.stdout
    assert sorted(p.name for p in (tmp_path / "plan").iterdir()) == ["partition.json", "partition.png"]


def test_a_sweep_with_ddp_is_refused(cli: Cli) -> None:
    done = cli("-m", "trainer=ddp", "seed=0,1", "logger=csv")
    assert done.returncode == 2
    assert "error: trainer=ddp: its processes would start the whole sweep (-m) again" in done.stderr


@pytest.mark.parametrize(("asked", "policy"), [({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")])
def test_threads_that_wait_do_not_spin_unless_asked(asked: dict[str, str], policy: str) -> None:
    code = "import os, sys, train; print(os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules)"
    free = {name: value for name, value in environment().items() if name != "OMP_WAIT_POLICY"}
    env = free | asked | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [policy, "False"]


@pytest.mark.fault("a process killed")
def test_a_killed_run_continues_to_the_same_bits(tmp_path: Path) -> None:
    """SIGKILL in the middle of a round, then ckpt_path=last: theta, client state and metrics.csv as if unstopped."""
    options = [*QUICK, "rounds=8", "client.epochs=8"]
    subprocess.run(command(*options, "hydra.run.dir=whole"), cwd=tmp_path, env=environment(), check=True)
    process = subprocess.Popen(command(*options, "hydra.run.dir=parts"), cwd=tmp_path, env=environment())
    metrics = tmp_path / "parts" / "metrics.csv"
    deadline = time.monotonic() + 120
    while not (metrics.is_file() and metrics.read_text().count("\n") >= 4):  # header and three rounds
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "parts" / "summary.json").exists()
    assert read(newest(tmp_path / "parts" / "checkpoints"))["epoch"] >= 1  # from 0: it goes on, and not from the start
    subprocess.run(
        command(*options, "hydra.run.dir=parts", "ckpt_path=last"), cwd=tmp_path, env=environment(), check=True
    )
    whole, parts = Run(tmp_path / "whole"), Run(tmp_path / "parts")
    assert parts.theta == whole.theta
    assert parts.timeless == whole.timeless
    a, b = (torch.load(r.folder / "checkpoints" / "last.ckpt", weights_only=True)["clients"] for r in (whole, parts))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_two_ranks_are_one_rank_also_when_resumed(cli: Cli, tmp_path: Path) -> None:
    """float64: theta and the clients' state agree to 1e-10, with one rank, two ranks, and two ranks then one."""
    options = [*QUICK, "trainer.precision=64-true", "participation=0.7"]
    ddp = ["trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2"]
    jobs = {
        "one": [[]],
        "two": [ddp],
        "both": [[*ddp, "rounds=2"], ["ckpt_path=last"]],
    }
    checkpoints = []
    for name, starts in jobs.items():
        for start in starts:
            done = cli(*options, f"hydra.run.dir={name}", *start)
            assert done.returncode == 0, done.stderr
        checkpoints.append(torch.load(tmp_path / name / "checkpoints" / "last.ckpt", weights_only=True))
    one, *others = checkpoints
    for other in others:
        torch.testing.assert_close(other["state_dict"]["theta"], one["state_dict"]["theta"], rtol=0, atol=1e-10)
        torch.testing.assert_close(other["state_dict"]["c"], one["state_dict"]["c"], rtol=0, atol=1e-10)
        for name, value in one["clients"].items():
            torch.testing.assert_close(other["clients"][name], value, rtol=0, atol=1e-10)
    accuracies = {tuple(row["test_acc"] for row in Run(tmp_path / name).rows) for name in jobs}
    assert len(accuracies) == 1


def test_every_choice_is_documented_by_its_file() -> None:
    """Algorithms say what they are in their first line."""
    for path in (ROOT / "configs" / "algorithm").glob("*.yaml"):
        assert path.read_text().startswith("# "), path
