"""The one kind of error that is the user's to mend: a sentence that names the option, the value and what is valid."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from signal import Signals
from typing import Any

WHOLE = "what was written before is whole, and ckpt_path=last goes on from the last checkpoint"


class UserError(ValueError):
    """Bad input; the command line prints it without a traceback and exits with 2."""


def check(condition: bool, sentence: str) -> None:
    if not condition:
        raise UserError(sentence)


def no_option(owner: str, name: str, value: Any, valid: Iterable[str]) -> UserError:
    """The sentence for an option that its owner ("client", or "" for the root) does not have."""
    names = sorted(name for name in valid if not name.startswith("_"))
    prefix = f"{owner}." if owner else ""
    near = get_close_matches(name, names, 1)
    hint = f"; did you mean {prefix}{near[0]}?" if near else ""
    there = ", ".join(names) or "none"
    return UserError(f"{prefix}{name}={value}: is no option of {owner or 'a run'}, which has {there}{hint}")


class Ended(RuntimeError):
    """A run that cannot go on, for a reason that one sentence says; the command line exits with 1."""


class Diverged(Ended):
    """A loss is not finite any more."""


class Stopped(BaseException):
    """A run that was asked to end, by a signal; no Exception, so that nothing takes it for a failure and goes on."""

    def __init__(self, signum: int, at_once: bool = False) -> None:
        super().__init__(signum, at_once)
        self.signum, self.at_once = signum, at_once

    def __str__(self) -> str:
        return f"stopped by {Signals(self.signum).name}"


class Unwritable(Ended):
    """A file of the run cannot be written: no space left, a quota, a read-only file system."""


@contextmanager
def writing(path: object) -> Iterator[None]:
    """What goes wrong with a file inside ends the run with its path and the system's reason."""
    try:
        yield
    except OSError as error:
        raise Unwritable(f"{path}: cannot be written ({error.strerror or error}); {WHOLE}") from error


@contextmanager
def placed(place: Callable[[], str]) -> Iterator[None]:
    """What is raised inside says where, below its traceback."""
    try:
        yield
    except Exception as error:
        error.add_note(place())
        raise


def with_place(error: BaseException) -> str:
    return "; ".join([str(error), *getattr(error, "__notes__", [])])
