"""Contestants in processes of their own, rounds of each in turn, ratios of neighbours. Nothing but Python is needed."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median, quantiles
from typing import Any

HERE = Path(__file__).resolve().parent
Seconds = dict[str, list[float]]


class Contestant:
    """A script that makes a round for every line it is sent: its first line says what it is, the others the seconds.

    It has the threads it asks for, or if None what a user's shell gives it, whatever this process was started with.
    """

    def __init__(self, script: str, *arguments: str, threads: int | None = 1) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        if threads:
            environment["OMP_NUM_THREADS"] = str(threads)
        self.command = [sys.executable, str(HERE / script), *arguments]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(self.command, env=environment, **pipes)
        self.is_what: dict[str, Any] | None = None
        self.answers: list[dict[str, float]] = []  # one a round

    def _read(self) -> dict[str, Any]:
        while not (line := self.process.stdout.readline()).startswith("{"):
            if not line:
                raise RuntimeError(f"{' '.join(self.command)}: ended with {self.process.wait()}")
        return json.loads(line)

    def ready(self) -> dict[str, Any]:
        """What it is, once it waits for its first line."""
        if self.is_what is None:
            self.is_what = self._read()
        return self.is_what

    def begin(self) -> None:
        self.ready()
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> float:
        self.answers.append(self._read())
        return self.answers[-1]["seconds"]

    def round(self) -> float:
        self.begin()
        return self.end()

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


class Fleet:
    """Contestants that work at the same time; their round ends with the last of them."""

    def __init__(self, contestants: list[Contestant]) -> None:
        self.contestants = contestants

    def ready(self) -> None:
        for contestant in self.contestants:
            contestant.ready()

    def round(self) -> float:
        for contestant in self.contestants:
            contestant.begin()
        return max(contestant.end() for contestant in self.contestants)

    def close(self) -> None:
        for contestant in self.contestants:
            contestant.close()


def each_line(make_round: Callable[[], float]) -> None:
    """The contestant's side of it."""
    print(json.dumps({}), flush=True)
    for _ in sys.stdin:
        print(json.dumps({"seconds": make_round()}), flush=True)


def interleaved(rounds: dict[str, Callable[[], float]], repeats: int, warmup: int = 1) -> Seconds:
    """Seconds of each contestant: one round of each in turn, beginning with another one each time."""
    seconds: Seconds = {name: [] for name in rounds}
    names = list(rounds)
    for repeat in range(warmup + repeats):
        start = repeat % len(names)
        for name in names[start:] + names[:start]:
            spent = rounds[name]()
            if repeat >= warmup:
                seconds[name].append(spent)
    return seconds


def race(contestants: Mapping[str, Contestant | Fleet], repeats: int, warmup: int = 2) -> Seconds:
    """Nobody starts before all are ready, and all are closed in the end."""
    with ExitStack() as stack:
        for contestant in contestants.values():
            stack.enter_context(closing(contestant))
        for contestant in contestants.values():
            contestant.ready()
        return interleaved({name: c.round for name, c in contestants.items()}, repeats, warmup)


def spread(values: list[float]) -> dict[str, Any]:
    """The median as `ours`, and the quartiles."""
    low, _, high = quantiles(values, n=4, method="inclusive")
    return {"ours": median(values), "quartiles": [low, high], "repeats": len(values)}


def ratios(seconds: Seconds, name: str, to: str) -> list[float]:
    """One contestant's time over its neighbour's in each repeat: a slow minute of the machine slows both."""
    return [a / b for a, b in zip(seconds[name], seconds[to], strict=True)]


def against(seconds: Seconds, name: str, to: str) -> dict[str, Any]:
    """A row of the results."""
    return {**spread(ratios(seconds, name, to)), "seconds": {n: median(seconds[n]) for n in (name, to)}}
