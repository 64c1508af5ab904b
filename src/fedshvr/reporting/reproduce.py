"""Every sweep, the cheap and important first: what is left, what it takes, and running it. python src/reproduce.py"""

import csv
import json
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fedshvr.errors import Stopped, check
from fedshvr.reporting.archive import add_archived
from fedshvr.reporting.collect import Run, collect
from fedshvr.reporting.items import Table
from fedshvr.reporting.sweeps import Missing, Where, composed, find, grid, override, wanted
from fedshvr.reporting.tables import markdown_table
from fedshvr.running.folder import write_atomically
from fedshvr.running.progress import duration

ORDER: tuple[str, ...] = ("table1", "fig2b", "fig2a", "fig4", "fig5", "theorem1", "fig6a_features", "fig6b_features")
ORDER += ("finalists", "tune_mt", "who_wins_mnist", "who_wins_cifar", "label_view", "fig3a", "fig3b", "fig6a", "fig6b")
GPU_ONLY = ("fig6a", "fig6b")  # CNN13: not at laptop scale, where its 100 runs would take as long as all the others
CORES = 2  # of the machine that the budget is for
ROUNDS = (1, 3)  # of the two short runs that are timed
KIND = ("data.name", "algorithm", "client.steps")  # jobs of a kind take as long, but for rounds and unlabelled samples
Times = dict[tuple[str, ...], dict[str, float]]


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


def kind(whole: Where) -> tuple[str, ...]:
    return tuple(str(whole[key]) for key in KIND)


def measure(scale: str, results: Path, train: list[str]) -> None:
    """CPU seconds of each kind's start and round, from two short runs of one process; other load does not matter."""
    path, known = results / f"seconds_{scale}.csv", estimates(results, scale)
    kinds = {kind(whole): whole for name in reversed(sweeps(scale)) for whole in jobs(name, scale).values()}
    for key in sorted(set(kinds) - set(known), reverse=True):
        short, long = (cpu_seconds(kinds[key], scale, rounds, train) for rounds in ROUNDS)
        a_round = max(0.0, long - short) / (ROUNDS[1] - ROUNDS[0])
        unlabeled = float(kinds[key]["partition.unlabeled"] or 0)
        known[key] = {"unlabeled": unlabeled, "start": round(short - a_round, 2), "round": round(a_round, 3)}
        lines = [",".join([*k, *map(str, times.values())]) for k, times in sorted(known.items())]
        write_atomically(path, "\n".join([",".join((*KIND, "unlabeled", "start", "round")), *lines]) + "\n")
        print(*key, known[key], flush=True)


def cpu_seconds(whole: Where, scale: str, rounds: int, train: list[str]) -> float:
    names = [override(k, whole[k]) for k in ("experiment", "algorithm", "client.steps", "partition.unlabeled")]
    same = ["trainer.devices=1", "threads=1", "logger=csv"]
    with tempfile.TemporaryDirectory() as folder:
        options = [*names, f"scale={scale}", f"rounds={rounds}", *same, *train, f"hydra.run.dir={folder}"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "src/train.py", *options]
        check(called(command, subprocess.DEVNULL) == 0, f"{shlex.join(command)}: failed, it cannot be timed")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def estimates(results: Path, scale: str) -> Times:
    path = results / f"seconds_{scale}.csv"
    if not path.is_file():
        return {}
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {tuple(row[k] for k in KIND): {k: float(row[k]) for k in ("unlabeled", "start", "round")} for row in rows}


def seconds(whole: Where, known: Times) -> float | None:
    """CPU seconds of a job: its start and its rounds, which take as long as there are unlabelled samples."""
    times = known.get(kind(whole))
    if times is None:
        return None
    share = float(whole["partition.unlabeled"] or 0) / times["unlabeled"] if times["unlabeled"] else 1.0
    return times["start"] + whole["rounds"] * times["round"] * share


def budget(scale: str, runs: list[Run], results: Path) -> Table:
    """Jobs and hours of each sweep; a job that several sweeps ask for counts for the first."""
    known, seen, rows, whole_hours = estimates(results, scale), set[str](), [], 0.0
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
    print(*markdown_table(budget(scale, known_runs(logs, results), results)), sep="\n", flush=True)
    known, started, failed = estimates(results, scale), time.time(), 0
    first = remaining(scale, known_runs(logs, results), known)
    for name in sweeps(scale):
        for step in left(name, known_runs(logs, results), scale):
            now = remaining(scale, known_runs(logs, results), known)
            print(f"{progress(first, now, time.time() - started)}: {step.command}", flush=True)
            _, script, *options = shlex.split(step.command)
            failed += called([sys.executable, script, *options, *train]) != 0
    return failed


def called(command: list[str], output: int | None = None) -> int:
    """The exit code of a command; a stop of this process is passed on, and the command may end as it does."""
    process = subprocess.Popen(command, stdout=output)
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


def remaining(scale: str, runs: list[Run], known: Times) -> list[float | None]:
    """CPU seconds of each job that has no run yet."""
    times: dict[str, float | None] = {}
    for name in sweeps(scale):
        plan, found = grid(name), find(name, runs, scale)
        done = {(str(g.cell), seed) for g in found.groups if not g.variant for seed in g.runs}
        for cell in plan.cells():
            whole = full(wanted(plan, cell), scale)
            for seed in [seed for seed in plan.seeds if (str(cell), seed) not in done]:
                times[json.dumps([whole, seed], sort_keys=True)] = seconds(whole, known)
    return list(times.values())
