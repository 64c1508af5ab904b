"""Items as PNG and PDF."""

from collections.abc import Iterable
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedshvr.reporting import style
from fedshvr.reporting.items import Item, Panel, Series, Surface

DASHES = ("-", "--", ":", "-.")
LONG = 35  # characters of a legend entry that needs a line of its own
TICKS = (-1, -0.5, 0, 0.5, 1)
RC: dict[Any, Any] = {
    "font.size": 10,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
RC |= {"pdf.fonttype": 42, "axes.axisbelow": True}


def draw(item: Item, stem: Path, kinds: Iterable[str] = ("png", "pdf")) -> None:
    """Write stem.png and stem.pdf."""
    with rc_context(RC):
        if item.surfaces:
            figure = surfaces_figure(item.surfaces)
        elif item.panels:
            figure = panels_figure(item.panels)
        else:
            figure = table_figure(item)
        figure.suptitle(f"{item.title}  [scale: {item.scale}]", fontsize=11)
        for kind in kinds:
            plain = {"Software": None} if kind == "png" else {"CreationDate": None}  # the same numbers, the same file
            figure.savefig(stem.with_suffix(f".{kind}"), dpi=150, metadata=plain)


def panels_figure(panels: list[Panel]) -> Figure:
    lines, rows = max(len(panel.series) for panel in panels), 1 + (len(panels) > 3)
    columns = -(-len(panels) // rows)
    figure = Figure(figsize=(6.4 * columns, rows * (4.4 + 0.2 * lines)), layout="constrained")
    for axes, panel in zip(figure.subplots(rows, columns, squeeze=False).flat, panels, strict=False):
        draw_panel(axes, panel)
    return figure


def draw_panel(axes: Axes, panel: Panel) -> None:
    axes.set(xlabel=panel.xlabel, ylabel=panel.ylabel)
    if len(panel.title) and len(axes.figure.axes) > 1:
        axes.set_title(panel.title, fontsize=10)
    if panel.log:
        axes.set(xscale="log", yscale="log")
    elif "round" in panel.xlabel:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    for series in panel.series:
        draw_series(axes, series, panel.points)
    if panel.guide:
        text, x, y = panel.guide
        axes.plot(x, y, color="0.35", linestyle=(0, (1, 1)), linewidth=1.3, label=text)
    if any(series.x for series in panel.series):
        columns = 1 if any(len(series.label) > LONG for series in panel.series) else 2
        axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncol=columns)  # not over the curves
    else:
        axes.text(0.5, 0.5, "no finished run yet", ha="center", va="center", transform=axes.transAxes, color="0.4")


def draw_series(axes: Axes, s: Series, points: bool) -> None:
    look: dict[str, Any] = {
        "color": style.color(s.algorithm),
        "linestyle": DASHES[(s.dash + style.dash(s.algorithm)) % len(DASHES)],
    }
    look |= {"marker": style.marker(s.algorithm), "markersize": 5, "linewidth": 1.6}
    text = fill(f"{s.label} (n={s.n})", 2 * LONG).replace("$", r"\$")  # a name is no formula
    if points:
        axes.errorbar(s.x, s.mean, yerr=s.std, capsize=3, label=text, **look)
        return
    axes.plot(s.x, s.mean, markevery=max(1, len(s.x) // 8), label=text, **look)
    if s.std:
        mean, std = np.array(s.mean), np.array(s.std)
        axes.fill_between(s.x, mean - std, mean + std, color=look["color"], alpha=0.18, linewidth=0)


def surfaces_figure(surfaces: list[Surface]) -> Figure:
    """Contour above, surface below; one scale for all."""
    figure = Figure(figsize=(5.2 * len(surfaces), 9.2), layout="constrained")
    stacked = np.array([surface.values for surface in surfaces])
    low, high = float(stacked.min()), float(stacked.max())
    levels = np.linspace(low, high, 21)
    contours = []
    for i, surface in enumerate(surfaces):
        values = np.array(surface.values)
        flat = figure.add_subplot(2, len(surfaces), i + 1, aspect="equal")
        filled = flat.contourf(surface.beta, surface.beta, values, levels, cmap="viridis")
        flat.contour(surface.beta, surface.beta, values, levels, colors="white", linewidths=0.4)
        flat.plot(0, 0, "+", color="white", markersize=10)
        flat.set(title=surface.title, xlabel="β1", ylabel="β2", xticks=TICKS, yticks=TICKS)
        contours.append(flat)
        solid: Any = figure.add_subplot(2, len(surfaces), len(surfaces) + i + 1, projection="3d")
        solid.plot_surface(*np.meshgrid(surface.beta, surface.beta), values, cmap="viridis", vmin=low, vmax=high)
        solid.set(xlabel="β1", ylabel="β2", zlabel="F", zlim=(low, high), xticks=TICKS, yticks=TICKS)
    figure.colorbar(filled, ax=contours, label="F", shrink=0.8, ticks=MaxNLocator(6))
    return figure


def table_figure(item: Item) -> Figure:
    columns = [text.replace(", ", "\n") for text in item.table.columns]
    rows = item.table.rows or [["no finished run yet", *[""] * (len(columns) - 1)]]
    figure = Figure(figsize=(2.8 + 1.05 * (len(columns) - 1), 1.1 + 0.32 * len(rows)), layout="constrained")
    axes = figure.subplots()
    axes.axis("off")
    table = axes.table(rows, colLabels=columns, loc="center", cellLoc="right", colLoc="right", edges="horizontal")
    table.auto_set_font_size(False)
    table.set_fontsize(9)
    table.auto_set_column_width(range(len(columns)))
    table.scale(1, 1.5)
    for (row, column), cell in table.get_celld().items():
        cell.set_edgecolor("0.8")
        cell.set_text_props(parse_math=False)
        if row == 0:
            cell.set_height(1.8 * cell.get_height())
            cell.set_text_props(weight="bold")
        if column == 0:
            cell.set_text_props(ha="left")
            cell._loc = "left"  # type: ignore[attr-defined]  # there is no setter
    return figure
