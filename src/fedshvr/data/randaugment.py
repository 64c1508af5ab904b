"""RandAugment (Cubuk et al. 2020) with cutout, as FixMatch uses it, on batches of image tensors."""

from math import pi

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from fedshvr.data.augment import Augment

GEOMETRY = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y", "zoom")
COLOUR = ("brightness", "contrast", "solarize", "posterize")
CHANGES = ("identity", *GEOMETRY, *COLOUR)
# The largest change: radians, shares of the side or of the image's own range of values, as published where it is there.
STRONGEST = {"rotate": pi / 6, "brightness": 0.9, "contrast": 0.9, "solarize": 1.0, "posterize": 1.0}
STRONGEST |= dict.fromkeys(("shear_x", "shear_y", "translate_x", "translate_y", "zoom"), 0.3)
PICKS = 2  # changes per image, each with a random strength
CUTOUT = 0.5  # the largest square that is cut out, as a share of the side
LEVELS = 16  # posterize keeps between 2 and so many grey values


class RandAugment(Augment):
    """The weak augmentation, then two random changes of random strength, then a random square set to 0."""

    def __init__(self, weak: Augment) -> None:
        self.weak = weak
        self.numbers = weak.numbers + 2 * PICKS + 3

    def apply(self, x: Tensor, uniform: Tensor) -> Tensor:
        mine = uniform[:, self.weak.numbers :].to(x.dtype)
        which, strength, square = mine.split([PICKS, PICKS, 3], dim=1)
        amount = {name: _amount(name, which, strength) for name in CHANGES[1:]}
        x = self.weak.apply(x, uniform[:, : self.weak.numbers])
        return cutout(colour(move(x, amount), amount), square)


def _amount(name: str, which: Tensor, strength: Tensor) -> Tensor:
    """(n,) in [-1, 1] times the strongest: how much of this change each image gets, 0 if it was not picked."""
    picked = (which * len(CHANGES)).long() == CHANGES.index(name)
    return (picked * (2 * strength - 1)).sum(1).clamp(-1, 1) * STRONGEST[name]


def move(x: Tensor, amount: dict[str, Tensor]) -> Tensor:
    """Zoom, shear, rotate and translate in one resampling; beyond its border an image goes on as at the border."""
    angle, shear_x, shear_y, right, down, zoom = (amount[name] for name in GEOMETRY)
    cos, sin, one = angle.cos(), angle.sin(), torch.ones_like(angle)
    rotation = torch.stack([cos, -sin, sin, cos], 1).view(-1, 2, 2)
    shear = torch.stack([one, shear_x, shear_y, one], 1).view(-1, 2, 2)
    matrix = rotation @ shear * (1 + zoom)[:, None, None]
    shift = 2 * torch.stack([right, down], 1)  # the grid's side is 2
    grid = affine_grid(torch.cat([matrix, shift[:, :, None]], 2), list(x.shape), align_corners=False)
    return grid_sample(x, grid, padding_mode="border", align_corners=False)


def colour(x: Tensor, amount: dict[str, Tensor]) -> Tensor:
    """Changes of the values, as shares of each image's own range."""
    brightness, contrast, solarize, posterize = (amount[name].abs()[:, None, None, None] for name in COLOUR)
    low, high = x.amin((1, 2, 3), keepdim=True), x.amax((1, 2, 3), keepdim=True)
    span = (high - low).clamp_min(torch.finfo(x.dtype).eps)
    z = (x - low) / span
    z = z * (1 - brightness)  # towards black
    z = z + contrast * (z.mean((1, 2, 3), keepdim=True) - z)  # towards the mean grey
    z = torch.where((solarize > 0) & (z >= 1 - solarize), 1 - z, z)
    steps = (1 + (LEVELS - 2) * (1 - posterize)).round()
    z = torch.where(posterize > 0, (z * steps).round() / steps, z)
    return low + span * z


def cutout(x: Tensor, square: Tensor) -> Tensor:
    """A square anywhere in the image, of a side between 0 and CUTOUT of the image's, set to 0 (the mean image)."""
    height, width = x.shape[2:]
    size, centre_y, centre_x = (t[:, None] for t in square.unbind(1))
    rows = (torch.arange(height, device=x.device) + 0.5) / height
    cols = (torch.arange(width, device=x.device) + 0.5) / width
    inside_y = (rows - centre_y).abs() < size * CUTOUT / 2
    inside_x = (cols - centre_x).abs() < size * CUTOUT / 2
    return x.masked_fill((inside_y[:, :, None] & inside_x[:, None, :])[:, None], 0)
