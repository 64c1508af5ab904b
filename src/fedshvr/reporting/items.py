"""What a report shows, as plain data: the same series are drawn by matplotlib and by the page."""

from dataclasses import dataclass, field

import numpy as np

from fedshvr.reporting.collect import Run
from fedshvr.reporting.style import name as display_name
from fedshvr.reporting.sweeps import Group, Missing

NONE = "—"  # a cell without a run


@dataclass
class Series:
    """Mean and population std over seeds (1/n, the paper's) along x; `seeds` holds each seed's own values."""

    label: str
    algorithm: str
    x: list[float]
    seeds: dict[int, list[float]]
    mean: list[float]
    std: list[float] | None = None
    dash: int = 0  # variants of one algorithm share its colour

    @property
    def n(self) -> str:
        """How many seeds the points have."""
        known = np.isfinite(list(self.seeds.values()))
        least, most = (min(n), max(n)) if (n := known.sum(0).tolist() if known.size else []) else (0, 0)
        return str(most) if least == most else f"{least} to {most}"

    @staticmethod
    def over_seeds(label: str, algorithm: str, x: np.ndarray, values: dict[int, np.ndarray], dash: int = 0) -> "Series":
        """Only those x count that every seed has a value for."""
        stacked = np.stack(list(values.values()))
        kept = np.isfinite(stacked).all(0)
        seeds = {seed: row[kept].tolist() for seed, row in values.items()}
        mean, std = stacked[:, kept].mean(0).tolist(), stacked[:, kept].std(0).tolist()
        return Series(label, algorithm, np.asarray(x, float)[kept].tolist(), seeds, mean, std, dash)


@dataclass
class Panel:
    title: str
    xlabel: str
    ylabel: str
    series: list[Series]
    log: bool = False  # both axes
    points: bool = False  # few x, each a run of its own: draw every marker
    guide: tuple[str, list[float], list[float]] | None = None  # a reference line: label, x, y


@dataclass
class Surface:
    """Q(b1, b2) on a square grid: values[i][j] is at b1 = beta[j], b2 = beta[i]."""

    title: str
    beta: list[float]
    values: list[list[float]]


@dataclass
class Table:
    columns: list[str]
    rows: list[list[str]]


@dataclass
class Item:
    key: str
    title: str
    scale: str
    command: str
    table: Table
    panels: list[Panel] = field(default_factory=list)
    surfaces: list[Surface] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    note: str = ""
    points: Table | None = None  # for the CSV file, where it has more than the table

    @property
    def origin(self) -> str:
        """Whose runs these are."""
        own = sum(run.own for run in self.runs)
        committed = len(self.runs) - own
        if own and committed:
            return f"of your own: {own} (lines with *), committed: {committed}"
        return "your own runs" if own else "committed results" if committed else ""


def label(group: Group) -> str:
    return display_name(group.algorithm) + group.further


def curves(groups: list[Group], column: str, factor: float = 1.0) -> list[Series]:
    """One series of a metric against round per group; groups without the metric are left out."""
    series: list[Series] = []
    for group in groups:
        values = {s: factor * run.curves[column] for s, run in sorted(group.runs.items()) if column in run.curves}
        if values:
            rounds = group.some_run.curves["round"]
            dash = sum(s.algorithm == group.algorithm for s in series)
            text = label(group)
            series.append(Series.over_seeds(text, group.algorithm, rounds, values, dash))
    return series


def finals(groups: list[Group], x_of: str) -> list[Series]:
    """One series of the last accuracy (%) against the setting `x_of` per algorithm and variant."""
    lines: dict[str, list[tuple[float, Group]]] = {}
    for group in groups:
        x = float(group.some_run.config[x_of])
        lines.setdefault(label(group), []).append((x, group))
    series: list[Series] = []
    for text, points in lines.items():
        points.sort(key=lambda point: point[0])
        algorithm = points[0][1].algorithm
        seeds = sorted(set().union(*(group.runs for _, group in points)))
        rows = {seed: [final(group).get(seed, np.nan) for _, group in points] for seed in seeds}
        stats = [mean_std(list(final(group).values())) for _, group in points]
        dash = sum(s.algorithm == algorithm for s in series)
        mean, std = [m for m, _ in stats], [s for _, s in stats]
        series.append(Series(text, algorithm, [x for x, _ in points], rows, mean, std, dash))
    return series


def at_round(group: Group, column: str, round: int, factor: float = 1.0) -> dict[int, float]:
    """Each seed's value at a round (1 is the first, 0 stands for the last)."""
    return {seed: factor * float(run.curves[column][round - 1]) for seed, run in sorted(group.runs.items())}


def last_known(group: Group, column: str) -> dict[int, float]:
    """Each seed's last finite value of a metric that is not measured every round."""
    curves = {seed: run.curves.get(column, np.empty(0)) for seed, run in sorted(group.runs.items())}
    known = {seed: values[np.isfinite(values)] for seed, values in curves.items()}
    return {seed: float(values[-1]) for seed, values in known.items() if len(values)}


def final(group: Group) -> dict[int, float]:
    """Each seed's last test accuracy in percent."""
    return at_round(group, "test_acc", 0, 100)


def mean_std(values: list[float]) -> tuple[float, float]:
    return float(np.mean(values)), float(np.std(values))


def cell(values: list[float], digits: int = 1) -> str:
    """mean ± population std (number of seeds); one seed has no std"""
    if not values:
        return NONE
    mean, std = mean_std(values)
    spread = f" ± {std:.{digits}f}" if len(values) > 1 else ""
    return f"{mean:.{digits}f}{spread} ({len(values)})"
