"""Whether a checkpoint is this run's: every setting that changes the mathematics must be the same."""

import json
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from fedshvr.errors import check
from fedshvr.running.moved import ADDED

# What may differ: how long, where and how fast a run is, and what is looked at. Groups end with a dot.
FREE: tuple[str, ...] = (
    "callbacks.",
    "choices.",
    "debug.",
    "logger.",
    "paths.",
    "trainer.",
    "data.root",
    "data.download",
)
FREE += ("checkpoint_every", "ckpt_path", "client_accuracy", "client_state", "compile", "dry_run", "engine", "profile")
FREE += ("on_client_error",)  # until a client is bad both are one, and then `fail` has stopped
FREE += ("optimality_gap", "resume_anyway", "rounds", "server_loss_every", "tags", "threads")
KEPT = ("trainer.precision",)


class SameRun(Callback):
    """Notes the settings in each checkpoint, and refuses one with others."""

    def __init__(self, config: dict[str, Any], anyway: bool) -> None:
        self.settings, self.anyway = mathematics(config), anyway

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint["settings"] = self.settings

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        noted = mathematics(ADDED) | checkpoint.get("settings", self.settings)  # none before 0.2.0
        names = sorted({**noted, **self.settings})
        others = [name for name in names if noted.get(name) != self.settings.get(name)]
        found, here = ([f"{name}={settings.get(name)}" for name in others] for settings in (noted, self.settings))
        check(
            self.anyway or not others,
            f"ckpt_path: the checkpoint has {', '.join(found)}, this run has {', '.join(here)}; "
            "resume_anyway=true goes on all the same",
        )


def mathematics(config: dict[str, Any]) -> dict[str, str]:
    """{dotted name: value} of the settings that must not change between two parts of a run."""
    return {name: value for name, value in flat(config).items() if name in KEPT or not name.startswith(FREE)}


def flat(config: Any, prefix: str = "") -> dict[str, str]:
    if not isinstance(config, dict):
        return {prefix: json.dumps(config)}
    names = {f"{prefix}.{key}" if prefix else str(key): value for key, value in config.items()}
    return {name: value for key, part in names.items() for name, value in flat(part, key).items()}
