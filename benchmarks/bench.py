"""Speed as a ratio to the bare PyTorch loop: python benchmarks/bench.py [--only mlp,tiny] [--repeats 5] [--quick]."""

import argparse
import json
import sys
from pathlib import Path

import source
import torch
from cases import CASES
from goals import print_table
from lightning import __version__ as lightning_version
from machine import machine, watched
from page import write_page

from fedshvr.compute.cpu import keep_freed_memory

RESULTS = source.ROOT / "benchmarks" / "results.json"


def load(path: Path) -> dict:
    return json.loads(path.read_text()) if path.exists() else {"rows": {}}


def save(path: Path, results: dict) -> None:
    path.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="some of " + ",".join(CASES))
    parser.add_argument("--repeats", type=int, default=5, help="rounds of each contestant")
    parser.add_argument("--quick", action="store_true", help="sizes that take seconds; no number means anything")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the results; docs/performance.md only if default")
    options = parser.parse_args()
    chosen = options.only.split(",") if options.only else list(CASES)
    if unknown := set(chosen) - set(CASES):
        sys.exit(f"error: --only {','.join(sorted(unknown))}: must be some of {', '.join(CASES)}")
    torch.set_num_threads(1)
    keep_freed_memory()  # as src/train.py does
    results = load(options.out)
    if not options.only:
        results["rows"] = {}  # nothing of an earlier run is left in a whole one
    results["machine"] = machine()
    results["versions"] = {"torch": torch.__version__, "lightning": lightning_version}
    for name in chosen:
        print(f"{name} ...", file=sys.stderr, flush=True)
        with watched() as shares:
            rows = CASES[name](options.repeats, options.quick)
        results["rows"] |= rows
        results.setdefault("shares", {}).update(dict.fromkeys(rows, shares))
        save(options.out, results)
    results = load(options.out)  # as anyone else reads it
    print_table(results)
    if options.out == RESULTS and not options.quick:
        write_page(results)


if __name__ == "__main__":
    main()
