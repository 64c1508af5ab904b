"""requirements.hashes from pip's report on requirements.lock: python docs/hashes.py <report>."""

import json
import re
import sys
from pathlib import Path

LOCK, HASHES = Path("requirements.lock"), Path("requirements.hashes")
HEAD = """\
# requirements.lock with SHA-256 sums, for Linux x86-64, CPython 3.11, CPU: make setup LOCK=requirements.hashes
# A file of its own, because one hash makes pip ask for one of every package: other platforms and CUDA builds of torch
# have other files, and need packages that the lock does not name. Written by make hashes.
"""


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def lines(report: dict) -> list[str]:
    """One a package of the lock, in its order."""
    found = {canonical(e["metadata"]["name"]): e["download_info"]["archive_info"]["hashes"] for e in report["install"]}
    pinned = [line for line in LOCK.read_text().splitlines() if "==" in line]
    return [f"{line} --hash=sha256:{found[canonical(line.split('==')[0])]['sha256']}" for line in pinned]


if __name__ == "__main__":
    HASHES.write_text(HEAD + "\n".join(lines(json.loads(Path(sys.argv[1]).read_text()))) + "\n")
