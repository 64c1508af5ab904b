"""Files of the data cache: written whole, by one process at a time, with sums that tell a damaged one."""

import fcntl
import hashlib
import os
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedshvr.errors import UserError


class CacheError(Exception):
    """The cache file is missing, damaged or outdated; the text names it."""


def sums(arrays: Iterable[np.ndarray]) -> tuple[str, ...]:
    return tuple(hashlib.sha256(np.ascontiguousarray(array).data).hexdigest() for array in arrays)


def read(path: Path, fields: Iterable[str], known: tuple[str, ...] = (), provenance: str = "") -> dict[str, Any]:
    """These arrays of a file, if they have the known SHA-256 sums (else those noted in it) and come from there."""
    if not path.exists():
        raise CacheError(f"{path} is missing")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {field: file[field] for field in fields}
            digest = known or tuple(file["digest"].tolist())
            origin = str(file["provenance"]) if provenance else ""
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as problem:
        raise CacheError(f"{path} is damaged ({problem})") from None
    if origin != provenance:
        raise CacheError(f"{path} is outdated (made by another recipe or from other data)")
    if sums(arrays.values()) != digest:
        raise CacheError(f"{path} is damaged (its SHA-256 sums are not those of {path.stem})")
    return arrays


def write(path: Path, arrays: dict[str, Any], provenance: str = "") -> None:
    """Written beside its place and then moved there: a reader sees a whole file or none."""
    partial = path.with_suffix(".partial")
    try:
        with open(partial, "wb") as file:
            np.savez(file, digest=np.array(sums(arrays.values())), provenance=np.array(provenance), **arrays)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def locked(root: Path, name: str) -> Iterator[None]:
    """Only one process at a time is inside."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        with open(root / f".{name}.lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # let go with the file, also by a process that is killed
            yield
    except OSError as problem:
        raise UserError(f"data.root={root}: must be a folder that can be written ({problem})") from None
