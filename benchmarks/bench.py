"""Speed as a ratio to the bare PyTorch loop: python benchmarks/bench.py [--only mlp,tiny] [--repeats 7] [--quick]."""

import argparse
import json
import os
import platform
import sys
from pathlib import Path

import source
import torch
from cases import CASES
from goals import print_table
from lightning import __version__ as lightning_version
from loops import one_thread
from page import write_page

from fedshvr.compute.cpu import keep_freed_memory

RESULTS = source.ROOT / "benchmarks" / "results.json"


def machine() -> dict[str, str | int]:
    """What the numbers were measured on; nothing that names the machine."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    return {
        "cpu": model,
        "cores": os.cpu_count() or 0,
        "system": platform.system(),
        "python": platform.python_version(),
    }


def load(path: Path) -> dict:
    return json.loads(path.read_text()) if path.exists() else {"rows": {}}


def save(path: Path, results: dict) -> None:
    path.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(CASES), help="some of " + ",".join(CASES))
    parser.add_argument("--repeats", type=int, default=7, help="rounds of each contestant")
    parser.add_argument("--quick", action="store_true", help="sizes that take seconds; no number means anything")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the results; docs/performance.md only if default")
    options = parser.parse_args()
    unknown = set(options.only.split(",")) - set(CASES)
    if unknown:
        sys.exit(f"error: --only {','.join(sorted(unknown))}: must be some of {', '.join(CASES)}")
    one_thread()
    keep_freed_memory()  # as src/train.py does
    results = load(options.out)
    results["machine"] = machine()
    results["versions"] = {"torch": torch.__version__, "lightning": lightning_version}
    for name in options.only.split(","):
        print(f"{name} ...", file=sys.stderr, flush=True)
        results["rows"] |= CASES[name](options.repeats, options.quick)
        save(options.out, results)
    print_table(results)
    if options.out == RESULTS and not options.quick:
        write_page(results)


if __name__ == "__main__":
    main()
