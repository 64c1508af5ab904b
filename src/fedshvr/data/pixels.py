"""Pictures of any size and kind as bytes of one shape, and as a data set."""

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from fedshvr.data.fetch import Bytes
from fedshvr.data.images import ImageData, check_scaling, scaled
from fedshvr.errors import UserError, check
from fedshvr.federation.held_out import hold_out

MODES = {1: "L", 3: "RGB"}
DEEP = ("F", "I")  # more than 8 bits a pixel: Pillow would cut them off
BAD_IMAGE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)

Labels = NDArray[np.int64]
Part = tuple[Bytes, Labels]
# Each with a name for sentences, and what opens it and gives its label.
Pictures = Iterable[tuple[Any, Callable[[], tuple[Any, Any]]]]


@dataclass(frozen=True)
class Look:
    """What pictures become: `size` a side or [height, width], None if all have one; `channels` 1 (grey) or 3 (RGB)."""

    size: int | list[int] | None
    channels: int
    scaling: str

    def __post_init__(self) -> None:
        check(self.channels in MODES, f"data.channels={self.channels}: must be 1 (grey) or 3 (RGB)")
        sides = self.sides
        pair = isinstance(sides, list | tuple) and len(sides) == 2 and all(isinstance(n, int) and n > 0 for n in sides)
        check(sides is None or pair, f"data.size={self.size}: must be a side in pixels, [height, width] or null")
        check_scaling(self.scaling)

    @property
    def sides(self) -> list[int] | None:
        return [self.size] * 2 if isinstance(self.size, int) else self.size

    def pixels(self, picture: Image.Image) -> Bytes:
        """(H, W, C)"""
        if picture.mode.startswith(DEEP):
            raise ValueError(f"mode {picture.mode} has more than 8 bits a pixel; data=npz takes any numbers")
        return self._fitted(picture.convert(MODES[self.channels]))

    def resized(self, images: Bytes) -> Bytes:
        """Images (N, H, W, C) that are arrays already."""
        if not self.sides:
            return images
        return np.stack([self._fitted(Image.fromarray(x[..., 0] if x.shape[-1] == 1 else x)) for x in images])

    def _fitted(self, picture: Image.Image) -> Bytes:
        if self.sides:
            height, width = self.sides
            picture = picture.resize((width, height), Image.Resampling.BILINEAR)
        return np.asarray(picture).reshape(picture.height, picture.width, -1)

    def read(self, name: str, pictures: Pictures) -> Part:
        """All pictures and their labels; the first that is broken, or of another size than the others, is named."""
        x: list[Bytes] = []
        y: list[int] = []
        first: Any = None
        for place, opened in pictures:
            try:
                picture, label = opened()
                y.append(_label(name, place, picture, label))
                x.append(self.pixels(picture))
            except UserError:
                raise
            except BAD_IMAGE as problem:
                raise UserError(f"data.name={name}: {place} cannot be read as an image ({problem})") from None
            first = place if first is None else first
            _check_alike(f"{first} has", x[0], str(place), x[-1])
        check(bool(x), f"data.name={name}: there is not one image in it")
        return np.stack(x), np.array(y, np.int64)


def _label(name: str, place: Any, picture: Any, label: Any) -> int:
    check(isinstance(picture, Image.Image), f"data.name={name}: {place} is no image but {type(picture).__name__}")
    try:
        number = operator.index(label)
    except TypeError:
        raise UserError(f"data.name={name}: the label of {place} is no class but {type(label).__name__}") from None
    check(number >= 0, f"data.name={name}: the label of {place} is {number}; labels count from 0")
    return number


def _check_alike(one: str, a: Bytes, other: str, b: Bytes) -> None:
    sizes = [f"{pixels.shape[0]}x{pixels.shape[1]}" for pixels in (a, b)]
    check(a.shape == b.shape, f"data.size=null: {one} {sizes[0]} pixels and {other} {sizes[1]}; give a size")


def picture_data(
    name: str, parts: Sequence[Pictures], classes: Sequence[str] | None, look: Look, test_share: float, seed: int
) -> ImageData:
    """A data set of two parts, or of one from which the test is split off; classes without names have numbers."""
    read = [look.read(name, part) for part in parts]
    (x, y), (x_test, y_test) = read if len(read) == 2 else _split(*read[0], test_share, seed)
    _check_alike("training images have", x[0], "test images", x_test[0])
    names = tuple(classes or map(str, range(max(y.max(), y_test.max()) + 1)))
    x_scaled, x_test_scaled, preprocessing = scaled((x, x_test), 255, look.scaling)
    label, label_test = map(torch.from_numpy, (y, y_test))
    return ImageData(name, x_scaled, label, x_test_scaled, label_test, names, preprocessing | {"size": look.sides})


def _split(x: Bytes, y: Labels, share: float, seed: int) -> list[Part]:
    """The training and the test part: `share` of every class."""
    check(0 < share < 1, f"data.test_share={share}: must be above 0 and below 1")
    test = hold_out(y, share, seed, "data.test_share")
    rest = np.delete(np.arange(len(y)), test)
    return [(x[index], y[index]) for index in (rest, test)]
