"""Fixed features of images, made without labels: random whitened patches as filters (Coates & Ng 2011), then PCA.

No function here is given a label.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, unfold

from fedshvr.data.fetch import Bytes
from fedshvr.data.meter import Meter

CHUNK = 16  # images at once: their responses, 1.5 MB each, stay in a cache
BLOCK = 1000  # rows of features at once
POOL = 2  # quadrants


@dataclass(frozen=True)
class Recipe:
    """Every number that decides the features; `version` goes up when the code below changes them in another way."""

    patch: int = 6
    filters: int = 512
    threshold: float = 0.6
    components: int = 512
    sample: int = 100_000  # patches that the whitening is estimated from
    contrast: float = 10.0  # added to a patch's variance (pixels are 0 .. 255): flat patches stay small
    epsilon: float = 0.1  # added to the variance of each direction that is whitened
    seed: int = 0
    version: int = 1


@dataclass(frozen=True)
class Affine:
    """x -> matrix x + offset: a normalised patch to its responses, or raw features to principal components."""

    matrix: Tensor
    offset: Tensor


def compute(x: Bytes, x_test: Bytes, recipe: Recipe) -> tuple[Tensor, Tensor]:
    """The features (N, components) of training and test images (N, H, W, C); only the former decide the fit."""
    bank = filter_bank(random_patches(x, recipe), recipe)
    meter, raw = Meter("features", len(x) + len(x_test)), torch.empty(len(x), 2 * recipe.filters * POOL**2)
    for rows in _slices(len(x), CHUNK):
        raw[rows] = respond(x[rows], bank, recipe)
        meter.to(rows.stop)
    to_components = principal(raw, recipe.components)
    test = torch.empty(len(x_test), recipe.components)
    for rows in _slices(len(x_test), CHUNK):
        test[rows] = _project(respond(x_test[rows], bank, recipe), to_components)
        meter.to(len(x) + min(rows.stop, len(x_test)))
    return torch.cat([_project(raw[rows], to_components) for rows in _slices(len(x), BLOCK)]), test


def _slices(length: int, size: int) -> Iterator[slice]:
    return (slice(start, start + size) for start in range(0, length, size))


# --- filters ---


def random_patches(x: Bytes, recipe: Recipe) -> Tensor:
    """(sample, C * patch * patch), float64: each from a random place of a random image."""
    windows = sliding_window_view(x, (recipe.patch, recipe.patch), axis=(1, 2))  # (N, rows, columns, C, patch, patch)
    rng = np.random.default_rng(recipe.seed)
    places = (rng.integers(size, size=recipe.sample) for size in windows.shape[:3])
    return torch.from_numpy(windows[tuple(places)].reshape(recipe.sample, -1).astype(np.float64))


def normalized(patches: Tensor, contrast: float) -> Tensor:
    """Each patch (along dimension 1) less its mean, over sqrt(its variance + contrast)."""
    centred = patches - patches.mean(1, keepdim=True)
    return centred.div_((centred.square().mean(1, keepdim=True) + contrast).sqrt_())


def whitening(patches: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """The mean of the rows and ZCA's W = (Cov + epsilon I)^(-1/2)."""
    mean = patches.mean(0)
    covariance = torch.cov(patches.T, correction=0)
    values, vectors = torch.linalg.eigh(covariance)
    return mean, vectors * (values.clamp_min(0) + epsilon).rsqrt() @ vectors.T


def filter_bank(patches: Tensor, recipe: Recipe) -> Affine:
    """z = D W (p - mean) of a normalised patch p, where the rows of D are whitened patches of length 1."""
    patches = normalized(patches, recipe.contrast)
    mean, w = whitening(patches, recipe.epsilon)
    d = (patches[: recipe.filters] - mean) @ w
    matrix = d / d.norm(dim=1, keepdim=True).clamp_min(1e-12) @ w
    return Affine(matrix.float(), -(matrix @ mean).float())


def respond(x: Bytes, bank: Affine, recipe: Recipe) -> Tensor:
    """(n, 2 * filters * 4): max(0, z - threshold) and max(0, -z - threshold), each averaged over four quadrants."""
    images = torch.from_numpy(x.transpose(0, 3, 1, 2).astype(np.float32))
    patches = normalized(unfold(images, recipe.patch), recipe.contrast)
    z = torch.baddbmm(bank.offset[:, None], bank.matrix.expand(len(x), -1, -1), patches)
    places = [side - recipe.patch + 1 for side in images.shape[2:]]
    signs = ((z - recipe.threshold).relu_(), (-recipe.threshold - z).relu_())
    return torch.cat([adaptive_avg_pool2d(part.unflatten(2, places), POOL) for part in signs], 1).flatten(1)


# --- principal components ---


def principal(raw: Tensor, components: int) -> Affine:
    """To the first principal components of the standardised features, with one scale for all: mean variance 1.

    Scaled one by one, the last components would count as much as the first: on 10,000 images held out of the training
    set Fed-SHVR was 3 points worse after 20 rounds, and FedAvg 12 (one seed).
    """
    from scipy.linalg import eigh

    n, size = raw.shape
    mean = _sum(raw, lambda rows: rows.sum(0)) / n
    std = (_sum(raw, lambda rows: (rows - mean).square().sum(0)) / n).sqrt_().clamp_min_(1e-12)
    standard = [t.float() for t in (mean, std)]

    def products(rows: Tensor) -> Tensor:
        rows = (rows - standard[0]) / standard[1]
        return rows.T @ rows

    correlation = _sum(raw, products) / n
    values, vectors = eigh(correlation.numpy(), subset_by_index=[size - components, size - 1])
    values, vectors = torch.from_numpy(values).flip(0), torch.from_numpy(vectors).flip(1)
    vectors = vectors * vectors.gather(0, vectors.abs().argmax(0, keepdim=True)).sign()  # eigenvectors have no sign
    matrix = vectors.T / values.mean().sqrt() / std
    return Affine(matrix.float(), -(matrix @ mean).float())


def _sum(raw: Tensor, of: Callable[[Tensor], Tensor]) -> Tensor:
    """The sum over blocks of rows, in float64."""
    return sum((of(raw[rows]).double() for rows in _slices(len(raw), BLOCK)), torch.zeros((), dtype=torch.float64))


def _project(raw: Tensor, to: Affine) -> Tensor:
    return torch.addmm(to.offset, raw, to.matrix.T)
