"""What a round of the paper's CIFAR-10 costs, counted by the framework: results/cost.csv.

PYTHONPATH=src python -m fedshvr.reporting.cost
"""

import csv
from pathlib import Path

from hydra import compose, initialize_config_dir
from omegaconf import open_dict

from fedshvr.places import CONFIGS, TREE

ALGORITHMS = ("fed_shvr", "fed_mt", "fed_pseudo", "fedavg")  # of Fig. 6
FIELDS = ("experiment", "algorithm", "clients", "local_steps", "flop_a_round", "rounds")
GPU, RATE = "NVIDIA A100", 5e12  # FLOP/s in float32, a quarter of its peak of 19.5e12: an assumption, not a measurement


def write(path: Path, experiment: str = "cifar_mismatch1") -> None:
    """Forward and backward passes of the local steps; one row an algorithm."""
    with path.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(FIELDS)
        rows.writerows([experiment, name, *cost(experiment, name)] for name in ALGORITHMS)


def cost(experiment: str, algorithm: str) -> tuple[int, int, int, int]:
    from fedshvr.running.cores import work_of
    from fedshvr.running.run import build

    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        cfg = compose("train", overrides=[f"experiment={experiment}", f"algorithm={algorithm}", "scale=paper"])
    with open_dict(cfg):
        cfg.paths.run = ""
    _, module = build(cfg)
    work = work_of(module, cfg.rounds)
    return work.clients, sum(module.plan.tau), round(work.operations), work.rounds


def table(path: Path) -> tuple[list[str], list[list[str]]]:
    """For the page: a row an algorithm, with the hours of one run at the assumed rate."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    header = ["algorithm", "local steps a round", "TFLOP a round", "rounds", f"hours of one run on an {GPU}"]
    return header, [
        [
            row["algorithm"],
            f"{int(row['local_steps']):,}",
            f"{int(row['flop_a_round']) / 1e12:.1f}",
            row["rounds"],
            f"{int(row['flop_a_round']) * int(row['rounds']) / RATE / 3600:.1f}",
        ]
        for row in rows
    ]


if __name__ == "__main__":
    write(TREE / "results" / "cost.csv")
