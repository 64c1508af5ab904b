"""The paper's items: Table I, Figures 2 to 6 and Theorem 1, each from the runs that its sweep asks for."""

from collections.abc import Callable

import numpy as np

from fedshvr.reporting.items import (
    NONE,
    Item,
    Panel,
    Series,
    Table,
    at_round,
    cell,
    curves,
    final,
    finals,
    label,
    last_known,
)
from fedshvr.reporting.sweeps import Found, Group, describe

ACCURACY = "test accuracy (%)"
ROUND = "communication round"

TABLE1 = {  # row of configs/row: title, then the paper's accuracy (%) at IID T=1, T=100, Non-IID T=1, T=100
    "fedavg": ("FedAvg, 600 labels", 58.5, 88.0, 37.8, 87.5),
    "fedavg_full": ("FedAvg, 60000 labels", 94.4, 98.5, 94.3, 98.4),
    "plain": ("Fed-SHVR, α1 = α2 = 0", 81.4, 92.5, 34.7, 92.4),
    "r1": ("Fed-SHVR, α1 = 0.75, α2 = 0", 83.5, 92.7, 74.4, 92.7),
    "r2": ("Fed-SHVR, α1 = 0, α2 = 0.1", 83.1, 95.2, 72.9, 95.4),
    "r1_r2": ("Fed-SHVR, α1 = 0.75, α2 = 0.1", 83.6, 96.6, 82.2, 95.5),
}
SETTINGS = {"mnist_iid": "IID", "mnist_noniid": "Non-IID"}
NOT_CNN13 = " Not the paper's network: a small one on features that were computed once, without labels."
LEVELS = range(20, 100, 4)  # accuracies (%) of Fig. 6b; 76 is the one that the paper names


def item(found: Found, title: str, table: Table, panels: list[Panel] | None = None, note: str = "") -> Item:
    return Item(
        key=found.grid.name,
        title=title,
        scale=found.scale,
        command=found.command,
        table=table,
        panels=panels or [],
        missing=found.missing,
        runs=found.runs,
        note=note,
    )


def table1(found: Found) -> Item:
    """Paper and measured side by side; runs with further overrides follow as rows of their own."""
    last = last_round(found.groups)
    columns = ["method"]
    for setting in SETTINGS.values():
        for t, paper_t in ((1, 1), (last, 100)):
            columns += [f"{setting} T={paper_t}, paper", f"{setting} T={t}, ours"]
    by_place = {(g.cell["row"], g.cell["experiment"], g.setting, g.variant): g for g in found.groups}
    rows = []
    for kind in dict.fromkeys([("text", ()), *((g.setting, g.variant) for g in found.groups)]):
        for key, (title, *published) in TABLE1.items():
            ours = [by_place.get((key, experiment, *kind)) for experiment in SETTINGS]
            if kind == ("text", ()) or any(ours):
                values = [
                    cell(list(at_round(g, "test_acc", t, 100).values())) if g else NONE for g in ours for t in (1, 0)
                ]
                text = title + next((g.further for g in ours if g), "")
                rows.append([text, *(v for pair in zip(map(str, published), values, strict=True) for v in pair)])
    note = "Test accuracy in %, mean ± population std (number of seeds)."
    if last != 100:
        note += f" These runs end at round {last}, the paper's at round 100."
    return item(found, "Table I: the regularisers", Table(columns, rows), note=note)


def last_round(groups: list[Group]) -> int:
    return max((int(run.summary["rounds"]) for g in groups for run in g.runs.values()), default=100)


def accuracy_curves(title: str) -> Callable[[Found], Item]:
    def build(found: Found) -> Item:
        panel = Panel(title, ROUND, ACCURACY, curves(found.groups, "test_acc", 100))
        return item(found, title, last_values(found.groups), [panel], "The band is ± one std over the seeds.")

    return build


def last_values(groups: list[Group]) -> Table:
    rows = [
        [
            label(g),
            cell(list(at_round(g, "test_acc", 1, 100).values())),
            cell(list(at_round(g, "test_acc", 0, 100).values())),
            str(last_round([g])),
        ]
        for g in groups
    ]
    return Table(["method", "accuracy at T=1 (%)", "last accuracy (%)", "rounds"], rows)


def accuracy_against(key: str, title: str, xlabel: str, remark: str = "") -> Callable[[Found], Item]:
    def build(found: Found) -> Item:
        series = finals(found.groups, key)
        lines = [s for s in series if len(s.x) > 1] or series  # a setting's run of Table I is a point of no line
        panel = Panel(title, xlabel, ACCURACY, lines, points=True)
        return item(found, title, across(series, xlabel), [panel], "Accuracy after the last round." + remark)

    return build


def across(series: list[Series], xlabel: str) -> Table:
    """One row per series, one column per x."""
    xs = sorted({x for s in series for x in s.x})
    rows = []
    for s in series:
        at = {x: [v[i] for v in s.seeds.values() if np.isfinite(v[i])] for i, x in enumerate(s.x)}
        rows.append([s.label, *(cell(at.get(x, [])) for x in xs)])
    return Table([f"method \\ {xlabel}", *(f"{x:g}" for x in xs)], rows)


def fig4(found: Found) -> Item:
    loss, accuracy = curves(found.groups, "server_loss"), curves(found.groups, "test_acc", 100)
    several = [s for s in accuracy if len(s.seeds) > 1]  # the std of one seed says nothing
    spread = [Series(s.label, s.algorithm, s.x, s.seeds, s.std or [], None, s.dash) for s in several]
    rows = []
    for group in found.groups:
        std = np.std(list(at_round(group, "test_acc", 0, 100).values())) if len(group.runs) > 1 else np.nan
        last_loss = list(last_known(group, "server_loss").values())
        text = f"{std:.2f} ({len(group.runs)})" if np.isfinite(std) else NONE
        rows.append([label(group), cell(last_loss, 4), text])
    panels = [
        Panel("Fig. 4a: training loss", ROUND, "F(θ, v)", loss),
        Panel("Fig. 4b: std over the seeds", ROUND, "std of the accuracy (points of %)", spread),
    ]
    table = Table(["method", "last training loss", "std of the last accuracy (points of %)"], rows)
    note = "The training loss is F(θ, v) of the server's model on all clients' data without augmentation."
    return item(found, "Fig. 4: training loss and std, Non-IID", table, panels, note)


def label_view(found: Found) -> Item:
    key = "algorithm.objective.label_view"
    views = list(dict.fromkeys(g.cell[key] for g in found.groups))
    rows: dict[str, dict[str, str]] = {}
    for g in found.groups:
        rows.setdefault(label(g), {})[g.cell[key]] = cell(list(final(g).values()), 2)
    table = Table(["method", *views], [[name, *(row.get(v, NONE) for v in views)] for name, row in rows.items()])
    note = f"Accuracy (%) after round {last_round(found.groups)} by the view that is labelled."
    return item(found, "The view from which pseudo-labels come", table, note=note)


def held_out(title: str) -> Callable[[Found], Item]:
    """Options by the accuracy on held-out samples, the best first; how they do on the test set is not shown."""

    def build(found: Found) -> Item:
        places: dict[str, dict[str, list[float]]] = {}
        for g in found.groups:
            options = describe({k: v for k, v in g.cell.items() if k != "experiment"} | dict(g.variant))
            values = [100 * run.summary["val_acc"] for run in g.runs.values() if "val_acc" in run.summary]
            places.setdefault(options, {})[SETTINGS[g.cell["experiment"]]] = values
        rows = [
            [options, *(cell(by.get(name, [])) for name in SETTINGS.values()), f"{overall(by):.2f}"]
            for options, by in sorted(places.items(), key=lambda place: -overall(place[1]))
        ]
        columns = ["options", *(f"{name}, held out (%)" for name in SETTINGS.values()), "mean"]
        note = f"Accuracy after round {last_round(found.groups)} on a tenth of the training set that no client has."
        return item(found, title, Table(columns, rows), note=note)

    return build


def overall(values: dict[str, list[float]]) -> float:
    """The mean over the experiments of the means over the seeds."""
    return float(np.mean([np.mean(v) for v in values.values() if v]))


def rounds_to_reach(title: str, remark: str = "") -> Callable[[Found], Item]:
    def build(found: Found) -> Item:
        series: list[Series] = []
        for group in found.groups:
            reached = {seed: first_reach(run.curves["test_acc"]) for seed, run in sorted(group.runs.items())}
            dash = sum(s.algorithm == group.algorithm for s in series)
            text = label(group)
            series.append(Series.over_seeds(text, group.algorithm, np.array(LEVELS), reached, dash))
        panel = Panel(title, ACCURACY, "rounds needed", series, points=True)
        note = "The first round with at least this accuracy; shown where every seed reaches it. Mismatch ratio 0.5."
        return item(found, title, across(series, "accuracy (%)"), [panel], note + remark)

    return build


def first_reach(accuracy: np.ndarray) -> np.ndarray:
    """The first round (from 1) at each of LEVELS, NaN where it is never reached."""
    above = 100 * accuracy[None] >= np.array(LEVELS)[:, None]
    return np.where(above.any(1), above.argmax(1) + 1, np.nan)


def theorem1(found: Found) -> Item:
    """g_t and min_{s<=t} g_s, which Theorem 1 bounds by O(1/sqrt(T))."""
    groups = [g for g in found.groups if all("gap" in run.curves for run in g.runs.values())]
    gap = curves(groups, "gap")
    for series, group in zip(gap, groups, strict=True):
        series.label += f", {SETTINGS.get(str(group.cell['experiment']), group.cell['experiment'])}"
    least = []
    for s in gap:
        minima = {seed: np.minimum.accumulate(np.array(values)) for seed, values in s.seeds.items()}
        least.append(Series.over_seeds(s.label, s.algorithm, np.array(s.x), minima, s.dash))
    panels = [
        Panel("Theorem 1: g_t", ROUND, "g_t", gap, log=True, guide=root_line(gap)),
        Panel("Theorem 1: the least g_s so far", ROUND, "min g_s, s ≤ t", least, log=True, guide=root_line(least)),
    ]
    rows = [
        [s.label, f"{s.mean[0]:.4g}", f"{s.mean[-1]:.4g}", f"{slope(s):.2f}", str(len(s.seeds))] for s in least if s.x
    ]
    table = Table(["method", "g at T=1", "least g", "slope, second half", "seeds"], rows)
    note = "On log-log axes 1/√T has the slope −0.5; the slope is fitted to the second half of the rounds."
    return item(found, "Theorem 1: the optimality gap", table, panels, note)


def root_line(series: list[Series]) -> tuple[str, list[float], list[float]] | None:
    """c / sqrt(t) through the first point of the first series."""
    if not series or not series[0].x:
        return None
    x, start = series[0].x, series[0].mean[0]
    return "1/√T", x, [start * (x[0] / t) ** 0.5 for t in x]


def slope(series: Series) -> float:
    half = len(series.x) // 2
    x, y = np.log(series.x[half:]), np.log(np.maximum(series.mean[half:], 1e-300))
    return float(np.polyfit(x, y, 1)[0]) if len(x) > 1 else float("nan")


ITEMS: dict[str, Callable[[Found], Item]] = {
    "table1": table1,
    "fig2a": accuracy_curves("Fig. 2a: test accuracy, MNIST IID"),
    "fig2b": accuracy_curves("Fig. 2b: test accuracy, MNIST Non-IID"),
    "fig3a": accuracy_against("partition.unlabeled", "Fig. 3a: more unlabelled samples", "unlabelled samples"),
    "fig3b": accuracy_against("partition.clients", "Fig. 3b: more clients", "clients"),
    "fig4": fig4,
    "fig6a": accuracy_against("partition.mismatch_ratio", "Fig. 6a: class mismatch, CIFAR-10", "mismatch ratio"),
    "fig6b": rounds_to_reach("Fig. 6b: rounds to reach an accuracy"),
    "fig6a_features": accuracy_against(
        "partition.mismatch_ratio",
        "Fig. 6a with fixed features: class mismatch, CIFAR-10",
        "mismatch ratio",
        NOT_CNN13,
    ),
    "fig6b_features": rounds_to_reach("Fig. 6b with fixed features: rounds to reach an accuracy", NOT_CNN13),
    "theorem1": theorem1,
    "label_view": label_view,
    "tune_mt": held_out("The mean teacher's weight and decay, on held-out samples"),
}
