"""From the command line: a tiny sweep, killed in the middle and started again, and its report."""

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import fmean, pstdev

import pytest

from fedshvr.reporting.sweeps import CONFIGS

ROOT = CONFIGS.parent
SWEEP = [sys.executable, "src/train.py", "-m", "sweep=smoke", "logger=csv"]


def report(logs: Path, out: Path) -> dict[str, list[str]]:
    folders = [f"logs={logs}", f"out={out}", f"results={out}"]
    command = [sys.executable, "src/report.py", *folders, "wandb=false", "items=runs_digits"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    lines = (out / "runs_digits.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| Fed")]
    return {row[0]: row[1:4] for row in rows}  # then what was sent


def by_hand(logs: Path, algorithm: str) -> list[str]:
    accuracy = []
    for seed in range(3):
        (path,) = logs.glob(f"*algorithm={algorithm},*seed={seed}*/metrics.csv")
        with path.open(newline="") as file:
            accuracy.append([100 * float(row["test_acc"]) for row in csv.DictReader(file)])
    ends = [[a[0] for a in accuracy], [a[-1] for a in accuracy]]
    return [f"{fmean(v):.1f} ± {pstdev(v):.1f} (3)" for v in ends] + ["3"]


def sweep_killed_in_the_middle(logs: Path) -> None:
    """Kill the sweep after two jobs, start it again, and see that it does not repeat them."""
    command = [*SWEEP, f"hydra.sweep.dir={logs}"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    give_up = time.monotonic() + 120
    while len(list(logs.glob("*/summary.json"))) < 2:
        assert process.poll() is None, "the sweep ended early"
        assert time.monotonic() < give_up
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    done = {path: path.stat().st_mtime_ns for path in logs.glob("*/summary.json")}
    assert len(done) < 9
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    assert {path: path.stat().st_mtime_ns for path in done} == done


@pytest.fixture(scope="module")
def restarted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    logs = tmp_path_factory.mktemp("restarted")
    sweep_killed_in_the_middle(logs)
    return logs


def test_the_report_of_a_restarted_sweep_has_the_numbers_of_its_files(restarted: Path, tmp_path: Path) -> None:
    names = {"fed_shvr": "Fed-SHVR", "fedavg": "FedAvg", "fed_pseudo": "Fed-Pseudo"}
    assert report(restarted, tmp_path) == {name: by_hand(restarted, key) for key, name in names.items()}


@pytest.mark.slow
def test_an_unbroken_sweep_gives_the_same_report(restarted: Path, tmp_path: Path) -> None:
    subprocess.run([*SWEEP, f"hydra.sweep.dir={tmp_path / 'logs'}"], cwd=ROOT, check=True, capture_output=True)
    assert report(tmp_path / "logs", tmp_path / "a") == report(restarted, tmp_path / "b")
