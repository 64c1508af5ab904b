"""What a user waits for before the first step, and the memory of many large clients."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fedavg import Rows
from source import ROOT
from timing import against, interleaved, spread

TRAIN = str(ROOT / "src/train.py")
DEFAULT = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}


def memory(repeats: int, small: bool) -> Rows:
    """Peak resident memory in GB with the 4 M parameter MLP: FedAvg, and control variates on disk."""
    rows: Rows = {}
    few, many, hidden = (2, 8, 50) if small else (10, 1_000, 5_000)
    cases = {"few": (few, "fedavg"), "fedavg": (many, "fedavg"), "disk": (many, "control_variates")}
    for name, (clients, method) in cases.items():
        command = [sys.executable, str(ROOT / "benchmarks/peak.py"), str(clients), str(hidden), method]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        rows[name] = json.loads(done.stdout.strip().splitlines()[-1])
    disk = rows["disk"]
    return {
        "memory": {
            "ours": disk["peak_gb"],
            "clients": many,
            "fedavg_gb": rows["fedavg"]["peak_gb"],
            "fedavg_few_gb": rows["few"]["peak_gb"],
            "seconds_a_round": disk["seconds"],
        }
    }


def start_up(repeats: int, small: bool) -> Rows:
    """From the command to the first local step against the imports nobody can avoid, and --help: fresh processes."""
    imports = ["-c", "import sys; sys.path.insert(0, 'src'); import fedshvr, torch, lightning"]  # it mends torchvision
    commands = {"ours": first_step, "imports": lambda: lasts(imports), "help": lambda: lasts([TRAIN, "--help"])}
    seconds = interleaved(commands, 2 if small else repeats, warmup=0 if small else 1)
    return {"first_step": against(seconds, "ours", "imports"), "help": spread(seconds["help"])}


def first_step() -> float:
    """From the launch to the first row of metrics.csv, less the time of that round as the row has it."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, TRAIN, "logger=csv", "rounds=1", f"hydra.run.dir={folder}"]
        started, metrics = time.perf_counter(), Path(folder) / "metrics.csv"
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(command, env=DEFAULT, cwd=ROOT, **quiet)
        while process.poll() is None and not metrics.exists():
            time.sleep(0.01)
        found = time.perf_counter() - started
        if process.wait():
            raise RuntimeError(f"{' '.join(command)}: failed")
        header, row, *_ = metrics.read_text().splitlines()
        return found - float(row.split(",")[header.split(",").index("seconds")])


def lasts(arguments: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, *arguments], env=DEFAULT, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started
