"""Other simulators on the same work, each in its own environment: python benchmarks/peers.py [--only pfl,flower].

Every one of them runs with rounds of the bare loop in between, so its ratio is comparable with those of bench.py.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from bench import RESULTS, load, save
from goals import NAMES, print_table
from loops import WORKLOADS
from machine import watched
from page import write_page
from source import ROOT

ENVIRONMENTS = ROOT / ".bench"
INSTALL = {"flower": ["flwr[simulation]"], "pfl": ["pfl"], "pfl2": ["pfl"], "trainer": []}
SCRIPT = {"flower": "peer_flower.py", "pfl": "peer_pfl.py", "pfl2": "peer_pfl.py", "trainer": "peer_trainer.py"}
TIMEOUT = 900  # seconds for one workload


def torch_pin() -> str:
    """The torch of requirements.lock, the same for everybody."""
    return next(line for line in (ROOT / "requirements.lock").read_text().splitlines() if line.startswith("torch=="))


def python_of(name: str) -> Path:
    """The interpreter of a peer's environment, built if it is not there."""
    if not INSTALL[name]:
        return Path(sys.executable)
    folder = ENVIRONMENTS / name.removesuffix("2")
    python = folder / "bin" / "python"
    if not (folder / ".ready").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", torch_pin(), *INSTALL[name]], check=True)
        (folder / ".ready").touch()
    return python


def measure(name: str, workload: str, repeats: int, small: bool) -> dict:
    python = python_of(name)
    launch = ["-m", "torch.distributed.run", "--nproc-per-node=2"] if name == "pfl2" else []
    command = [str(python), *launch, str(ROOT / "benchmarks" / SCRIPT[name]), workload, str(repeats), str(int(small))]
    quiet = {"OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(command, env={**os.environ, **quiet}, capture_output=True, text=True, timeout=TIMEOUT)
    answers = [line for line in done.stdout.splitlines() if line.startswith('{"ratio"')]
    if not answers:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no result")
    return json.loads(answers[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(NAMES.keys() - {"floor"}), help="some of flower,pfl,pfl2,trainer")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="sizes that take seconds; no number means anything")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    results = load(options.out)
    for name in options.only.split(","):
        found: dict = {}
        for workload in WORKLOADS:
            print(f"{name} {workload} ...", file=sys.stderr, flush=True)
            try:
                with watched() as shares:
                    found[workload] = measure(name, workload, options.repeats, options.quick)
                found[workload]["shares"] = shares
                found["version"] = found[workload]["version"]
            except (RuntimeError, subprocess.SubprocessError) as error:
                found["why"] = f"{workload}: {error}"
        results.setdefault("peers", {})[name] = found
        save(options.out, results)
    print_table(results)
    if options.out == RESULTS and not options.quick:
        write_page(results)


if __name__ == "__main__":
    main()
