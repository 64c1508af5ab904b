"""The picture of a partition: class x client heat maps of the labelled and the unlabelled samples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedshvr.federation.partition import Split, class_counts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CELL_WIDTH, CELL_HEIGHT = 0.38, 0.27  # inches; four digits fit in a cell
WRITTEN_CLIENTS = 40  # with more the cells get narrower and stay empty


def draw(splits: Sequence[Split], y: npt.ArrayLike, classes: Sequence[str], path: Path, title: str = "") -> None:
    """Write the labelled heat map above the unlabelled one, as an image at `path`."""
    from matplotlib.figure import Figure

    width = 2.5 + CELL_WIDTH * min(max(len(splits), 10), WRITTEN_CLIENTS)
    figure = Figure(figsize=(width, 1.8 + 2 * CELL_HEIGHT * len(classes)), layout="constrained")
    figure.suptitle(title)
    upper, lower = figure.subplots(2, 1, sharex=True)
    labeled, unlabeled = class_counts(splits, y, len(classes))
    _heat_map(upper, labeled.T, classes, "labelled")
    _heat_map(lower, unlabeled.T, classes, "unlabelled")
    lower.set_xlabel("client")
    figure.savefig(path, dpi=120)


def _heat_map(axes: Axes, counts: np.ndarray, classes: Sequence[str], kind: str) -> None:
    """One class x client map, darker for more; the counts are written where they fit."""
    from matplotlib.ticker import MaxNLocator

    image = axes.imshow(counts, cmap="Blues", vmin=0, vmax=max(counts.max(), 1), aspect="auto", interpolation="nearest")
    axes.figure.colorbar(image, ax=axes, pad=0.01, aspect=40, ticks=MaxNLocator(5, integer=True))
    least, most = counts.sum(0).min(), counts.sum(0).max()
    each = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    axes.set_title(f"{kind}: {counts.sum():,} samples, {each} a client", fontsize=10, loc="left")
    axes.set_yticks(range(len(classes)), classes, parse_math=False)  # a class may be called $x
    axes.set_ylabel("class")
    axes.xaxis.set_major_locator(MaxNLocator(20, integer=True))
    if counts.shape[1] <= WRITTEN_CLIENTS:
        axes.set_xticks(range(counts.shape[1]))
        _write_counts(axes, counts)


def _write_counts(axes: Axes, counts: np.ndarray) -> None:
    for c, k in np.argwhere(counts):
        color = "white" if counts[c, k] > 0.6 * counts.max() else "black"
        axes.text(k, c, str(counts[c, k]), ha="center", va="center", fontsize=7, color=color)
