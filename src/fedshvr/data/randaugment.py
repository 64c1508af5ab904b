"""RandAugment (Cubuk et al. 2020) with cutout, as FixMatch uses it, on batches of image tensors."""

from collections.abc import Callable
from math import pi

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from fedshvr.data.augment import Augment

STRONGEST = {"rotate": pi / 6, "shear_x": 0.3, "shear_y": 0.3, "translate_x": 0.3, "translate_y": 0.3}
ENHANCE = 0.9  # brightness, color, contrast and sharpness are scaled by 1 - ENHANCE to 1 + ENHANCE
PICKS = 2  # changes per image, one after the other, each with a random strength
CUTOUT = 0.5  # the largest square that is cut out, as a share of the side
LEVELS = 16  # posterize keeps between 2 and so many values
BINS = 256  # of equalize's histogram
LUMA = (0.299, 0.587, 0.114)  # how much red, green and blue count in grey


class RandAugment(Augment):
    """The weak augmentation, then two of FixMatch's 14 changes, each of random strength, then a random square set to 0.

    The strengths are those of the published code (brightness 0.1 to 1.9; the paper's table ends at 0.95). Other than
    there, black and white are the darkest and the brightest value of the image itself, an image goes on beyond its
    border as at the border, and the square's side is random as in the paper's table, not always half of the image's.
    """

    def __init__(self, weak: Augment) -> None:
        self.weak = weak
        self.numbers = weak.numbers + 2 * PICKS + 3

    def apply(self, x: Tensor, uniform: Tensor) -> Tensor:
        mine = uniform[:, self.weak.numbers :].to(x.dtype)
        which, rest = mine[:, :PICKS], mine[:, PICKS:].to(x.device, non_blocking=True)
        strength, square = rest.split([PICKS, 3], 1)
        x = self.weak.apply(x, uniform[:, : self.weak.numbers])
        low, high = x.amin((1, 2, 3), keepdim=True), x.amax((1, 2, 3), keepdim=True)
        span = (high - low).clamp_min(torch.finfo(x.dtype).eps)
        z = (x - low) / span
        for pick in range(PICKS):
            change(z, (which[:, pick] * len(CHANGES)).long(), 2 * strength[:, pick] - 1)
        return cutout(low + span * z, square)


def change(z: Tensor, index: Tensor, strength: Tensor) -> None:
    """Change `index` of each image in place, with a strength in [-1, 1]; each change sees its own images only."""
    counts = index.bincount(minlength=len(CHANGES)).tolist()
    order, index = (t.to(z.device, non_blocking=True) for t in (index.argsort(), index))
    of = order.split(counts)
    moved = torch.cat(of[1 : 1 + len(STRONGEST)])
    if len(moved):
        z[moved] = move(z[moved], index[moved] - 1, strength[moved])
    for images, f in zip(of[-len(COLOUR) :], COLOUR.values(), strict=True):
        if len(images):
            z[images] = f(z[images], strength[images, None, None, None]).clamp_(0, 1)


def move(z: Tensor, kind: Tensor, strength: Tensor) -> Tensor:
    """Rotate, shear or translate; beyond its border an image goes on as at the border."""
    amounts = (strength * (kind == i) * strongest for i, strongest in enumerate(STRONGEST.values()))
    angle, shear_x, shear_y, right, down = (amount[:, None, None] for amount in amounts)
    y, x = (_centres(size, z)[:, None].movedim(0, dim) for dim, size in enumerate(z.shape[2:]))
    from_x = angle.cos() * x + (shear_x - angle.sin()) * y + 2 * right
    from_y = (shear_y + angle.sin()) * x + angle.cos() * y + 2 * down
    return grid_sample(z, torch.stack([from_x, from_y], 3), padding_mode="border", align_corners=False)


def _centres(size: int, like: Tensor) -> Tensor:
    """The centres of so many pixels side by side; the side is -1 .. 1, as grid_sample counts."""
    return (2 * torch.arange(size, device=like.device, dtype=like.dtype) + 1) / size - 1


def blend(base: Tensor, z: Tensor, strength: Tensor) -> Tensor:
    """From nearly `base` over z to nearly as far beyond z."""
    return base + (1 + ENHANCE * strength) * (z - base)


def grey(z: Tensor) -> Tensor:
    share = z.new_tensor(LUMA) if z.shape[1] == len(LUMA) else z.new_full((z.shape[1],), 1 / z.shape[1])
    return (z * share[:, None, None]).sum(1, keepdim=True)


def smooth(z: Tensor) -> Tensor:
    """Each pixel counts 5, its eight neighbours 1; the outermost pixels stay."""
    out, inner, wide = z.clone(), slice(1, -1), z[..., :-2] + z[..., 1:-1] + z[..., 2:]
    nine = wide[..., :-2, :] + wide[..., 1:-1, :] + wide[..., 2:, :]
    out[..., inner, inner] = (nine + 4 * z[..., inner, inner]) / 13
    return out


def auto_contrast(z: Tensor) -> Tensor:
    """Each channel stretched to 0 .. 1; one of a single value stays."""
    low, high = z.amin((2, 3), keepdim=True), z.amax((2, 3), keepdim=True)
    return torch.where(high > low, (z - low) / (high - low), z)


def equalize(z: Tensor) -> Tensor:
    """Each value becomes the share of darker pixels of its channel, the brightest left out: 0 .. 1, equally often."""
    level = (z.flatten(2) * (BINS - 1)).round().long()
    count = z.new_zeros(*z.shape[:2], BINS).scatter_add_(2, level, z.new_ones(()).expand(level.shape))
    darker = count.cumsum(2) - count
    most = darker.gather(2, level.amax(2, keepdim=True))
    return torch.where(most[..., None] > 0, (darker / most).gather(2, level).view_as(z), z)


def posterize(z: Tensor, strength: Tensor) -> Tensor:
    steps = (1 + (LEVELS - 2) * (1 - strength.abs())).round()
    return (z * steps).round() / steps


COLOUR: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "auto_contrast": lambda z, strength: auto_contrast(z),
    "brightness": lambda z, strength: blend(torch.zeros_like(z), z, strength),
    "color": lambda z, strength: blend(grey(z), z, strength),
    "contrast": lambda z, strength: blend(grey(z).mean((1, 2, 3), keepdim=True), z, strength),
    "equalize": lambda z, strength: equalize(z),
    "posterize": posterize,
    "sharpness": lambda z, strength: blend(smooth(z), z, strength),
    "solarize": lambda z, strength: torch.where(z > 1 - strength.abs(), 1 - z, z),
}
CHANGES = ("identity", *STRONGEST, *COLOUR)


def cutout(x: Tensor, square: Tensor) -> Tensor:
    """A square anywhere in the image, of a side between 0 and CUTOUT of the image's, set to 0 (the mean image)."""
    height, width = x.shape[2:]
    size, centre_y, centre_x = (t[:, None] for t in square.unbind(1))
    rows = (torch.arange(height, device=x.device) + 0.5) / height
    cols = (torch.arange(width, device=x.device) + 0.5) / width
    inside_y = (rows - centre_y).abs() < size * CUTOUT / 2
    inside_x = (cols - centre_x).abs() < size * CUTOUT / 2
    return x.masked_fill((inside_y[:, :, None] & inside_x[:, None, :])[:, None], 0)
