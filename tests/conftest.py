"""Fixtures that all tests share: a run as the command line makes it, in this process or in its own."""

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from disk import Disk
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, open_dict
from xdist.scheduler import LoadScopeScheduling

import fedshvr  # noqa: F401  # before lightning and torchvision: see fedshvr.torchvision_compat

torch.set_num_threads(1)  # the tests' tensors are small

ROOT = Path(__file__).resolve().parent.parent
ALGORITHMS = sorted(path.stem for path in (ROOT / "configs" / "algorithm").glob("*.yaml"))
STACKED = [name for name in ALGORITHMS if name != "fed_ladder"]  # it has batch norm: engine=vectorized is refused
SMALL = ["partition.clients=4", "partition.unlabeled=120", "client.epochs=1", "model.hidden=[16]"]
QUICK = ["logger=csv", "rounds=3", "trainer=cpu", "trainer.devices=1"]


@cache
def shared(path: str) -> bool:
    """Do the tests of this file share something that takes long to make?"""
    return 'scope="module"' in (ROOT / path).read_text()


class ByFile(LoadScopeScheduling):
    """Each test goes to whichever process is free, but those of a file that share something go to one."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return path if shared(path) else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    return ByFile(config, log)


class Run:
    """The files of a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.summary = json.loads((folder / "summary.json").read_text())
        with (folder / "metrics.csv").open(newline="") as file:
            self.rows = list(csv.DictReader(file))

    @property
    def theta(self) -> str:
        return self.summary["theta_sha256"]

    @property
    def timeless(self) -> list[dict[str, str]]:
        """metrics.csv without the column that no two runs share."""
        return [{name: value for name, value in row.items() if name != "seconds"} for row in self.rows]


def compose_train(*overrides: str) -> DictConfig:
    """The composed configuration, without running anything."""
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        return compose("train", [*overrides])


def run_here(folder: Path, *overrides: str) -> Run:
    """Composes and runs as `python src/train.py` does, in this process."""
    from fedshvr.running.run import run

    GlobalHydra.instance().clear()
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        cfg = compose("train", [*QUICK, *overrides], return_hydra_config=True)
        with open_dict(cfg):
            cfg.hydra.runtime.output_dir = str(folder)
            cfg.hydra.mode = "RUN"
        HydraConfig.instance().set_config(cfg)
        with open_dict(cfg):
            del cfg["hydra"]
        run(cfg)
    return Run(folder)


@pytest.fixture
def train(tmp_path: Path) -> Callable[..., Run]:
    """train("algorithm=fedavg", folder="a") is a run in the temporary folder's "a"."""
    return lambda *overrides, folder="run": run_here(tmp_path / folder, *overrides)


def enlarge_digits(patch: pytest.MonkeyPatch) -> None:
    """Digits of 16x16 pixels: CNN13 cannot take 8x8."""
    from fedshvr.data import sources

    def load(**options: object) -> object:
        data = original(**options)
        x, x_test = (t.repeat_interleave(2, 2).repeat_interleave(2, 3) for t in (data.x, data.x_test))
        return replace(data, x=x, x_test=x_test)

    original = sources.load
    patch.setattr(sources, "load", load)


def command(*arguments: str, script: str = "src/train.py") -> list[str]:
    return [sys.executable, str(ROOT / script), *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "WANDB_MODE": "offline"}


@pytest.fixture
def cli(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess]:
    """The real command line in its own process, with the temporary folder as working directory."""

    def call(*arguments: str, script: str = "src/train.py") -> subprocess.CompletedProcess:
        full = command(*arguments, script=script)
        return subprocess.run(full, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=300)

    return call


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[int], Disk]]:
    """disk(300) is a file system of 300 kB."""
    made: list[Disk] = []

    def make(kilobytes: int) -> Disk:
        made.append(Disk(tmp_path / f"disk {len(made)}", kilobytes))
        return made[-1]

    yield make
    for one in made:
        one.end()
