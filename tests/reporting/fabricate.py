"""Run folders as the engine leaves them, with made-up but plausible curves."""

import json
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf, open_dict

from fedshvr.reporting.sweeps import CONFIGS, grid, wanted

LEVEL = {"fed_shvr": 96, "fed_mt": 93, "fed_pseudo": 91, "fedavg": 88, "fedavg_full": 98, "fed_sh": 94, "fed_svr": 92}


GROUPS = ("experiment", "algorithm", "setting", "augment")


@cache
def base_config(**choices: str) -> dict[str, Any]:
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        cfg = compose("train", overrides=[*(f"{k}={v}" for k, v in choices.items()), "logger=csv"])
    with open_dict(cfg):
        cfg.choices, cfg.paths = choices, {"data": "data", "run": "run"}
    return OmegaConf.to_container(cfg, resolve=True)  # type: ignore[return-value]


def make_run(folder: Path, where: dict[str, Any], seed: int, scale: str = "laptop", sweep: str | None = None) -> Path:
    """One finished run; `where` has choices (GROUPS) and flat configuration keys."""
    where = {"experiment": "mnist_iid", "algorithm": "fed_shvr"} | where
    config = make_config(where, seed, scale, sweep)
    return write_run(folder, config, curves(where, seed, config["rounds"]))


def make_config(where: dict[str, Any], seed: int, scale: str, sweep: str | None) -> dict[str, Any]:
    config = deepcopy(base_config(**{k: v for k, v in where.items() if k in GROUPS}, scale=scale))
    config["choices"]["sweep"] = sweep
    config["seed"] = config["partition"]["seed"] = seed
    for key, value in where.items():
        if key not in GROUPS:
            set_in(config, key, value)
            if key.startswith("ramp.") and "ramp" in config["algorithm"]["objective"]:  # as Hydra copies it
                set_in(config, f"algorithm.objective.{key}", value)
    return config


def write_run(folder: Path, config: dict[str, Any], columns: dict[str, np.ndarray]) -> Path:
    folder.mkdir(parents=True)
    rows = [",".join(columns), *(",".join(map(repr, map(float, row))) for row in zip(*columns.values(), strict=True))]
    (folder / "metrics.csv").write_text("\n".join(rows) + "\n")
    accuracy = columns["test_acc"].tolist()
    summary = {
        "status": "finished",
        "test_acc": accuracy[-1],
        "best_test_acc": max(accuracy),
        "rounds": len(accuracy),
        "seconds": 10.0,
        "theta_sha256": f"{config['seed']:064d}",
        "versions": {"torch": "2.0", "python": "3.11"},
        "finished_at": "2030-01-01T00:00:00+0000",
        "config": config,
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def set_in(tree: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    for name in path:
        tree = tree[name]
    tree[last] = value


def curves(where: dict[str, Any], seed: int, rounds: int) -> dict[str, np.ndarray]:
    noise = np.random.default_rng([seed, *map(ord, str(sorted(where.items())))])
    t = np.arange(1, rounds + 1)
    top = LEVEL.get(where["algorithm"], 90) - 30 * ("cifar" in where["experiment"])
    top += np.log10(where.get("partition.unlabeled") or 60000) - 4.8
    accuracy = top - 35 * np.exp(-t / 8) + noise.normal(0, 0.25 + 2 / t) + noise.normal(0, 0.5)
    loss = 0.3 + 2 * np.exp(-t / 12) + noise.normal(0, 0.02, rounds) + (100 - top) / 50
    gap = 4 / np.sqrt(t) * np.exp(noise.normal(0, 0.15, rounds))
    columns = {
        "round": t,
        "test_acc": accuracy.clip(0, 100) / 100,
        "test_loss": loss,
        "train_loss": 2 * loss,
        "gap": gap,
    }
    columns["server_loss"] = np.where((t == 1) | (t % 5 == 0), loss, np.nan)
    return {name: np.asarray(values, float) for name, values in columns.items()}


def make_sweep(logs: Path, name: str, scale: str = "laptop", seeds: int | None = None) -> None:
    plan = grid(name)
    for i, cell in enumerate(plan.cells()):
        for seed in plan.seeds[:seeds]:
            make_run(logs / "multiruns" / name / f"{i}_{seed}", wanted(plan, cell), seed, scale, name)
