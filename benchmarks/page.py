"""docs/performance.md and its figure from the results: the tables between the markers are written here."""

import re
from typing import Any

import matplotlib
from goals import GOALS, NAMES, peer, rows
from source import ROOT

from fedshvr.running.profiling import PHASES

matplotlib.use("Agg")
from matplotlib import pyplot as plt

PAGE, FIGURE = ROOT / "docs" / "performance.md", ROOT / "docs" / "img" / "performance.png"
WORKLOADS = ("mlp", "tiny", "wide")


def markdown(header: list[str], body: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def goal_table(results: dict[str, Any]) -> str:
    return markdown(["workload", "ours", "floor", "goal", "best other"], [list(row) for row in rows(results)])


def peer_table(results: dict[str, Any]) -> str:
    """A row a contestant, a column a workload; what was not measured here is marked."""
    body = []
    for name in ("trainer", "flower", "pfl", "pfl2"):
        version = results.get("peers", {}).get(name, {}).get("version", "")
        cells = []
        for workload in WORKLOADS:
            found = peer(results, name, workload)
            cells.append("" if found is None else f"{found[0]:.2f}" if found[1] else f"{found[0]:.2f} (reported)")
        body.append([f"{NAMES[name]} {version}".strip(), *cells])
    for key, label in (
        ("floor", "hand-written floor"),
        ("sequential", "ours, engine=sequential"),
        ("ours", "ours, engine=auto"),
        ("epoch", "ours with Lightning's epoch loop"),
    ):
        body.append([label, *(_cell(results, workload, key) for workload in WORKLOADS)])
    body.append(["ours, two ranks", *(_cell(results, f"{workload}_ranks", "ours") for workload in WORKLOADS)])
    return markdown(["seconds a round / bare loop", *WORKLOADS], body)


def profile_table(results: dict[str, Any]) -> str:
    """A row a phase of the round, a column a workload and engine."""
    shares = results["rows"].get("profile", {})
    phases = [phase for phase in PHASES if any(column.get(phase, 0) >= 0.005 for column in shares.values())]
    body = [[phase, *(f"{column[phase]:.0%}" for column in shares.values()), PHASES[phase]] for phase in phases]
    return markdown(["", *shares, ""], body)


def _cell(results: dict[str, Any], workload: str, key: str) -> str:
    row = results["rows"].get(workload, {})
    return f"{row[key]:.2f}" if key in row else ""


def facts(results: dict[str, Any]) -> str:
    machine, versions, measured = results["machine"], results["versions"], results["rows"]
    lines = [
        f"Measured on {machine['cores']} cores of {machine['cpu']}, {machine['system']}, Python {machine['python']}, "
        f"torch {versions['torch']}, lightning {versions['lightning']}."
    ]
    if row := measured.get("accuracy"):
        lines.append(
            f"Accuracy on {row['data']} after {row['rounds']} rounds of mlp: ours {row['ours']:.2%}, bare loop "
            f"{row['bare']:.2%}, bare loop with our random draws {row['bare_our_draws']:.2%} "
            f"(no parameter differs by more than {row['theta_difference']:.0e} then)."
        )
    if row := measured.get("memory"):
        lines.append(
            f"Peak memory with the 4 M parameter MLP and {row['clients']:,} clients: {row['ours']:.2f} GB with control "
            f"variates on disk, {row['fedavg_gb']:.2f} GB for FedAvg, {row['fedavg_few_gb']:.2f} GB with 10 clients."
        )
    lines += [f"{NAMES[n]}: {p['why']}" for n, p in results.get("peers", {}).items() if "why" in p]
    return "\n\n".join(lines)


def write_page(results: dict[str, Any]) -> None:
    text = PAGE.read_text()
    for name, content in (("goals", goal_table), ("peers", peer_table), ("profile", profile_table), ("facts", facts)):
        block = f"<!-- {name} -->\n{content(results)}\n<!-- /{name} -->"
        text = re.sub(f"<!-- {name} -->.*<!-- /{name} -->", lambda _, b=block: b, text, flags=re.DOTALL)
    PAGE.write_text(text)
    figure(results)


def bars(results: dict[str, Any], workload: str) -> list[tuple[str, float, bool, str]]:
    """(label, ratio, measured here?, colour) from top to bottom."""
    peers = [
        (NAMES[n], *(peer(results, n, workload) or (0.0, True)), "0.75") for n in ("trainer", "flower", "pfl", "pfl2")
    ]
    row, ranks = (results["rows"].get(name, {}) for name in (workload, f"{workload}_ranks"))
    own = [("hand-written floor", row.get("floor", 0.0), True, "0.45"), ("ours", row.get("ours", 0.0), True, "C0")]
    return [*peers, *own, ("ours, two ranks", ranks.get("ours", 0.0), True, "C0")]


def figure(results: dict[str, Any]) -> None:
    """Seconds a round over the bare loop's, a panel a workload."""
    FIGURE.parent.mkdir(parents=True, exist_ok=True)
    fig, axes = plt.subplots(1, len(WORKLOADS), figsize=(11, 3.2), layout="constrained", sharey=True)
    for axis, workload in zip(axes, WORKLOADS, strict=True):
        labels, values, measured, colours = zip(*bars(results, workload), strict=True)
        drawn = axis.barh(labels, values, color=colours, edgecolor="white")
        texts = [f"{v:.2f}{'' if m else '*'}" if v else "" for v, m in zip(values, measured, strict=True)]
        plain = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # the lines do not run through the numbers
        axis.bar_label(drawn, texts, padding=3, bbox=plain, zorder=3)
        axis.axvline(GOALS[workload].goal, color="black", linewidth=1)
        axis.axvline(1, color="black", linewidth=1, linestyle=":")
        axis.margins(x=0.2)
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_title(workload)
    axes[0].invert_yaxis()
    fig.supxlabel(
        "seconds a round / bare loop (dotted: 1, line: goal for one process, *: reported, not measured here)",
        fontsize="medium",
    )
    fig.savefig(FIGURE, dpi=120)
    plt.close(fig)
