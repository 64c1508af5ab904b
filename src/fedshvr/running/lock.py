"""One run, one folder: a lock that ends with the process that holds it."""

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedshvr.errors import UserError

LOCK = ".lock"


class Locked(UserError):
    """Another process is at work in the folder: nothing of it may be touched."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold folder/.lock, which names the holder; the kernel lets go of it when the holder ends in whatever way."""
    there, path = folder.is_dir(), folder / LOCK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise UserError(f"hydra.run.dir={folder}: must be a folder that can be written ({error.strerror})") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = named(descriptor)
            raise Locked(f"{folder}: {holder} is at work in it; hydra.run.dir=... takes another folder") from None
        with suppress(OSError):  # on a full disk the lock holds, and the next writer says what is wrong
            os.truncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        yield
    except UserError:
        if list(folder.iterdir()) == [path]:  # a run that was refused leaves nothing
            path.unlink()
            if not there:
                folder.rmdir()
        raise
    finally:
        os.close(descriptor)


def named(descriptor: int) -> str:
    return os.pread(descriptor, 1000, 0).decode(errors="replace").strip() or "another process"


def holder(folder: Path) -> str | None:
    """Who is at work in the folder now."""
    try:
        descriptor = os.open(folder / LOCK, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        return named(descriptor)
    finally:
        os.close(descriptor)
