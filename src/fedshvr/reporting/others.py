"""Runs that belong to no table or figure of the paper: one item per experiment, grouped by what the runs vary."""

import hashlib
import re
from collections.abc import Iterable

from fedshvr.reporting.collect import Run
from fedshvr.reporting.items import Item, Panel, Table, cell, curves
from fedshvr.reporting.paper import ACCURACY, ROUND, last_values
from fedshvr.reporting.sweeps import Group, Variant, add, apart, difference, largest, mark_own

# What summary.json may have: the column, the factor of its unit and the digits
TOLD = {
    "client_acc_mean": ("mean over clients (%)", 100, 1),
    "client_acc_worst10": ("worst tenth of clients (%)", 100, 1),
    "client_acc_std": ("std over clients (%)", 100, 1),
    "bytes_up": ("MB up", 1e-6, 2),
    "bytes_down": ("MB down", 1e-6, 2),
}


def other_items(runs: Iterable[Run], scale: str | None) -> list[Item]:
    by_experiment: dict[str, list[Run]] = {}
    for run in runs:
        by_experiment.setdefault(str(run.choices["experiment"]), []).append(run)
    return [experiment_item(name, by_experiment[name], scale) for name in sorted(by_experiment)]


def experiment_item(experiment: str, runs: list[Run], scale: str | None) -> Item:
    shown = scale or largest({str(run.choices["scale"]) for run in runs})
    groups: dict[tuple[str, str, Variant], Group] = {}
    for run in runs:
        if run.choices["scale"] == shown:
            algorithm, variant = str(run.choices["algorithm"]), difference(run, {})
            group = Group({"algorithm": algorithm}, variant, setting=run.setting)
            add(groups.setdefault((algorithm, run.setting, variant), group), run)
    ordered = sorted(groups.values(), key=lambda g: (bool(g.variant), g.algorithm, *apart(g)))
    mark_own(ordered)
    used = [run for group in ordered for _, run in sorted(group.runs.items())]
    algorithms = ",".join(dict.fromkeys(group.algorithm for group in ordered)) or "fed_shvr"
    seeds = ",".join(str(seed) for seed in sorted({run.seed for run in used})) or "0"
    title = f"Runs of experiment={experiment}"
    return Item(
        key=f"runs_{file_name(experiment)}",
        title=title,
        scale=shown,
        command=f"python src/train.py -m experiment={experiment} scale={shown} algorithm={algorithms} seed={seeds}",
        table=with_measured(last_values(ordered), ordered),
        panels=[Panel(title, ROUND, ACCURACY, curves(ordered, "test_acc", 100))],
        runs=used,
        note="Not an item of the paper. The band is ± one std over the seeds.",
    )


def file_name(name: str) -> str:
    """The name if it is a plain word, else one made of it: it comes from a file and becomes a path and an address."""
    plain = re.sub(r"[^\w-]+", "_", name)
    return plain if plain == name else f"{plain}_{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def with_measured(table: Table, groups: list[Group]) -> Table:
    """The table with a column for each of TOLD that some run has."""
    for name, (column, factor, digits) in TOLD.items():
        values = [[factor * run.summary[name] for run in g.runs.values() if name in run.summary] for g in groups]
        if any(values):
            rows = [[*row, cell(own, digits)] for row, own in zip(table.rows, values, strict=True)]
            table = Table([*table.columns, column], rows)
    return table
