"""The partition's picture is written, opens, and is of a readable size at 3, 10, 40 and 100 clients."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes

from fedshvr.federation import partition_figure
from fedshvr.federation.partition import class_counts, iid, mismatch

Y = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 500))
NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


@pytest.mark.parametrize(("clients", "width"), [(3, 756), (10, 756), (40, 2124), (100, 2124)])
def test_the_picture_has_a_readable_size(clients: int, width: int, tmp_path: Path) -> None:
    from matplotlib.image import imread

    splits = iid(Y, clients=clients, labeled_per_client=10, seed=0)
    partition_figure.draw(splits, Y, NAMES, tmp_path / "partition.png", "cifar10, iid")
    pixels = imread(tmp_path / "partition.png")
    assert pixels.shape[:2] == (864, width)
    assert pixels[..., :3].std() > 0.1


def test_every_count_is_written_in_its_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[int, int, str]] = []
    text = Axes.text

    def record(self: Axes, x: int, y: int, s: str, **options: object) -> object:
        written.append((x, y, s))
        return text(self, x, y, s, **options)

    monkeypatch.setattr(Axes, "text", record)
    sizes = partial(mismatch, Y, clients=10, labeled_per_client=12, unlabeled=1000, concentration=0.5, min_size=20)
    splits = sizes(mismatch_ratio=1, seed=0)
    partition_figure.draw(splits, Y, NAMES, tmp_path / "partition.png")
    expected = [
        (k, c, str(counts[k, c]))
        for counts in class_counts(splits, Y, 10)
        for c in range(10)
        for k in range(10)
        if counts[k, c]
    ]
    assert written == expected


def test_drawing_leaves_pyplot_alone(tmp_path: Path) -> None:
    from matplotlib import pyplot

    before = pyplot.get_fignums()
    partition_figure.draw(iid(Y, clients=2, labeled_per_client=10, seed=0), Y, NAMES, tmp_path / "partition.png")
    assert pyplot.get_fignums() == before
