"""Samples that come again at every few steps of a round: a client's few labelled ones, where nothing augments them.

A huge layer needs no product of its own weight with them. With X these samples, and x and outer a step's inputs and
the gradient by their outputs,

    y = X W'       is kept: a step moves it by scale (X d' + (X x') outer)
    A              sums the rows of outer that belong to X: W is owed scale A' X
    x W' + scale (x X') A      are the outputs of other inputs meanwhile.

So of a step of 32 labelled and 32 unlabelled samples only half is multiplied with the weight, forward and backward.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from fedshvr.compute.products import large_products


class Uses(NamedTuple):
    """The samples of a stack of clients that recur, (n, m, in), and with which of them each step begins."""

    samples: Tensor
    place: Tensor  # (n, steps, B); of one step (n, B)

    def at(self, step: int, active: int) -> "Uses":
        """Of one step of the first clients."""
        return Uses(self.samples[:active], self.place[:active, step])

    @property
    def first(self) -> Tensor:
        """The samples with which the step begins, (n, B, in)."""
        return rows(self.samples, self.place)

    def begin(self, x: Tensor) -> int:
        """How many of the inputs x, (n, B + ..., in), are those with which the step begins: B or none."""
        n, batch = self.place.shape
        like = len(x) == n and x.shape[1] >= batch and x.shape[2] == self.samples.shape[2]
        return batch if like and torch.equal(self.first, x[:, :batch]) else 0


class Recurring:
    """What a huge layer knows of these samples since it was last as its weight says."""

    def __init__(self, weight: Tensor, d: Tensor | None, samples: Tensor, scale: float) -> None:
        """weight and d (n, out, in), samples (n, m, in)."""
        self.weight, self.samples, self.scale = weight, samples, scale
        self.y = torch.bmm(samples, weight.mT)
        self.drift = None if d is None else torch.bmm(samples, d.mT)
        self.owed = torch.zeros_like(self.y)

    def outputs(self, place: Tensor) -> Tensor:
        return rows(self.y, place)

    def complete(self, y: Tensor, x: Tensor) -> None:
        """y = x W', of other inputs, and what W is owed."""
        for out, mine, samples, owed in zip(y, x, self.samples, self.owed, strict=True):
            out.addmm_(mine @ samples.T, owed, alpha=self.scale)

    def drift_on(self) -> None:
        """W += scale d, which whoever writes W will do."""
        if self.drift is not None:
            self.y.add_(self.drift, alpha=self.scale)

    def learn(self, x: Tensor, outer: Tensor) -> None:
        """W += scale outer' x, likewise."""
        for y, mine, samples, error in zip(self.y, x, self.samples, outer, strict=True):
            y.addmm_(samples @ mine.T, error, alpha=self.scale)

    def owe(self, place: Tensor, outer: Tensor) -> None:
        """W is owed the part of these rows of outer, (n, B, out)."""
        for owed, index, part in zip(self.owed, place, outer, strict=True):
            owed.index_add_(0, index, part)

    @large_products()
    def settle(self) -> None:
        """W is owed nothing."""
        self.weight.baddbmm_(self.owed.mT, self.samples, alpha=self.scale)
        self.owed.zero_()


def rows(table: Tensor, place: Tensor) -> Tensor:
    """table[k, place[k]] for every k."""
    return table[torch.arange(len(place), device=place.device)[:, None], place]
