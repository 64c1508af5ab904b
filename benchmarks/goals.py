"""The goals, what the best other simulator reaches, and how a result stands against them."""

from typing import Any, NamedTuple


class Goal(NamedTuple):
    what: str
    goal: float
    others: tuple[str, ...] = ()  # the simulators to compare with, as in NAMES
    unit: str = "x"


ONE, TWO = ("trainer", "pfl"), ("flower", "pfl2")  # with one process at work, and with two

GOALS = {
    "mlp": Goal("mlp, one process", 0.60, ONE),
    "mlp_ranks": Goal("mlp, two ranks", 0.33, TWO),
    "tiny": Goal("tiny, one process", 0.07, ONE + TWO),
    "wide": Goal("wide, one process", 0.60, ONE),
    "wide_ranks": Goal("wide, two ranks", 0.40, TWO),
    "control_variates": Goal("wide, control variates against none", 1.15),
    "fed_shvr": Goal("mlp, Fed-SHVR against FedAvg on as many samples", 1.3),
    "fed_shvr_translate2": Goal("the same, both with translation", 1.3),
    "cnn13_steps": Goal("cnn13, local steps against forward and backward", 1.05),
    "cnn13": Goal("cnn13, whole round against its passes", 1.05),
    "scaling": Goal("1,000 clients against 10, as many steps", 1.10),
    "memory": Goal("1,000 clients of 4 M parameters, state on disk", 2.0, unit=" GB"),
    "first_step": Goal("start to first local step", 6.0, unit=" s"),
    "help": Goal("--help", 2.0, unit=" s"),
}

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


def rows(results: dict[str, Any]) -> list[tuple[str, str, str, str, str]]:
    """(what, ours, floor, goal, best other) of every goal that has been measured."""
    table = []
    for name, goal in GOALS.items():
        if name not in results["rows"]:
            continue
        row = results["rows"][name]
        floor = f"{row['floor']:.2f}" if "floor" in row else ""
        best = best_other(results, goal.others, name.removesuffix("_ranks"))
        met = "" if row["ours"] <= goal.goal else f" (missed by {row['ours'] / goal.goal - 1:.0%})"
        table.append((goal.what, f"{row['ours']:.2f}{goal.unit}{met}", floor, f"{goal.goal:.2f}{goal.unit}", best))
    return table


def print_table(results: dict[str, Any]) -> None:
    table = [("workload", "ours", "floor", "goal", "best other"), *rows(results)]
    widths = [max(len(row[i]) for row in table) for i in range(5)]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if "accuracy" in results["rows"]:
        a = results["rows"]["accuracy"]
        print(
            f"accuracy on {a['data']} after {a['rounds']} rounds: ours {a['ours']:.2%}, bare loop {a['bare']:.2%}, "
            f"bare loop with our draws {a['bare_our_draws']:.2%} (theta differs by {a['theta_difference']:.1e})"
        )
