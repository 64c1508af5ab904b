"""What `from fedshvr import ...` offers beside the rooms' own functions: compose a run, run it, read many."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hydra
from omegaconf import DictConfig, open_dict

from fedshvr.places import CONFIGS
from fedshvr.reporting.collect import read_summary, run_folders


def compose(overrides: Sequence[str] = ()) -> DictConfig:
    """The configuration that the command line would have with these overrides.

    Example: `compose(["experiment=mnist_noniid", "scale=laptop", "algorithm=fedavg", "logger=csv"])`. Options are set
    as in `cfg.rounds = 5`; a folder of your own files comes with `"hydra.searchpath=[file://...]"`.
    """
    with hydra.initialize_config_dir(str(CONFIGS), version_base="1.3"):
        cfg = hydra.compose("train", list(overrides), return_hydra_config=True)
    with open_dict(cfg):
        cfg.choices = {name: cfg.hydra.runtime.choices[name] for name in cfg.choices}
        del cfg["hydra"]
    return cfg


def run(cfg: DictConfig, folder: str | Path) -> float | None:
    """Train; the files are in `folder`. Returns the last accuracy: on the held-out samples if there are any, else test.

    Raises `UserError` with one sentence if an option is wrong.
    """
    from fedshvr.running.run import run as train

    return train(cfg, Path(folder))


def read_runs(folder: str | Path) -> list[dict[str, Any]]:
    """Every run below a folder as a dictionary: its summary.json, and

    - `folder`, and what was chosen: `experiment`, `algorithm`, `data`, ...
    - `metrics`: a dictionary of numbers for every round
    """
    return [read_one(path) for path in run_folders(Path(folder))]


def read_one(folder: Path) -> dict[str, Any]:
    summary, path, rounds = read_summary(folder), folder / "metrics.csv", []
    if path.is_file():
        with path.open(newline="") as file:
            rounds = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    chosen = summary.get("config", {}).get("choices", {})
    return chosen | summary | {"folder": str(folder), "metrics": rounds}
