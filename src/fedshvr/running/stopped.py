"""The end of a command that was stopped: how to go on, and SLURM, which goes on by itself. No heavy imports."""

import hashlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from hydra.core.override_parser.types import Quote, QuotedString

from fedshvr.compute.stopping import REQUEUE, be_deaf, slurm_job
from fedshvr.errors import Stopped

OWN = re.compile(r"\+*(hydra\.run\.dir|ckpt_path)=")  # what the command that goes on says anew
PLAIN = re.compile(r"[\w./:@%~-]+")  # needs no quotes in Hydra's grammar
PROGRAM = sys.orig_argv[: len(sys.orig_argv) - len(sys.argv[1:])]  # now, before anything is added to sys.argv
JOBS = Path("logs", "slurm")  # which folders the runs of a job have, should it be started again


def end(stopped: Stopped, said: str, command: str | None) -> NoReturn:
    """Say how to go on, have SLURM start the job again if it was its signal, and exit as signals end a process."""
    be_deaf()
    if command is not None:
        print(f"{said}; to go on:\n  {command}", file=sys.stderr, flush=True)
        if stopped.signum == REQUEUE:
            requeue()
    sys.exit(128 + stopped.signum)


def this_command(*instead: str) -> str:
    """What the user has typed, for a shell; with these options instead of the same ones of theirs, if any are given."""
    return shlex.join([*PROGRAM, *(replaced(sys.argv[1:], instead) if instead else sys.argv[1:])])


def replaced(arguments: list[str], instead: Sequence[str]) -> list[str]:
    """The arguments with these options, beside the others: Hydra's parser wants all options in one place."""
    kept = [argument for argument in arguments if not OWN.match(argument)]
    last = max((i + 1 for i, a in enumerate(kept) if "=" in a and not a.startswith("-")), default=len(kept))
    return [*kept[:last], *instead, *kept[last:]]


def that_goes_on(folder: Path, ckpt_path: str | None) -> list[str]:
    """The options that continue a run; without a checkpoint of its own it begins as it did."""
    near = Path(os.path.relpath(folder))
    ckpt_path = "last" if any(folder.glob("checkpoints/*.ckpt")) else ckpt_path or "last"
    return [option("hydra.run.dir", str(folder if ".." in near.parts else near)), option("ckpt_path", ckpt_path)]


def option(name: str, value: str) -> str:
    """As Hydra's grammar wants it."""
    return f"{name}={value if PLAIN.fullmatch(value) else QuotedString(value, Quote.single).with_quotes()}"


# ---- SLURM -----------------------------------------------------------------------------------------------------------


def requeue() -> None:
    job = slurm_job()
    assert job is not None
    try:
        done = subprocess.run(["scontrol", "requeue", job]).returncode  # SLURM's, wherever it is  # nosec B607
    except OSError as error:
        print(f"error: scontrol requeue {job}: {error.strerror}; the job ends here", file=sys.stderr)
        return
    result = "done" if done == 0 else f"failed with {done}; the job ends here"
    print(f"scontrol requeue {job}: {result}", file=sys.stderr)


def note_folder(arguments: list[str], folder: Path) -> None:
    """A job that SLURM starts again has the same arguments, and by default another folder: the time is in its name."""
    if job := slurm_job():
        path = noted(job, arguments)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(folder))


def noted(job: str, arguments: list[str]) -> Path:
    """Where the folder of a command is written down: a job may have several."""
    return JOBS / job / hashlib.sha256(shlex.join(arguments).encode()).hexdigest()[:16]


def started_again(arguments: list[str]) -> list[str]:
    """The arguments that continue the run of this command in a SLURM job that was requeued, whoever did it."""
    job = slurm_job()
    if job is None or int(os.environ.get("SLURM_RESTART_COUNT", "0")) == 0 or not noted(job, arguments).is_file():
        return arguments
    folder = Path(noted(job, arguments).read_text())
    print(f"job {job} was started again: going on in {folder}", file=sys.stderr, flush=True)
    given = next((a.partition("=")[2] for a in reversed(arguments) if a.startswith("ckpt_path=")), None)
    return replaced(arguments, that_goes_on(folder, given))
