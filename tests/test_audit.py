"""What `make audit` holds without a network."""

import re
import subprocess
import sys
from importlib.metadata import requires

from conftest import ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def test_bandit_finds_nothing() -> None:
    command = [sys.executable, "-m", "bandit", "-q", "-c", "pyproject.toml", "-r", "src"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_file_with_hashes_pins_what_the_lock_does() -> None:
    lines = [line for line in (ROOT / "requirements.hashes").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+ --hash=sha256:[0-9a-f]{64}", line) for line in lines)
    assert [line.split()[0] for line in lines] == (ROOT / "requirements.lock").read_text().split()


def test_the_lock_names_everything_that_its_packages_need() -> None:
    """Else pip takes the newest of what is missing, and refuses to with hashes. pip itself is there before."""
    names = {canonicalize_name(line.split("==")[0]) for line in (ROOT / "requirements.lock").read_text().split()}
    needed = [Requirement(text) for name in names for text in requires(name) or []]
    here = [need for need in needed if need.marker is None or need.marker.evaluate({"extra": ""})]
    assert {canonicalize_name(need.name) for need in here} - names <= {"pip"}
