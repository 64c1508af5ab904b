"""A command in a session of its own, so that all its processes can be counted and signalled."""

import os
import signal
import subprocess
import time
from pathlib import Path

from conftest import command, environment


def processes_of(session: int) -> list[int]:
    """The processes of a session that are alive."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, its_session = stat.read_text().rsplit(")", 1)[1].split()[:4]
        except OSError:  # it has just ended
            continue
        if int(its_session) == session and state != "Z":
            found.append(int(stat.parent.name))
    return found


def none_left(session: int, seconds: float = 60) -> bool:
    deadline = time.monotonic() + seconds
    while processes_of(session) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not processes_of(session)


def heed_ctrl_c() -> None:
    """A shell lets its background jobs ignore SIGINT, and these tests may be in one."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def begun(folder: Path, *arguments: str, **variables: str) -> subprocess.Popen:
    """A command that has just started, in this folder."""
    return subprocess.Popen(
        arguments,
        cwd=folder,
        env=environment() | variables,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=heed_ctrl_c,
    )


def rows(folder: Path, pattern: str = "a") -> int:
    """Rounds of the run in folder/pattern."""
    return sum(max(0, path.read_text().count("\n") - 1) for path in folder.glob(f"{pattern}/metrics.csv"))


def after_rounds(process: subprocess.Popen, folder: Path, pattern: str = "a", rounds: int = 2) -> None:
    """Wait until the run has made so many more rounds."""
    before, deadline = rows(folder, pattern), time.monotonic() + 300
    while rows(folder, pattern) < before + rounds:
        assert time.monotonic() < deadline
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        time.sleep(0.02)


def started(folder: Path, *options: str, rounds: int = 2, **variables: str) -> subprocess.Popen:
    """train.py with these options, after some rounds of its run in folder/a."""
    process = begun(folder, *command(*options, "hydra.run.dir=a"), **variables)
    after_rounds(process, folder, rounds=rounds)
    return process


def ended(process: subprocess.Popen, seconds: float = 300) -> tuple[int, str]:
    """The exit code and what it said, when it and all its processes have ended."""
    text = process.communicate(timeout=seconds)[1]
    assert none_left(process.pid)
    assert "Traceback" not in text, text
    return process.returncode, text


def as_printed(text: str) -> str:
    """The command that goes on, as a stopped run has printed it."""
    return text[text.index("to go on:\n  ") :].splitlines()[1].strip()


def type_in(line: str, folder: Path, **variables: str) -> subprocess.CompletedProcess:
    """What a user pastes into a shell."""
    env = environment() | variables
    return subprocess.run(line, shell=True, cwd=folder, env=env, capture_output=True, text=True, timeout=300)


def signal_all(process: subprocess.Popen, signum: int) -> None:
    os.killpg(process.pid, signum)
