"""The end of a sweep: which jobs finished, which did not and why. No heavy imports: Hydra loads it at every start."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from fedshvr.running.lock import LOCK, holder

SUMMARY = "summary.json"
Stamp = tuple[tuple[int, int] | None, ...]


class SweepEnd(Callback):
    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        self.before = {job: stamp(job) for job in jobs(Path(config.hydra.sweep.dir).absolute())}
        self.without_score: set[Path] = set()

    def on_job_end(self, config: DictConfig, job_return: Any, **kwargs: Any) -> None:
        """Also what could not even leave a trace; launchers with processes of their own do not come here."""
        if job_return.return_value is None and not config.dry_run:
            self.without_score.add(Path(config.hydra.runtime.output_dir))

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        folder = Path(config.hydra.sweep.dir).absolute()
        ends = {job: end(job) for job in {*jobs(folder), *self.without_score}}
        done = [job for job, reason in ends.items() if reason is None]
        now = [job for job in ends if job in self.without_score or stamp(job) != self.before.get(job) or holder(job)]
        failed = {job.relative_to(folder): ends[job] for job in sorted(now) if job not in done}
        print(f"{config.hydra.sweep.dir}: {len(done)} jobs finished, {len(failed)} did not")
        for name, reason in failed.items():
            print(f"  {name}: {reason}")
        if failed:
            print("The same command again continues them.")
            sys.exit(1)


def jobs(folder: Path) -> Iterator[Path]:
    """The jobs' folders; an option with a slash in its value lies deeper."""
    for path, folders, files in os.walk(folder):
        folders.sort()
        if SUMMARY in files or LOCK in files:
            folders.clear()
            yield Path(path)


def stamp(job: Path) -> Stamp:
    """What changes when a job is begun or ends, whatever the clock says."""
    return tuple(_of_file(job / name) for name in (LOCK, SUMMARY))


def _of_file(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def end(job: Path) -> str | None:
    """Why a job has not finished, None if it has."""
    if at_work := holder(job):
        return f"{at_work} is at work in it"
    path = job / SUMMARY
    if not path.is_file():
        return f"has no {SUMMARY}: it was killed, or there was no space left"
    summary = json.loads(path.read_text())
    return None if summary["status"] == "finished" else summary.get("error", summary["status"])
