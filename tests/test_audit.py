"""What `make audit` holds without a network."""

import re
import subprocess
import sys

from conftest import ROOT


def test_bandit_finds_nothing() -> None:
    command = [sys.executable, "-m", "bandit", "-q", "-c", "pyproject.toml", "-r", "src"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_file_with_hashes_pins_what_the_lock_does() -> None:
    lines = [line for line in (ROOT / "requirements.hashes").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+ --hash=sha256:[0-9a-f]{64}", line) for line in lines)
    assert [line.split()[0] for line in lines] == (ROOT / "requirements.lock").read_text().split()
