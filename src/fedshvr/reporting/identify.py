"""The runs of sweep=identify and identify_*: which settings are closest to Table I at T=1, and what each does."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from fedshvr.reporting.collect import Run, settings
from fedshvr.reporting.items import NONE, Item, Table
from fedshvr.reporting.paper import SETTINGS, TABLE1, item
from fedshvr.reporting.sweeps import (
    CONFIGS,
    Found,
    Group,
    Missing,
    add,
    command,
    describe,
    fits,
    grid,
    largest,
    row,
    wanted,
)

Cell = tuple[str, str]  # a row of Table I and an experiment
Setting = frozenset[tuple[str, Any]]  # factors and their levels

SEARCHES = sorted(path.stem for path in (CONFIGS / "sweep").glob("identify*.yaml"))
READING = "T=1 is round"  # of metrics.csv: 1, or 2 if T counts from 0
PAPER = {(r, e): float(TABLE1[r][place]) for e, place in zip(SETTINGS, (1, 3), strict=True) for r in TABLE1}
CELLS = [f"{r}, {SETTINGS[e]}" for r, e in PAPER]
COPIED = ("ramp.", "augment.", "augment_strong.weak.")
BEST = 10


def search(runs: Iterable[Run], scale: str | None) -> Found:
    """The runs of the searches at one scale; a group's variant is its level of each factor."""
    own = [(cell, run) for run in runs if run.choices.get("sweep") in SEARCHES and (cell := cell_of(run))]
    scale = scale or (largest({str(run.choices["scale"]) for _, run in own}) if own else "paper")
    shown = [(cell, run, options(run)) for cell, run in own if run.choices["scale"] == scale]
    varied = factors([(cell, levels) for cell, _, levels in shown])
    groups: dict[tuple[Cell, Setting], Group] = {}
    for cell, run, levels in shown:
        variant = tuple((k, levels[k]) for k in varied if k in levels)
        where = dict(zip(("row", "experiment"), cell, strict=True))
        add(groups.setdefault((cell, frozenset(variant)), Group(where, variant)), run)
    missing = [m for name in SEARCHES if (m := lacking(name, scale, [run for _, run, _ in shown]))]
    return Found(grid("identify"), scale, list(groups.values()), missing, {run.folder for _, run in own})


def cell_of(run: Run) -> Cell | None:
    return next(((r, e) for r, e in PAPER if run.choices["experiment"] == e and fits(run, row(r))), None)


def options(run: Run) -> dict[str, Any]:
    """What may be a factor.

    `ramp` is copied into the objective that uses it, hard labels have no exponent, an image that is not augmented has
    one view, and who learns labelled samples alone augments no others.
    """
    kept = {k: v for k, v in settings(run.config).items() if k != "rounds" and not k.startswith(COPIED)}
    if kept.get("algorithm.objective.alpha1") == 0:
        kept.pop("algorithm.objective.exponent", None)
    augment = run.choices.get("augment")
    if kept["algorithm.objective._target_"] != "Supervised":
        kept["augment"] = augment
    if augment == "none":
        kept.pop("algorithm.objective.label_view", None)
    kept["augment of labelled"] = augment if kept.pop("augment_labeled", True) else "none"
    return {k: str(v) if isinstance(v, list) else v for k, v in kept.items()}


def factors(shown: list[tuple[Cell, dict[str, Any]]]) -> list[str]:
    """The options in which two runs of one cell differ."""
    levels: dict[tuple[Cell, str], set[Any]] = {}
    for cell, run in shown:
        for key, value in run.items():
            levels.setdefault((cell, key), set()).add(value)
    return sorted({key for (_, key), values in levels.items() if len(values) > 1})


def lacking(name: str, scale: str, runs: list[Run]) -> Missing | None:
    """The jobs of a search that have not finished; its command goes on with them."""
    plan = grid(name)
    own = [run for run in runs if run.choices["sweep"] == name]
    places = [wanted(plan, cell) | {"seed": seed} for cell in plan.cells() for seed in plan.seeds]
    done = sum(any(fits(run, where) for run in own) for where in places)
    what = f"{name}: {done} of {len(places)} jobs"
    return Missing(what, command(name, scale), len(places) - done) if done < len(places) else None


def measured(found: Found) -> dict[Cell, dict[Setting, float]]:
    """The accuracy (%) of each cell at each setting, the mean over the seeds; how T counts is one more factor."""
    values: dict[Cell, dict[Setting, float]] = {}
    for group in found.groups:
        curves = [100 * run.curves["test_acc"] for run in group.runs.values()]
        for t in (1, 2):
            if all(len(curve) >= t for curve in curves):
                setting = frozenset({*group.variant, (READING, t)})
                place = values.setdefault((group.cell["row"], group.cell["experiment"]), {})
                place[setting] = float(np.mean([curve[t - 1] for curve in curves]))
    return values


@dataclass
class Ranked:
    """A setting, the cells that runs give for it, and the mean of |ours - the paper's| over these."""

    setting: Setting
    cells: dict[Cell, float]

    @property
    def distance(self) -> float:
        return float(np.mean([abs(value - PAPER[cell]) for cell, value in self.cells.items()]))


def ranking(values: dict[Cell, dict[Setting, float]]) -> list[Ranked]:
    """The settings with more cells first, then by distance.

    A cell whose runs do not have some factor (FedAvg has no labels to renew) counts for every level of it.
    """
    seen = {setting for of_cell in values.values() for setting in of_cell}
    whole = [setting for setting in seen if not any(setting < other for other in seen)]
    ranked = [
        Ranked(s, {cell: v for cell, of_cell in values.items() for own, v in of_cell.items() if own <= s})
        for s in whole
    ]
    return sorted(ranked, key=lambda r: (-len(r.cells), r.distance, sorted(map(str, r.setting))))


def effects(
    values: dict[Cell, dict[Setting, float]], factor: str, a: Any, b: Any
) -> dict[Cell, list[tuple[float, float]]]:
    """From level a to b, all else equal: for each cell the changes of its accuracy and of its distance.

    All of them in round 1, unless the factor is which round to take.
    """
    changes: dict[Cell, list[tuple[float, float]]] = {}
    for cell, of_cell in values.items():
        for setting, before in of_cell.items():
            after = of_cell.get(setting - {(factor, a)} | {(factor, b)})
            if (factor, a) in setting and after is not None and (factor == READING or (READING, 1) in setting):
                nearer = abs(after - PAPER[cell]) - abs(before - PAPER[cell])
                changes.setdefault(cell, []).append((after - before, nearer))
    return changes


def identify(found: Found) -> Item:
    ranked = ranking(measured(found))
    names = sorted({factor for r in ranked for factor, _ in r.setting})
    head = ["rank", "setting", "cells", "distance"]
    best = [[str(i), describe(tuple(sorted(r.setting))), *numbers(r)] for i, r in enumerate(ranked[:BEST], 1)]
    rows = [
        [str(i), *(str(dict(r.setting).get(name, "")) for name in names), *numbers(r)] for i, r in enumerate(ranked, 1)
    ]
    note = (
        f"The best {BEST} of {len(ranked)} settings; identify.csv has all. The distance is the mean of |ours - the "
        "paper's| accuracy (%) over the cells that have runs; settings with more cells come first."
    )
    table = measured_columns(Table([*head, *CELLS], best), paper_row())
    made = item(found, "The settings closest to Table I at T=1", table, note=note)
    return replace(made, points=Table(["rank", *names, *head[2:], *CELLS], rows))


def measured_columns(table: Table, first: list[str] | None = None) -> Table:
    """The table without the columns that have nothing, and with this row before the others."""
    kept = [i for i in range(len(table.columns)) if any(row[i] != NONE for row in table.rows)]
    rows = [first, *table.rows] if first and table.rows else table.rows
    return Table([table.columns[i] for i in kept], [[row[i] for i in kept] for row in rows])


def paper_row() -> list[str]:
    return ["", "the paper", str(len(PAPER)), "0.00", *(f"{value:.1f}" for value in PAPER.values())]


def numbers(ranked: Ranked) -> list[str]:
    cells = (f"{ranked.cells[cell]:.1f}" if cell in ranked.cells else NONE for cell in PAPER)
    return [str(len(ranked.cells)), f"{ranked.distance:.2f}", *cells]


def identify_factors(found: Found) -> Item:
    values = measured(found)
    levels: dict[str, set[Any]] = {}
    for factor, level in (pair for of_cell in values.values() for setting in of_cell for pair in setting):
        levels.setdefault(factor, set()).add(level)
    rows = []
    for factor, of_factor in sorted(levels.items()):
        for a, b in combinations(sorted(of_factor, key=lambda level: (str(type(level)), level)), 2):
            if changes := effects(values, factor, a, b):
                rows.append([factor, f"{a} to {b}", *effect_numbers(changes)])
    columns = ["factor", "levels", "pairs", "distance", *CELLS]
    note = (
        "The change from the first level to the second, all else equal: of the distance to the paper (negative is "
        "nearer; the mean over the cells that have such pairs of settings) and of each cell's accuracy, in points of %."
    )
    made = item(found, "What each unstated setting changes at T=1", measured_columns(Table(columns, rows)), note=note)
    return replace(made, key="identify_factors")


def effect_numbers(changes: dict[Cell, list[tuple[float, float]]]) -> list[str]:
    means = {cell: np.mean(pairs, axis=0) for cell, pairs in changes.items()}
    nearer = float(np.mean([mean[1] for mean in means.values()]))
    cells = (f"{means[cell][0]:+.1f}" if cell in means else NONE for cell in PAPER)
    return [str(sum(map(len, changes.values()))), f"{nearer:+.2f}", *cells]


SEARCH: dict[str, Callable[[Found], Item]] = {"identify": identify, "identify_factors": identify_factors}
