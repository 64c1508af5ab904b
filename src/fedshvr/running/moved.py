"""Configurations of runs made before the package had rooms: the same classes by their names of today."""

from typing import Any

OBJECTIVES = "fedshvr.algorithms.objectives."
BY_NAME = "fedshvr.data.sources.load"
MOVED = {  # the beginning of a _target_; the first that fits
    "fedshvr.objectives.base.Ramp": OBJECTIVES + "ramp.Ramp",
    "fedshvr.objectives.": OBJECTIVES,
    "fedshvr.corrections.": "fedshvr.algorithms.corrections.",
    "fedshvr.aggregation.Grouped": "fedshvr.algorithms.grouped.Grouped",
    "fedshvr.aggregation.Median": "fedshvr.algorithms.robust.Median",
    "fedshvr.aggregation.TrimmedMean": "fedshvr.algorithms.robust.TrimmedMean",
    "fedshvr.aggregation.": "fedshvr.algorithms.aggregation.",
    "fedshvr.data.partition.": "fedshvr.federation.partition.",
    "fedshvr.plan.": "fedshvr.federation.plan.",
    "fedshvr.reporting.wandb_run.": "fedshvr.running.wandb_run.",
}


# What the root of a configuration has since then, as it was before there was a choice.
ADDED: dict[str, Any] = {"callbacks": {}, "tags": [], "resume_anyway": False, "client_accuracy": False}
ADDED |= {"client_dropout": 0.0, "stragglers": 0.0, "server_labels": 0, "server_epochs": 1.0}
ADDED |= {"privacy": {"_target_": "fedshvr.algorithms.privacy.Privacy"}}
ADDED |= {"attack": "none", "attackers": 2, "on_client_error": "fail"}


def root_of_today(config: dict[str, Any]) -> dict[str, Any]:
    """A whole configuration as the same command composes it now."""
    now = ADDED | as_of_today(config)
    if now["partition"]["_target_"].endswith((".iid", ".dirichlet")):
        now["partition"].setdefault("labeled_clients", None)
    return now


def as_of_today(config: Any) -> Any:
    """The configuration with every _target_ where it is now; data had none while it was chosen by name alone."""
    if isinstance(config, dict):
        now = {key: target(v) if key == "_target_" else as_of_today(v) for key, v in config.items()}
        data = now.get("data")
        return now | {"data": {"_target_": BY_NAME} | data} if isinstance(data, dict) else now
    return [as_of_today(v) for v in config] if isinstance(config, list) else config


def target(name: str) -> str:
    for before, now in MOVED.items():
        if name.startswith(before):
            return now + name.removeprefix(before)
    return name
