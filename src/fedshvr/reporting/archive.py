"""Finished runs as small text: results/runs/<sweep>_<scale>.csv, from which every table and figure can be made again.

    # config <key> {...}         what decides the result, the seed aside
    # run <key>-<seed> {...}     one run of it: command, versions, seconds
    run,round,test_acc,...       its curves, at full precision

The key is a digest of the config line, so a run is known by its whole configuration. Lines are sorted: a run that is
added is a few lines in the diff.
"""

import csv
import hashlib
import json
from collections.abc import Iterable, Iterator
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from fedshvr.errors import check
from fedshvr.reporting.collect import OPTIONAL, Collection, Damaged, Run, identity
from fedshvr.reporting.sweeps import CONFIGS, SCALES, find, override
from fedshvr.running.files import write_atomically

CURVES = ("test_acc", *OPTIONAL)
FACTS: tuple[str, ...] = ("test_acc", "val_acc", "rounds", "seconds", "processes", "versions", "finished_at")
FACTS += ("partition_sha256", "theta_sha256")
Json = dict[str, Any]


def archive(sweep: str, runs: Iterable[Run], results: Path) -> list[str]:
    """Merge a sweep's finished runs into its files, one a scale; a run that is there already stays as it is."""
    names = sorted(path.stem for path in (CONFIGS / "sweep").glob("*.yaml") if path.stem != "adhoc")
    check(sweep in names, f"archive={sweep}: must be one of {', '.join(names)}")
    lines = []
    for scale in SCALES:
        new = dict(entries(sweep, [run for run in runs if run.own], scale))
        if new:
            path = results / "runs" / f"{sweep}_{scale}.csv"
            old = {run.folder.name: run for run in read(path)} if path.is_file() else {}
            write_atomically(path, text(new | old))
            lines.append(f"{path}: {len(old)} runs were there, {len(set(new) - set(old))} are new")
    return lines or [f"no finished run of sweep={sweep} to archive"]


def entries(sweep: str, runs: list[Run], scale: str) -> Iterator[tuple[str, Run]]:
    """The runs of a sweep by their name in the archive; runs that another sweep was started for are left to it."""
    found = find(sweep, [run for run in runs if run.choices.get("sweep") in (sweep, "adhoc", None)], scale)
    for group in found.groups:
        command = found.command_of(group)
        for run in group.runs.values():
            yield f"{digest(config_line(run))}-{run.seed}", run.told(command=f"{command} {override('seed', run.seed)}")


def config_line(run: Run) -> Json:
    choices = {k: v for k, v in run.choices.items() if k != "sweep"}
    return {"choices": choices, "config": identity(run.config)}


def digest(line: Json) -> str:
    return hashlib.sha256(as_json(line).encode()).hexdigest()[:12]


def as_json(value: Json) -> str:
    return json.dumps(value, sort_keys=True)


def text(runs: dict[str, Run]) -> str:
    ordered = dict(sorted(runs.items(), key=lambda entry: (entry[0].split("-")[0], entry[1].seed)))
    configs = {name.split("-")[0]: config_line(run) for name, run in ordered.items()}
    lines = [f"# config {name} {as_json(line)}" for name, line in configs.items()]
    lines += [f"# run {name} {as_json(facts(run))}" for name, run in ordered.items()]
    lines.append(",".join(("run", "round", *CURVES)))
    lines += [row for name, run in ordered.items() for row in curve_rows(name, run)]
    return "\n".join(lines) + "\n"


def facts(run: Run) -> Json:
    return {k: run.summary[k] for k in (*FACTS, "command") if k in run.summary}


def curve_rows(name: str, run: Run) -> Iterator[str]:
    for i in range(len(run.curves["round"])):
        values = [float(run.curves[c][i]) if c in run.curves else np.nan for c in CURVES]
        yield ",".join([name, str(i + 1), *(repr(v) if isfinite(v) else "" for v in values)])


def add_archived(collection: Collection, results: Path) -> Collection:
    """The committed runs behind the user's own."""
    for path in sorted((results / "runs").glob("*.csv")):
        try:
            collection.runs += read(path)
        except Damaged as error:
            collection.damaged.append((path, str(error)))
    return collection


def read(path: Path) -> list[Run]:
    """The runs of one archive file."""
    configs: dict[str, Json] = {}
    summaries: dict[str, Json] = {}
    columns: dict[str, list[list[str]]] = {}
    try:
        with path.open(newline="") as file:
            for line in file:
                if not line.startswith("# "):
                    break
                _, kind, name, value = line.split(" ", 3)
                {"config": configs, "run": summaries}[kind][name] = json.loads(value)
            names = line.rstrip("\n").split(",")
            for row in csv.reader(file):
                columns.setdefault(row[0], []).append(row[1:])
        sweep = path.stem.rsplit("_", 1)[0]
        return [one(path, name, sweep, configs, facts, names[1:], columns[name]) for name, facts in summaries.items()]
    except (ValueError, KeyError, OSError) as error:
        raise Damaged(f"{error!r}") from None


def one(
    path: Path, name: str, sweep: str, configs: dict[str, Json], facts: Json, names: list[str], rows: list[list[str]]
) -> Run:
    values = np.array([[float(text or "nan") for text in row] for row in rows]).T
    curves = {c: v for c, v in zip(names, values, strict=True) if c == "test_acc" or np.isfinite(v).any()}
    key, seed = name.rsplit("-", 1)
    line = configs[key]
    if digest(line) != key:
        raise ValueError(f"{name}: its config line was changed")
    if len(rows) != facts["rounds"]:
        raise ValueError(f"{name}: {len(rows)} rows, but {facts['rounds']} rounds")
    config = line["config"] | {"seed": int(seed)}
    return Run(path / name, facts, config, line["choices"] | {"sweep": sweep}, curves, own=False)
