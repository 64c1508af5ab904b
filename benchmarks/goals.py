"""The goals, what the best other simulator reaches, and how a result stands against them."""

from typing import Any, NamedTuple


class Goal(NamedTuple):
    what: str
    goal: float | None = None  # None: for information
    others: tuple[str, ...] = ()  # the simulators to compare with, as in NAMES
    unit: str = "x"
    larger: bool = False  # is more better?

    def shown(self, value: float) -> str:
        return f"{value:.2f}{self.unit}"

    def verdict(self, value: float) -> str:
        if self.goal is None or (value >= self.goal if self.larger else value <= self.goal):
            return ""
        return f" (missed by {abs(value / self.goal - 1):.0%})"


ALL = ("trainer", "pfl", "flower", "pfl2")

GOALS = {
    "mlp": Goal("mlp", 0.30, ALL),
    "tiny": Goal("tiny", 0.05, ALL),
    "wide": Goal("wide", 0.36, ALL),
    "laptop": Goal("Fed-SHVR, MNIST Non-IID at laptop scale, against a bare loop of it", 0.30),
    "paper": Goal("Fed-SHVR, MNIST at the paper's size: share of the product rate", 0.75, unit="", larger=True),
    "control_variates": Goal("wide, control variates against none", 1.15),
    "cnn13_steps": Goal("CNN13, local steps against forward and backward, one thread", 0.80),
    "scaling": Goal("10,000 clients against 10, as many steps", 1.10),
    "first_step": Goal("start to first local step, against import torch, lightning", 1.60),
}
FURTHER = {
    "mlp_one": Goal("mlp, one process", others=("trainer", "pfl")),
    "tiny_one": Goal("tiny, one process", others=("trainer", "pfl")),
    "wide_one": Goal("wide, one process", others=("trainer", "pfl")),
    "fed_shvr": Goal("mlp, Fed-SHVR against FedAvg on as many samples", 1.30),
    "fed_shvr_translate2": Goal("the same, both with translation", 1.30),
    "cnn13_steps_default": Goal("CNN13, local steps on all cores against forward and backward on one"),
    "cnn13": Goal("CNN13, whole round against its passes, one thread", 1.05),
    "memory": Goal("1,000 clients of 4 M parameters, state on disk", 2.0, unit=" GB"),
    "help": Goal("--help", 2.0, unit=" s"),
}
HEADER = ("workload", "ours", "quartiles", "floor", "goal", "best other", "others' CPU")

# Seconds a round over those of the bare loop as they were measured before this engine was written, on another
# two-core machine; benchmarks/peers.py measures them here.
REPORTED = {
    "trainer": {"mlp": 2.0, "tiny": 4.9, "wide": 0.84},
    "flower": {"mlp": 0.70, "tiny": 4.5, "wide": 0.73},
    "pfl": {"mlp": 0.98, "tiny": 1.1, "wide": 0.87},
    "pfl2": {"mlp": 0.55, "tiny": 0.69, "wide": 0.49},
    "floor": {"mlp": 0.39, "tiny": 0.15, "wide": 0.56},
}
NAMES = {
    "trainer": "new Trainer per client",
    "flower": "Flower simulation",
    "pfl": "pfl-research",
    "pfl2": "pfl-research, 2 processes",
    "floor": "hand-written floor",
}


def peer(results: dict[str, Any], name: str, workload: str) -> tuple[float, bool] | None:
    """A peer's ratio on a workload, and whether it was measured here."""
    measured = results.get("peers", {}).get(name, {}).get(workload)
    if isinstance(measured, dict):
        return measured["ratio"], True
    return (REPORTED[name][workload], False) if workload in REPORTED[name] else None


def best_other(results: dict[str, Any], names: tuple[str, ...], workload: str) -> str:
    """The least ratio of these simulators, and whose it is."""
    found = [(*ratio, NAMES[name]) for name in names if (ratio := peer(results, name, workload))]
    if not found:
        return ""
    value, measured, name = min(found)
    return f"{value:.2f}{'' if measured else ' (reported)'}, {name}"


def rows(results: dict[str, Any], goals: dict[str, Goal]) -> list[tuple[str, ...]]:
    """The columns of HEADER, for every goal that has been measured."""
    table = []
    for name, goal in goals.items():
        if name not in results["rows"]:
            continue
        row = results["rows"][name]
        quartiles = " to ".join(f"{q:.2f}" for q in row.get("quartiles", ()))
        floor = results["rows"].get(f"{name}_floor", {}).get("ours")
        table.append(
            (
                goal.what,
                goal.shown(row["ours"]) + goal.verdict(row["ours"]),
                quartiles,
                "" if floor is None else f"{floor:.2f}",
                "" if goal.goal is None else goal.shown(goal.goal),
                best_other(results, goal.others, name.removesuffix("_one")),
                disturbed(results, name),
            )
        )
    return table


def disturbed(results: dict[str, Any], name: str) -> str:
    """The share of the CPU time that others had while a row was measured, the host's theft included."""
    shares = results.get("shares", {}).get(name)
    return f"{shares['others'] + shares['stolen']:.0%}" if shares else ""


def print_table(results: dict[str, Any]) -> None:
    table = [HEADER, *rows(results, GOALS), *rows(results, FURTHER)]
    widths = [max(len(row[i]) for row in table) for i in range(len(HEADER))]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if "accuracy" in results["rows"]:
        a = results["rows"]["accuracy"]
        print(
            f"accuracy on {a['data']} after {a['rounds']} rounds: ours {a['ours']:.2%}, bare loop {a['bare']:.2%}, "
            f"bare loop with our draws {a['bare_our_draws']:.2%} (theta differs by {a['theta_difference']:.1e})"
        )
