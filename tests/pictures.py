"""Images of three classes that a small network can tell apart: noise around a colour of their own."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

NAMES = ("cat", "dog", "owl")
COLORS = ((200, 60, 60), (60, 200, 60), (60, 60, 200))


def picture(label: int, number: int, size: tuple[int, int] = (8, 8)) -> Image.Image:
    rng = np.random.default_rng((label, number))
    noise = rng.integers(-40, 40, (*size, 3))
    return Image.fromarray((np.array(COLORS[label]) + noise).astype(np.uint8))


def write(root: Path, each: int, names: Sequence[str] = NAMES, first: int = 0, kind: str = "png") -> Path:
    """root/<class>/<number>.<kind>, `each` of every class."""
    for label, name in enumerate(names):
        (root / name).mkdir(parents=True, exist_ok=True)
        for number in range(first, first + each):
            picture(label, number).save(root / name / f"{number}.{kind}")
    return root


def write_parts(root: Path, train: int, test: int) -> Path:
    write(root / "train", train)
    write(root / "test", test, first=train)
    return root
