"""The wheel, installed outside the tree: it trains, reports and evaluates from any directory."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import ROOT, SMALL, environment

pytestmark = pytest.mark.slow
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
LEFT_OUT = (".git", ".venv", "logs", "data", "build", "site")  # of the tree: not sources, or large


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built offline from a copy of the tree."""
    folder = tmp_path_factory.mktemp("build")
    ignored = lambda path, names: LEFT_OUT if Path(path) == ROOT else [n for n in names if n == "__pycache__"]  # noqa: E731
    shutil.copytree(ROOT, folder / "tree", ignore=ignored)
    command = [*PIP, "wheel", ".", "--no-deps", "--no-build-isolation", "--no-index", f"--wheel-dir={folder}"]
    subprocess.run(command, cwd=folder / "tree", check=True, capture_output=True, text=True)
    (made,) = folder.glob("fedshvr-*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    target = wheel.parent / "installed"
    command = [*PIP, "install", "--no-deps", "--no-index", f"--target={target}", str(wheel)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return target


def test_the_wheel_holds_what_the_package_needs(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    configs = {f"fedshvr/configs/{path.relative_to(ROOT / 'configs')}" for path in (ROOT / "configs").rglob("*.yaml")}
    results = {f"fedshvr/results/{path.relative_to(ROOT / 'results')}" for path in (ROOT / "results").rglob("*.csv")}
    modules = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "fedshvr").rglob("*.py")}
    files = {"fedshvr/py.typed", "fedshvr/reporting/page.css", "fedshvr/reporting/page.js"}
    assert configs | results | modules | files == {
        name for name in names if not name.split("/")[0].endswith(".dist-info")
    }


def test_the_commands_work_from_another_directory(installed: Path, tmp_path: Path) -> None:
    env = environment() | {"PYTHONPATH": str(installed)}

    def call(name: str, *options: str) -> str:
        command = [sys.executable, str(installed / "bin" / name), *options]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    help_text = call("fedshvr-train", "--help")
    assert "fed_shvr" in help_text
    assert "train is powered by Hydra" in help_text
    call("fedshvr-train", "logger=csv", "rounds=2", "hydra.run.dir=logs/a", *SMALL)
    sweep = call(
        "fedshvr-train", "-m", "algorithm=fedavg,fed_mt", "logger=csv", "rounds=1", "hydra.sweep.dir=logs/s", *SMALL
    )
    assert "2 jobs finished, 0 did not" in sweep
    accuracy = json.loads((tmp_path / "logs" / "a" / "summary.json").read_text())["test_acc"]
    assert f"accuracy {100 * accuracy:.2f} %" in call("fedshvr-evaluate", "run=logs/a")
    said = call("fedshvr-report", "wandb=false")
    assert "3 finished runs of your own, " in said
    assert "0 committed ones" not in said
    assert (tmp_path / "reports" / "index.html").is_file()
    refused = subprocess.run(
        [sys.executable, str(installed / "bin" / "fedshvr-report"), "docs=true"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
    )
    assert refused.stderr == "error: docs=true: writes the pages of a clone of the repository, and this is none\n"


def test_the_library_is_typed_for_those_who_use_it(installed: Path, tmp_path: Path) -> None:
    lines = ["import fedshvr", "reveal_type(fedshvr.load('run'))", "fedshvr.run(1, 2)", ""]
    (tmp_path / "user.py").write_text("\n".join(lines))
    env = {**os.environ, "MYPYPATH": "", "PYTHONPATH": str(installed)}
    command = [sys.executable, "-m", "mypy", "--ignore-missing-imports", "--follow-imports=silent", "user.py"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert 'Revealed type is "fedshvr.running.loading.Model"' in done.stdout, done.stdout + done.stderr
    assert 'Argument 1 to "run" has incompatible type "int"' in done.stdout
