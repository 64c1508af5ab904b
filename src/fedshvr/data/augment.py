"""Augmentation of image tensors in batches: every geometric change is one row of an index table, then one gather."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from fedshvr.errors import check

OPTIONS = {"labeled": "augment", "weak": "augment", "strong": "augment_strong"}


class Augment:
    """Leaves images as they are; the interface of all augmentations.

    Each image needs `numbers` uniform random numbers: `apply` takes images (n, C, H, W) and numbers (n, numbers). The
    numbers come in main memory wherever the images are, so that what is to be done can be looked up without a wait.
    """

    numbers = 0

    def apply(self, x: Tensor, uniform: Tensor) -> Tensor:
        return x


class Shift(Augment):
    """Random translation by up to `pixels` with reflected borders; if asked, a horizontal flip half of the time."""

    numbers = 1

    def __init__(self, pixels: int, flip: bool = False) -> None:
        self.pixels, self.flip = pixels, flip
        self._tables: dict[tuple[int, int, torch.device], Tensor] = {}

    def apply(self, x: Tensor, uniform: Tensor) -> Tensor:
        _, channels, height, width = x.shape
        table = self._table(height, width, x.device)
        source = table[(uniform[:, 0] * len(table)).long().to(x.device, non_blocking=True)]
        return x.flatten(2).gather(2, source[:, None].expand(-1, channels, -1)).view_as(x)

    def _table(self, height: int, width: int, device: torch.device) -> Tensor:
        """(moves, H*W): from which pixel of the flattened image each pixel comes."""
        key = (height, width, device)
        if key not in self._tables:
            rows, cols = self._reflected(height), self._reflected(width)
            table = (rows[:, None, :, None] * width + cols[None, :, None, :]).flatten(0, 1)
            if self.flip:
                table = torch.cat([table, table.flip(-1)])
            self._tables[key] = table.flatten(1).to(device)
        return self._tables[key]

    def _reflected(self, size: int) -> Tensor:
        check(self.pixels < size, f"augment.pixels={self.pixels}: must be below {size}, the side of the images")
        shifts = torch.arange(-self.pixels, self.pixels + 1)
        index = (torch.arange(size) + shifts[:, None]).abs()
        return torch.where(index >= size, 2 * (size - 1) - index, index)


def check_views(name: str, shape: Sequence[int], views: Iterable[str], augments: dict[str, Augment]) -> None:
    """Refuse views that need images, or larger ones, of a data set with samples of this shape."""
    what = {1: "vectors", 2: "sequences"}.get(len(shape), f"samples of {len(shape)} dimensions")
    for view in sorted({"labeled", *views} & OPTIONS.keys()):
        option, kind = OPTIONS[view], type(augments[view]).__name__
        check(
            augments[view].numbers == 0 or len(shape) == 3,
            f"{option}: {kind} changes images, but data.name={name} has {what}; use {option}=none",
        )
        if len(shape) == 3:
            augments[view].apply(torch.zeros(1, *shape), torch.zeros(1, augments[view].numbers))  # it refuses by itself
