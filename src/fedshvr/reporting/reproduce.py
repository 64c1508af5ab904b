"""Every sweep, the cheap and important first: what is left, what it takes, and running it. python src/reproduce.py"""

import json
import shlex
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from fedshvr.errors import Stopped
from fedshvr.reporting.archive import add_archived
from fedshvr.reporting.collect import Run, collect
from fedshvr.reporting.items import Table
from fedshvr.reporting.sweeps import Missing, Where, composed, find, grid, wanted
from fedshvr.reporting.tables import markdown_table
from fedshvr.running.progress import duration

# Not `finalists`: like the identify sweeps a search for setting=closest, whose outcome is a file of configs/setting
ORDER: tuple[str, ...] = ("table1", "fig2b", "fig2a", "fig4", "fig5", "theorem1", "fig6a_features", "fig6b_features")
ORDER += ("tune_mt", "who_wins_mnist", "who_wins_cifar", "label_view", "fig3a", "fig3b", "fig6a", "fig6b")
GPU_ONLY = ("fig6a", "fig6b")  # CNN13: not at laptop scale, where its 100 runs would take as long as all the others
CORES = 2  # of the machine that the budget is for
START = 2.0  # seconds of a job of a sweep before its first round
KIND = ("data.name", "algorithm", "client.steps", "partition.unlabeled")  # jobs of a kind take as long a round
ALL = 59400  # unlabelled samples of MNIST where partition.unlabeled is null
Kind = tuple[tuple[str, ...], int]
Paces = dict[Kind, float]


def sweeps(scale: str) -> tuple[str, ...]:
    return tuple(name for name in ORDER if scale == "paper" or name not in GPU_ONLY)


def known_runs(logs: Path, results: Path) -> list[Run]:
    return add_archived(collect(logs), results).runs


def jobs(name: str, scale: str) -> dict[str, dict[str, Any]]:
    """Every job of a sweep by what it is: its whole configuration and the seed."""
    plan, found = grid(name), {}
    for cell in plan.cells():
        where = wanted(plan, cell)
        whole = full(where, scale)
        for seed in plan.seeds:
            found[json.dumps([whole, seed], sort_keys=True)] = whole
    return found


def full(where: Where, scale: str) -> Where:
    """A cell's whole configuration."""
    names = {k: str(where.get(k, default)) for k, default in (("experiment", "digits"), ("algorithm", "fed_shvr"))}
    return composed(**names, scale=scale) | names | where


def left(name: str, runs: list[Run], scale: str) -> list[Missing]:
    return [m for m in find(name, runs, scale).missing if m.setting == "text"]


# ---- what it takes ---------------------------------------------------------------------------------------------------


def paces(runs: list[Run], scale: str) -> Paces:
    """Core seconds of a round of each kind of job: the median over its runs with setting=text, as the jobs have."""
    found: dict[Kind, list[float]] = {}
    for run in runs:
        if run.choices["scale"] == scale and run.setting == "text":
            core_seconds = run.summary["seconds"] * run.summary.get("processes", 1)
            found.setdefault(kind(run.config | run.choices), []).append(core_seconds / run.summary["rounds"])
    return {key: median(times) for key, times in found.items()}


def kind(whole: Where) -> Kind:
    *method, unlabeled = (whole.get(key) for key in KIND)
    return tuple(map(str, method)), unlabeled or ALL


def seconds(whole: Where, known: Paces) -> float | None:
    """Core seconds of a job at the pace of its kind; or at that with the nearest number of samples, in proportion."""
    method, unlabeled = kind(whole)
    alike = {samples: pace for (same, samples), pace in known.items() if same == method}
    if not alike:
        return None
    nearest = min(alike, key=lambda samples: abs(samples - unlabeled))
    return START + whole["rounds"] * alike[nearest] * unlabeled / nearest


def budget(scale: str, runs: list[Run]) -> Table:
    """Jobs and hours of each sweep; a job that several sweeps ask for counts for the first."""
    known, seen, rows, whole_hours = paces(runs, scale), set[str](), [], 0.0
    for name in sweeps(scale):
        new = {key: whole for key, whole in jobs(name, scale).items() if key not in seen}
        seen |= set(new)
        times = [seconds(whole, known) for whole in new.values()]
        hours = sum(t or 0 for t in times) / CORES / 3600
        whole_hours += hours
        missing = sum(m.jobs for m in left(name, runs, scale))
        rows.append([name, str(len(new)), str(missing), "?" if None in times else f"{hours:.2f}"])
    unknown = any(row[-1] == "?" for row in rows)
    rows.append(["all", str(len(seen)), "", f"more than {whole_hours:.2f}" if unknown else f"{whole_hours:.2f}"])
    return Table(["sweep", "jobs of its own", "jobs without a run", f"hours on {CORES} cores"], rows)


# ---- running it ------------------------------------------------------------------------------------------------------


def reproduce(scale: str, logs: Path, results: Path, train: list[str]) -> int:
    """Run what is missing, sweep after sweep; returns how many commands failed. Started again, it goes on."""
    runs = known_runs(logs, results)
    print(*markdown_table(budget(scale, runs)), sep="\n", flush=True)
    known, started, failed = paces(runs, scale), time.time(), 0
    first = remaining(scale, runs, known)
    for name in sweeps(scale):
        for step in left(name, known_runs(logs, results), scale):
            now = remaining(scale, known_runs(logs, results), known)
            print(f"{progress(first, now, time.time() - started)}: {step.command}", flush=True)
            _, script, *options = shlex.split(step.command)
            failed += called([sys.executable, script, *options, *train]) != 0
    return failed


def called(command: list[str]) -> int:
    """The exit code of a command; a stop of this process is passed on, and the command may end as it does."""
    process = subprocess.Popen(command)
    try:
        return process.wait()
    except Stopped:
        process.terminate()  # also after Ctrl-C, which it may have had from the terminal: SIGTERM does not count twice
        process.wait()
        raise
    finally:
        process.kill()


def progress(first: list[float | None], now: list[float | None], spent: float) -> str:
    """Jobs and time left, at the pace so far; jobs that nobody timed count as the mean of the others."""
    done = total(first) - total(now)
    pace = spent / done if done > 0 else 1 / CORES
    time_left = duration(total(now) * pace) if total(now) else "?"
    return f"{len(now)} jobs left, {duration(spent)} spent, about {time_left} to go"


def total(times: list[float | None]) -> float:
    timed = [t for t in times if t is not None]
    return sum(timed) / len(timed) * len(times) if timed else 0.0


def remaining(scale: str, runs: list[Run], known: Paces) -> list[float | None]:
    """Core seconds of each job that has no run yet."""
    times: dict[str, float | None] = {}
    for name in sweeps(scale):
        plan, found = grid(name), find(name, runs, scale)
        done = {(str(g.cell), seed) for g in found.groups if not g.variant for seed in g.runs}
        for cell in plan.cells():
            whole = full(wanted(plan, cell), scale)
            for seed in [seed for seed in plan.seeds if (str(cell), seed) not in done]:
                times[json.dumps([whole, seed], sort_keys=True)] = seconds(whole, known)
    return list(times.values())
