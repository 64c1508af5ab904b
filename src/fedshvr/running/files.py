"""Files that are whole or not there, and metrics.csv, whose last line alone may be torn."""

import csv
import os
from pathlib import Path

from fedshvr.errors import writing

Row = dict[str, str]


def write_atomically(path: Path, text: str) -> None:
    """The whole text, on disk, or the file as it was."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def append(path: Path, line: str) -> None:
    with writing(path), path.open("a") as file:
        file.write(line + "\n")


def read_rows(path: Path) -> list[Row]:
    """The rows of a CSV file without a torn last line."""
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        whole = [line for line in file if line.endswith("\n")]
    return [row for row in csv.DictReader(whole) if None not in row.values()]


def last_of(rows: list[Row], columns: tuple[str, ...]) -> dict[str, float]:
    """The values of these columns in the last row, if they are measured."""
    return {name: float(row[name]) for row in rows for name in columns if name in row}


def sums_of(rows: list[Row], columns: tuple[str, ...]) -> dict[str, int]:
    """The sums of these columns over all rounds; a run that was begun before they were counted has none."""
    return {name: sum(int(row[name]) for row in rows) for name in columns if rows and name in rows[0]}


def skipped_by_client(skips: list[int]) -> dict[str, dict[str, int]]:
    """The rounds that clients were left out of, if any was."""
    return {"skipped_by_client": {str(k): n for k, n in enumerate(skips) if n}} if any(skips) else {}
