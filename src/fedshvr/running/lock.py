"""One run, one folder: a lock that ends with the process that holds it."""

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedshvr.errors import UserError


class Locked(UserError):
    """Another process is at work in the folder: nothing of it may be touched."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold folder/.lock, which names the holder; the kernel lets go of it when the holder ends in whatever way."""
    there = folder.is_dir()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ".lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 1000, 0).decode(errors="replace").strip() or "another process"
            raise Locked(f"{folder}: {holder} is at work in it; hydra.run.dir=... takes another folder") from None
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        yield
    finally:
        if list(folder.iterdir()) == [path]:  # a run that was refused leaves nothing
            path.unlink()
            if not there:
                folder.rmdir()
        os.close(descriptor)
