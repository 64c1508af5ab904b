"""The grid of a sweep (configs/sweep), which runs fill its cells, and the command for the cells that are empty."""

import json
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf, open_dict

from fedshvr.places import CONFIGS
from fedshvr.reporting.collect import LATER, Run, flat, settings

SCALES = ("paper", "laptop", "smoke")  # the largest first
GROUPS = ("data.", "model.")  # whose choices have options of their own

Where = dict[str, Any]  # what a cell asks of its runs: group choices and flat configuration keys
Variant = tuple[tuple[str, Any], ...]  # how runs differ from what the cell's command would run


@dataclass(frozen=True)
class Grid:
    """A sweep file: the axes as they are typed, what is the same in every cell, and the seeds."""

    name: str
    axes: dict[str, list[Any]]
    fixed: Where
    seeds: list[int]

    def cells(self) -> list[Where]:
        return [dict(zip(self.axes, values, strict=True)) for values in product(*self.axes.values())]


@dataclass
class Group:
    """Runs that differ in the seed alone."""

    cell: Where
    variant: Variant = ()
    runs: dict[int, Run] = field(default_factory=dict)
    setting: str = "text"
    mark: str = ""  # behind the name of its line: see mark_own

    @property
    def some_run(self) -> Run:
        return next(iter(self.runs.values()))

    @property
    def algorithm(self) -> str:
        return str(self.some_run.choices["algorithm"])

    @property
    def line(self) -> tuple[object, ...]:
        """Groups of the same are one line of a figure, one row of a table."""
        return self.algorithm, self.cell.get("row"), self.setting, self.variant

    @property
    def further(self) -> str:
        """What sets it apart from the text's setting, in brackets, and the mark."""
        asked = _setting(self.setting) | dict(self.variant)
        return (f" ({describe(asked)})" if asked else "") + self.mark


@dataclass
class Missing:
    what: str
    command: str
    jobs: int
    setting: str = "text"


@dataclass
class Found:
    """What the runs give for one sweep at one scale."""

    grid: Grid
    scale: str
    groups: list[Group]
    missing: list[Missing]
    claimed: set[Path]  # folders of all runs that belong here: also those of other scales, and those run again later

    @property
    def runs(self) -> list[Run]:
        return [run for group in self.groups for _, run in sorted(group.runs.items())]

    @property
    def settings(self) -> list[str]:
        """Those that have runs, variants aside; the text's first."""
        return list(dict.fromkeys(group.setting for group in self.groups if not group.variant))

    @property
    def commands(self) -> list[str]:
        """What runs the sweep, with each of these settings."""
        asked = [_setting(name) for name in self.settings or ["text"]]
        return [command(self.grid.name, self.scale, *(override(k, v) for k, v in s.items())) for s in asked]

    @property
    def command(self) -> str:
        return self.commands[0]

    def command_of(self, group: Group) -> str:
        """What runs the seeds of a group, but for `seed`."""
        asked = group.cell | _setting(group.setting) | dict(group.variant)
        return command(self.grid.name, self.scale, *(override(k, v) for k, v in asked.items()))


def override(key: str, value: Any) -> str:
    return f"{key}={value if isinstance(value, str) else json.dumps(value, separators=(',', ':'))}"


def _setting(name: str) -> Where:
    return {} if name == "text" else {"setting": name}


def command(sweep: str, scale: str, *overrides: str) -> str:
    return " ".join(["python src/train.py -m", f"sweep={sweep}", f"scale={scale}", *overrides])


@cache
def grid(name: str) -> Grid:
    fixed = _wanted(CONFIGS / "sweep" / f"{name}.yaml")
    params = {k.removeprefix("hydra.sweeper.params."): v for k, v in fixed.items() if k.startswith("hydra.")}
    axes = {key: _values(key, text) for key, text in params.items()}
    seeds = axes.pop("seed")
    return Grid(name, axes, {k: v for k, v in fixed.items() if not k.startswith("hydra.")}, seeds)


def _values(key: str, text: Any) -> list[Any]:
    override = OverridesParser.create().parse_override(f"{key}={text}")
    return list(override.sweep_iterator()) if override.is_sweep_override() else [override.value()]


def _wanted(path: Path) -> Where:
    """The choices and values that a small _global_ configuration file sets, after those of the file that it extends."""
    tree = yaml.safe_load(path.read_text())
    where: Where = {}
    for entry in tree.pop("defaults", []):
        if isinstance(entry, str):
            where |= _wanted(path.with_name(f"{entry}.yaml"))
        else:
            where |= {k.removeprefix("override /"): v for k, v in entry.items() if k.startswith("override /")}
    return where | flat(tree)


def wanted(grid: Grid, cell: Where) -> Where:
    """What the cell's runs must have; `row` stands for a file of configs/row."""
    where = {k: v for k, v in grid.fixed.items() if k not in ("scale", "logger")}
    for key, value in cell.items():
        where |= row(value) if key == "row" else {key: value}
    return {k: short(k, v) for k, v in where.items()}


@cache
def row(name: str) -> Where:
    """A row of Table I."""
    return _wanted(CONFIGS / "row" / f"{name}.yaml")


def fits(run: Run, where: Where) -> bool:
    known = LATER | run.config | run.choices
    return all(short(k, known.get(k)) == v for k, v in where.items())


def short(key: str, value: Any) -> Any:
    """A class by its name alone, as in `settings`."""
    return str(value).rpartition(".")[2] if key.endswith("_target_") else value


def find(name: str, runs: Iterable[Run], scale: str | None = None) -> Found:
    """Fill the cells of a sweep with runs at one scale: the one asked for, or else the largest that has a run.

    A run that was started for this sweep with further overrides is kept apart as a variant; a run from elsewhere counts
    only if it is exactly what the cell's command would have run, with the run's `setting`; settings are kept apart too.
    """
    plan = grid(name)
    places = [(cell, wanted(plan, cell)) for cell in plan.cells()]
    fitting = [(cell, run, difference(run, where)) for cell, where in places for run in runs if fits(run, where)]
    own = [(cell, run, variant) for cell, run, variant in fitting if not variant or run.choices.get("sweep") == name]
    scale = scale or largest({str(run.choices["scale"]) for _, run, _ in own})
    groups: dict[tuple[str, str, Variant], Group] = {}
    for cell, run, variant in own:
        if run.choices["scale"] == scale:
            key = (str(cell), run.setting, variant)
            add(groups.setdefault(key, Group(cell, variant, setting=run.setting)), run)
    order = {str(cell): i for i, (cell, _) in enumerate(places)}
    ordered = sorted(groups.values(), key=lambda g: (*apart(g), order[str(g.cell)]))
    mark_own(ordered)
    return Found(plan, scale, ordered, _missing(plan, scale, ordered), {run.folder for _, run, _ in own})


def mark_own(groups: list[Group]) -> None:
    """A * behind every line that has a run of the user's, where others have committed runs alone."""
    own = {group.line for group in groups if any(run.own for run in group.runs.values())}
    if not all(run.own for group in groups for run in group.runs.values()):
        for group in groups:
            group.mark = "*" if group.line in own else ""


def apart(group: Group) -> tuple[object, ...]:
    """To sort by: first what the text's setting gives, last what further overrides give."""
    return bool(group.variant), str(group.variant), group.setting != "text"


def largest(scales: set[str]) -> str:
    return next((scale for scale in SCALES if scale in scales), min(scales, default="laptop"))


def add(group: Group, run: Run) -> None:
    """Of two runs with the same seed the user's own counts, and of two alike in that the later one."""
    other = group.runs.get(run.seed)
    if other is None or _rank(run) >= _rank(other):
        group.runs[run.seed] = run


def _rank(run: Run) -> tuple[bool, str]:
    return run.own, str(run.summary.get("finished_at"))


def difference(run: Run, where: Where) -> Variant:
    """The settings of the run that its experiment, algorithm and cell do not give."""
    asked = ("experiment", "algorithm", "scale", *(k for k in where if k in run.choices))
    names = {k: str(run.choices[k]) for k in asked} | _setting(run.setting)
    copied = {f"algorithm.objective.{k}": v for k, v in where.items() if k.startswith("ramp.")}  # into who uses it
    own, reference = settings(run.config), composed(**names) | where | copied
    if any(k.startswith(GROUPS) and k not in reference for k in own):  # another choice: its options have defaults too
        chosen = {k.rstrip("."): run.choices.get(k.rstrip(".")) for k in GROUPS}
        reference = composed(**names, **{k: v for k, v in chosen.items() if v}) | reference
    differing = {k: v for k, v in own.items() if k in reference and not _same(v, reference[k])}
    return tuple((k, str(v) if isinstance(v, list) else v) for k, v in differing.items())


def _same(a: Any, b: Any) -> bool:
    return str(a) == str(b) or (isinstance(a, int | float) and isinstance(b, int | float) and a == b)


@cache
def composed(**choices: str) -> dict[str, Any]:
    """The flat settings that these choices give; empty if there are no such files any more."""
    started = GlobalHydra.instance().is_initialized()  # as in report.py
    with nullcontext() if started else initialize_config_dir(str(CONFIGS), version_base="1.3"):
        try:
            cfg = compose("train", overrides=[*(f"{k}={v}" for k, v in choices.items()), "logger=csv"])
        except HydraException:
            return {}
    with open_dict(cfg):
        cfg.paths, cfg.choices = {"data": "", "run": ""}, {}  # to be resolved they need a running job
    tree = OmegaConf.to_container(cfg, resolve=True)
    assert isinstance(tree, dict)
    return settings(flat(tree))  # type: ignore[arg-type]


def _missing(grid: Grid, scale: str, groups: list[Group]) -> list[Missing]:
    """One command for everything if there is nothing yet, else one for each cell that lacks seeds."""
    have = {(g.setting, str(g.cell)): set(g.runs) for g in groups if not g.variant}
    if not have:
        return [Missing("every cell", command(grid.name, scale), len(grid.cells()) * len(grid.seeds))]
    missing = []
    for setting, cell in product(sorted({setting for setting, _ in have} | {"text"}, reverse=True), grid.cells()):
        lacking = [seed for seed in grid.seeds if seed not in have.get((setting, str(cell)), set())]
        if lacking:
            place = cell | _setting(setting)
            overrides = [*(override(k, v) for k, v in place.items()), f"seed={','.join(map(str, lacking))}"]
            what = f"{describe(place)}: {len(grid.seeds) - len(lacking)} of {len(grid.seeds)} seeds"
            missing.append(Missing(what, command(grid.name, scale, *overrides), len(lacking), setting))
    return missing


def describe(where: Where | Variant) -> str:
    named = {k.removeprefix("algorithm.objective."): v for k, v in dict(where).items()}  # a ramp stands twice
    return ", ".join(f"{k}={v}" for k, v in named.items())
