"""Keys stay in the environment."""

import subprocess
from pathlib import Path

import pytest
from conftest import QUICK, SMALL, command, environment

MARK = "0123456789abcdef0123456789abcdef01234567"  # of the form of a W&B key


@pytest.mark.slow
def test_no_file_of_a_run_or_report_has_the_key(tmp_path: Path) -> None:
    env = environment() | {"WANDB_API_KEY": MARK, "HF_TOKEN": f"hf_{MARK}"}
    quick = [option for option in QUICK if not option.startswith("logger")]
    commands = [
        command(*quick, *SMALL, "rounds=1", "logger=wandb", "hydra.run.dir=logs/run"),
        command("wandb=false", script="src/report.py"),
    ]
    printed = ""
    for one in commands:
        done = subprocess.run(one, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        printed += done.stdout + done.stderr
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.suffix == ".wandb" for path in files)
    assert MARK not in printed
    assert [path for path in files if MARK.encode() in path.read_bytes()] == []
