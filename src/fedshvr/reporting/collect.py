"""Runs on disk: find the finished ones under a folder, read them fast, name the damaged ones."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

COLUMNS = ("round", "test_acc", "train_loss")  # what every run must have
OPTIONAL = ("gap", "server_loss")  # those that a figure draws
SKIPPED = ("checkpoints", "wandb")  # folders that hold no run
CHOICES = ("experiment", "algorithm", "scale")

# What does not change a result, and the seed: runs that differ only here are the same experiment.
NEUTRAL: tuple[str, ...] = ("seed", "partition.seed", "scale", "sweep", "logger")
NEUTRAL += ("data._target_", "data._convert_", "data.root", "data.download")  # data.name says which data these are
NEUTRAL += (
    "dry_run",
    "ckpt_path",
    "resume_anyway",
    "checkpoint_every",
    "engine",
    "client_state",
    "optimality_gap",
    "client_accuracy",
    "server_loss_every",
    "profile",
    "threads",
    "tags",
)
# Options that came after the first committed runs, as they were before: so a run keeps its name in the archive.
LATER: dict[str, Any] = {"client_dropout": 0.0, "stragglers": 0.0, "server_labels": 0, "server_epochs": 1.0}
LATER |= {"partition.labeled_clients": None, "privacy._target_": "Privacy"}
LATER |= {"attack": "none", "attackers": 2, "on_client_error": "fail"}
LATER |= {"augment_labeled": True, "data.size": None, "data._convert_": "all"}
MEASURED = ("optimality_gap", "server_loss_every")  # of these: what a run logs beside the accuracy
NEUTRAL_GROUPS = ("paths.", "trainer.", "logger.", "choices.", "scale.", "callbacks.")


@dataclass(frozen=True)
class Run:
    """One finished run: its flat configuration ("a.b.c": value), its group choices and its curves."""

    folder: Path  # of a committed run: its file and its name there
    summary: dict[str, Any] = field(repr=False)
    config: dict[str, Any] = field(repr=False)
    choices: dict[str, str | None]
    curves: dict[str, np.ndarray] = field(repr=False)
    own: bool = True  # from a run folder; else from the committed results

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def setting(self) -> str:
        """As the paper's text says, or as comes closest to its numbers."""
        return self.choices.get("setting") or "text"

    def told(self, **facts: Any) -> "Run":
        return replace(self, summary=self.summary | facts)


@dataclass
class Collection:
    """Finished runs, the user's own first, and what was left out and why."""

    runs: list[Run] = field(default_factory=list)
    damaged: list[tuple[Path, str]] = field(default_factory=list)
    unfinished: list[tuple[Path, str]] = field(default_factory=list)


class Damaged(ValueError):
    """A file of a run that cannot be read; the sentence says what is wrong with it."""


def collect(logs: Path) -> Collection:
    found = Collection()
    for folder in run_folders(logs):
        try:
            summary = read_summary(folder)
            if summary.get("status") != "finished":
                found.unfinished.append((folder, str(summary.get("status", "no summary.json"))))
            else:
                found.runs.append(read_run(folder, summary))
        except Damaged as error:
            found.damaged.append((folder, str(error)))
    return found


def run_folders(logs: Path) -> Iterator[Path]:
    """Folders with a summary.json or metrics.csv, in a fixed order; nothing below them is searched."""
    for root, folders, files in os.walk(logs):
        if "summary.json" in files or "metrics.csv" in files:
            folders.clear()
            yield Path(root)
        folders[:] = sorted(name for name in folders if name not in SKIPPED)


def read_summary(folder: Path) -> dict[str, Any]:
    path = folder / "summary.json"
    if not path.is_file():
        return {}
    try:
        summary = json.loads(path.read_text())
    except (ValueError, OSError) as error:
        raise Damaged(f"summary.json: {error}") from None
    if not isinstance(summary, dict):
        raise Damaged("summary.json: not an object")
    return summary


def read_run(folder: Path, summary: dict[str, Any]) -> Run:
    config = summary.get("config")
    if not isinstance(config, dict) or "seed" not in config:
        raise Damaged("summary.json: no config with a seed in it")
    choices = config.get("choices") or {}
    absent = [name for name in CHOICES if not choices.get(name)]
    if absent:
        raise Damaged(f"summary.json: config.choices does not name {', '.join(absent)}")
    curves = read_metrics(folder / "metrics.csv")
    if len(curves["round"]) != summary.get("rounds"):
        raise Damaged(f"metrics.csv: {len(curves['round'])} rows, but summary.json has {summary.get('rounds')} rounds")
    made = {"rounds": summary["rounds"]}  # of a run that a callback stopped early: less than it was asked for
    return Run(folder, summary, flat(config) | made, choices, curves)


def read_metrics(path: Path) -> dict[str, np.ndarray]:
    """The columns that reports use; other columns are not even parsed."""
    try:
        with path.open() as file:
            header = file.readline().rstrip("\n").split(",")
            absent = [name for name in COLUMNS if name not in header]
            if absent:
                raise Damaged(f"metrics.csv: no column {', '.join(absent)}")
            names = [name for name in COLUMNS + OPTIONAL if name in header]
            places = [header.index(name) for name in names]
            values = np.loadtxt(file, delimiter=",", usecols=places, ndmin=2, comments=None)
    except Damaged:
        raise
    except (ValueError, OSError) as error:
        raise Damaged(f"metrics.csv: {error}") from None
    curves = dict(zip(names, values.T, strict=True))
    if not np.array_equal(curves["round"], np.arange(1, len(values) + 1)):
        raise Damaged("metrics.csv: the rounds are not 1, 2, 3, ...")
    return curves


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} -> {"a.b": 1}"""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            leaves |= flat(value, f"{prefix}{key}.")
        else:
            leaves[f"{prefix}{key}"] = value
    return leaves


def settings(config: dict[str, Any]) -> dict[str, Any]:
    """The part of a flat configuration that decides a result, the seed aside; classes by name, wherever they lie."""
    precision = "trainer.precision"
    kept = {k: v for k, v in config.items() if k not in NEUTRAL and not k.startswith(NEUTRAL_GROUPS)}
    kept |= {k: v.rpartition(".")[2] for k, v in kept.items() if k.endswith("_target_")}
    return kept | ({precision: config[precision]} if precision in config else {})


def identity(config: dict[str, Any]) -> dict[str, Any]:
    """The settings and what was measured: two runs with the same are one run, the seed aside."""
    told = settings(config) | {name: config[name] for name in MEASURED if name in config}
    return {name: value for name, value in told.items() if (name, value) not in LATER.items()}
