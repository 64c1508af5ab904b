"""Every command of the README and of the docs works as it is written, shortened to one round."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pictures
import pytest
from conftest import ROOT, environment, run_here

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHORT = ["rounds=1", "logger=csv"]
REAL_DATA = ("mnist", "cifar")


def commands() -> list[str]:
    blocks = [block for page in PAGES for block in re.findall(r"```bash\n(.*?)```", page.read_text(), re.DOTALL)]
    lines = [line.split(" #")[0].strip() for block in blocks for line in block.splitlines()]
    return sorted({line for line in lines if line.startswith("python src/")})


def make_targets() -> set[str]:
    return {target for page in PAGES for target in re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text(), re.MULTILINE)}


def cost(line: str) -> list[pytest.MarkDecorator]:
    if any(name in line for name in REAL_DATA):
        return [pytest.mark.network, pytest.mark.slow]
    return [pytest.mark.slow] if "optuna" in line else []


@pytest.mark.parametrize("line", [pytest.param(line, marks=cost(line)) for line in commands()])
def test_the_command_runs(line: str, tmp_path: Path) -> None:
    if "pictures" in line:
        pictures.write_parts(tmp_path / "pictures", train=20, test=4)
    _, script, *arguments = shlex.split(line)
    short = [] if "--help" in arguments or "report" in script else SHORT
    if any(name in line for name in REAL_DATA):
        short = [*SHORT, f"paths.data={ROOT / 'data'}", *([] if "dry_run" in line else ["scale=smoke"])]
    if "evaluate" in script:
        short, folder = [], next(a.removeprefix("run=") for a in arguments if a.startswith("run="))
        run_here(tmp_path / folder)
    full = [sys.executable, str(ROOT / script), *arguments, *short]
    done = subprocess.run(full, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_make_target_named_exists() -> None:
    help_text = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    listed = {line.split()[0] for line in help_text.splitlines()}
    assert make_targets() <= listed
    assert {"setup", "demo", "train", "test", "test-all", "lint", "report", "bench", "clean"} <= listed
