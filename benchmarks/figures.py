"""The figures of docs/performance.md."""

from math import ceil, floor, log10
from typing import Any

import matplotlib
from goals import GOALS, NAMES, peer
from loops import WORKLOADS
from source import ROOT

matplotlib.use("Agg")
from matplotlib import pyplot as plt

FOLDER = ROOT / "docs" / "img"
AXES = {
    "clients": "clients, 10,000 local steps in all",
    "parameters": "parameters, 8 local steps in all",
    "samples": "unlabelled samples, 1,000 local steps in all",
    "cores": "processes of one thread",
}


def bars(results: dict[str, Any], workload: str) -> list[tuple[str, float, bool, str]]:
    """(label, ratio, measured here?, colour) from top to bottom."""
    peers = [
        (NAMES[n], *(peer(results, n, workload) or (0.0, True)), "0.75") for n in ("trainer", "flower", "pfl", "pfl2")
    ]
    own = [("_floor", "hand-written floor", "0.45"), ("_one", "ours, one process", "C0"), ("", "ours", "C0")]
    ratio = {end: results["rows"].get(workload + end, {}).get("ours", 0.0) for end, _, _ in own}
    return [*peers, *((label, ratio[end], True, colour) for end, label, colour in own)]


def ratios(results: dict[str, Any]) -> None:
    """Seconds a round over the bare loop's, a panel a workload."""
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
        "seconds a round / bare loop (dotted: 1, line: goal, *: reported, not measured here)", fontsize="medium"
    )
    fig.savefig(FOLDER / "performance.png", dpi=120)
    plt.close(fig)


def scaling(curves: dict[str, Any]) -> None:
    """Seconds a round as clients, parameters, samples and processes grow, with quartiles and the exponents."""
    fig, axes = plt.subplots(1, len(AXES), figsize=(13, 3.8), layout="constrained")
    for axis, (what, label) in zip(axes, AXES.items(), strict=True):
        for name, found in curves.items():
            if name.partition(",")[0] != what:
                continue
            x, y = found["x"], found["seconds"]
            low, high = zip(*found["quartiles"], strict=True)
            around = [[abs(s - q) for s, q in zip(y, side, strict=True)] for side in (low, high)]
            kind = name.partition(", ")[2] or "a round"
            axis.errorbar(x, y, yerr=around, marker="o", capsize=3, label=f"{kind}: exponent {found['exponent']:.2f}")
            if "setup" in found:
                axis.plot(x, found["setup"], marker="s", linestyle="--", label="set-up, once a run")
        axis.set(xscale="log", yscale="log", xlabel=label)
        axis.spines[["top", "right"]].set_visible(False)
        if axis.get_legend_handles_labels()[0]:
            axis.legend(frameon=False, fontsize="small", loc="lower center", bbox_to_anchor=(0.5, 1))
            low, high = axis.get_ylim()
            axis.set_ylim(10 ** floor(log10(low)), 10 ** ceil(log10(high)))  # whole decades, so that ticks have numbers
    if counts := sorted({x for name, found in curves.items() if name.startswith("cores") for x in found["x"]}):
        axes[-1].set_xticks(counts, [str(n) for n in counts])
        axes[-1].minorticks_off()
    axes[0].set_ylabel("seconds")
    fig.savefig(FOLDER / "scaling.png", dpi=120)
    plt.close(fig)


def draw(results: dict[str, Any]) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    ratios(results)
    if curves := results["rows"].get("curves"):
        scaling(curves)
