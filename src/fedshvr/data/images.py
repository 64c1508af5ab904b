"""A data set in memory as every source gives it: scaled samples, labels, class names, and how they were scaled."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedshvr.data.fetch import Bytes
from fedshvr.errors import check

SCALINGS = ("normalized", "unit")
Moments = tuple[list[float], list[float]]  # mean and standard deviation of each channel, of pixels in [0, 1]


@dataclass(frozen=True)
class ImageData:
    """Images float32 (N, C, H, W), or vectors (N, features), contiguous and scaled; labels int64 (N,).

    `preprocessing` tells how raw pixels become x: resized to "size" (H, W; None: as they are) with "channels", divided
    by "peak", less "mean", divided by "std" (a number a channel, or None). It is empty where samples are no images.
    """

    name: str
    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: tuple[str, ...]
    preprocessing: dict[str, Any] = field(default_factory=dict)


def check_scaling(scaling: str) -> None:
    check(scaling in SCALINGS, f"data.scaling={scaling}: must be one of {', '.join(SCALINGS)}")


def scaled(
    images: tuple[Bytes, Bytes], peak: int, scaling: str, moments: Moments | None = None
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Training and test images (N, H, W, C) in 0..peak as tensors, and what was done to them.

    Without `moments` those of the training images are used.
    """
    check_scaling(scaling)
    x, x_test = (_unit(part, peak) for part in images)
    mean = std = None
    if scaling == "normalized":
        mean, std = moments or _moments(x)
        check(min(std) > 0, "data.scaling=normalized: all training images are the same grey; must be unit for these")
        shift, scale = (torch.tensor(moment).view(-1, 1, 1) for moment in (mean, std))
        x, x_test = x.sub_(shift).div_(scale), x_test.sub_(shift).div_(scale)
    return x, x_test, {"peak": peak, "mean": mean, "std": std, "size": None, "channels": x.shape[1]}


def _unit(images: Bytes, peak: int) -> Tensor:
    """(N, H, W, C) in 0..peak -> (N, C, H, W) in [0, 1]."""
    channels_first = np.ascontiguousarray(images.transpose(0, 3, 1, 2), dtype=np.float32)
    return torch.from_numpy(channels_first).div_(peak)


def _moments(x: Tensor) -> Moments:
    return x.mean((0, 2, 3)).tolist(), x.std((0, 2, 3), correction=0).tolist()


def checked(data: Any) -> ImageData:
    """What a source gave, unless a run would stumble over it."""
    check(isinstance(data, ImageData), f"data._target_: must return an ImageData, not {type(data).__name__}")
    where, classes = f"data.name={data.name}", len(data.classes)
    check(classes >= 2, f"{where}: has {classes} class; must have at least two")
    for part, x, y in (("training", data.x, data.y), ("test", data.x_test, data.y_test)):
        check(
            x.dim() >= 2 and x.numel() > 0 and x.is_floating_point() and x.shape[1:] == data.x.shape[1:],
            f"{where}: its {part} samples have shape {tuple(x.shape)} and type {x.dtype}; must be floats (N, ...), the "
            "training samples shaped as the test samples",
        )
        check(y.shape == x.shape[:1], f"{where}: {len(x)} {part} samples, but labels of shape {tuple(y.shape)}")
        low, high = (int(label) for label in y.aminmax())
        check(
            y.dtype == torch.int64 and low >= 0 and high < classes,
            f"{where}: its {part} labels are {y.dtype} from {low} to {high}; must be int64 from 0 to {classes - 1}",
        )
        finite = torch.stack(x.aminmax()).isfinite().all()
        check(bool(finite), f"{where}: a {part} sample holds a number that is not finite")
    empty = [name for name, n in zip(data.classes, data.y.bincount(minlength=classes).tolist(), strict=True) if n == 0]
    check(not empty, f"{where}: the class {'; the class '.join(empty[:3])} has no training sample")
    return data
