"""A stop on request: Ctrl-C or SIGTERM is noted, and the run ends where it may; a second Ctrl-C ends it at once.

No heavy imports: a command heeds signals from its first moment.
"""

import mmap
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fedshvr.errors import Ended, Stopped, UserError

REQUEUE = signal.SIGUSR1  # SLURM's, as in --signal=USR1@60
UNHANDLED = (signal.SIG_DFL, signal.default_int_handler)

# Shared by forked processes: a signal to one of them is one to all: what asked to stop, and whether the run is off
_asked = mmap.mmap(-1, 2)
_state = {"heeding": False, "patient": False, "heard": False}  # of this process


def signals() -> tuple[signal.Signals, ...]:
    return (signal.SIGINT, signal.SIGTERM, *((REQUEUE,) if slurm_job() else ()))


def slurm_job() -> str | None:
    """The SLURM job of this process, as scontrol names it; an interactive one has nobody to start it again."""
    if os.environ.get("SLURM_JOB_NAME") in ("bash", "interactive"):
        return None
    array, task = (os.environ.get(f"SLURM_ARRAY_{name}_ID") for name in ("JOB", "TASK"))
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID")


def ask(signum: int) -> None:
    """Of all processes of this run; the first who asks counts."""
    _asked[0] = _asked[0] or signum


def asked() -> int:
    """The signal that asked to stop, 0 if none did."""
    return _asked[0]


def call_off(off: bool) -> None:
    """What is still at work has no use any more, because one of the processes has failed."""
    _asked[1] = off


def look(ready: bool) -> None:
    """Stop here if that was asked for and all that was done is saved, or if it is called off."""
    if _asked[1] or (_asked[0] and ready):
        raise Stopped(_asked[0] or signal.SIGTERM)


def of_a_stop(error: BaseException) -> BaseException:
    """What a process that waited for another sees when that one has stopped is no error of its own."""
    return Stopped(asked()) if asked() and isinstance(error, Exception) and not said(error) else error


def said(error: BaseException) -> bool:
    return isinstance(error, (UserError, Ended))


def at_once(error: BaseException) -> bool:
    """Whether this came in the middle of whatever was being done: theta may be anything."""
    return isinstance(error, Stopped) and error.at_once


@contextmanager
def heeded() -> Iterator[None]:
    """Signals raise Stopped, or are noted while this process is patient; those that others handle are left to them."""
    if _state["heeding"]:
        yield
        return
    _asked[:] = b"\0\0"
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {s: signal.signal(s, _hear) for s in signals() if signal.getsignal(s) in UNHANDLED}
    _state.update(heeding=True, heard=False)
    try:
        yield
    finally:
        _state["heeding"] = False
        for signum, handler in before.items():
            signal.signal(signum, handler)


@contextmanager
def patient() -> Iterator[None]:
    """Within, who is at work looks by itself whether it shall stop."""
    _state["patient"] = True
    try:
        yield
    finally:
        _state["patient"] = False


def _hear(signum: int, frame: Any) -> None:
    again = _state["heard"] and signum == signal.SIGINT
    _state["heard"] = True
    ask(signum)
    if again or not _state["patient"]:
        raise Stopped(signum, at_once=True)
    note = f"\n{signal.Signals(signum).name}: stopping as soon as no whole round is lost; Ctrl-C stops at once\n"
    os.write(2, note.encode())  # print may be at work, and cannot be entered twice


def hear_for_all() -> None:
    """In a forked process: a signal is a word to all of them. The one they were forked from counts Ctrl-C."""
    for signum in signals():
        if signal.getsignal(signum) in (*UNHANDLED, _hear):
            signal.signal(signum, lambda signum, frame: ask(signum))


def be_deaf() -> None:
    """By a handler that does nothing: of a signal that has come already, Python complains if it is SIG_IGN."""
    for signum in signals():
        signal.signal(signum, lambda signum, frame: None)
