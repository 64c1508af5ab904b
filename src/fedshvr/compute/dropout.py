"""Dropout whose masks are a function of (seed, round, client, step, layer, pass), as all randomness here.

torch's own dropout draws from one generator, so the masks would depend on the engine and on the order of the clients.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fedshvr.compute.stacked import current_vmap, for_all
from fedshvr.compute.streams import _GOLDEN, _mix, stream_seed

WHOLE_CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
KINDS = (nn.Dropout, *WHOLE_CHANNELS)  # not their subclasses, which may do otherwise
LEVELS = 1 << 16  # a mask takes 16 random bits an entry: p is a multiple of 1 / LEVELS


class Masks:
    """The dropout layers of a network. Before each step they are given the client's random number of that step."""

    def __init__(self, network: nn.Module) -> None:
        self.number = torch.zeros((), dtype=torch.float64)
        self.off = self.held = False
        self.layers: list[MaskForward] = []
        for layer in network.modules():
            if isinstance(layer, KINDS) and type(layer) in KINDS and layer.p > 0:
                self.layers.append(MaskForward(self, layer, len(self.layers)))
                layer.forward = self.layers[-1]  # type: ignore

    def begin_step(self, number: Tensor | None) -> None:
        if number is not None:
            self.number = number
            for layer in self.layers:
                layer.passes = 0

    @contextmanager
    def same(self) -> Iterator[None]:
        """All passes in here drop the same units."""
        self.held = True
        try:
            yield
        finally:
            self.held = False
            for layer in self.layers:
                layer.passes += 1

    @contextmanager
    def none(self) -> Iterator[None]:
        """Passes in here drop nothing."""
        before, self.off = self.off, True
        try:
            yield
        finally:
            self.off = before


class MaskForward:
    """A dropout layer's forward pass: x * mask / (1 - p)."""

    def __init__(
        self, masks: Masks, layer: nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d, index: int
    ) -> None:
        self.masks, self.layer, self.index, self.passes = masks, layer, index, 0

    def __call__(self, x: Tensor) -> Tensor:
        if not self.layer.training or self.masks.off:
            return x
        shape = x.shape[:2] if type(self.layer) in WHOLE_CHANNELS else x.shape
        dropped = round(self.layer.p * LEVELS)
        path = stream_seed("mask", self.index, self.passes)
        self.passes += not self.masks.held
        number, vmap = self.masks.number, current_vmap()
        if vmap is None:
            mask = keep(number[None], path, shape, dropped)[0]
        else:
            mask = for_all(vmap, lambda numbers: keep(numbers, path, shape, dropped), number)
        scale = LEVELS / max(LEVELS - dropped, 1)
        return x * (mask.view(*shape, *[1] * (x.dim() - len(shape))).to(x.dtype) * scale)


def keep(numbers: Tensor, path: int, shape: torch.Size, dropped: int) -> Tensor:
    """(n, *shape), true where a unit stays: four of them from each 64 bits."""
    key = _mix((numbers * 2.0**53).long() + path)
    position = torch.arange(1, -(-shape.numel() // 4) + 1, device=numbers.device)
    bits = _mix(key[:, None] + position * _GOLDEN).view(torch.int16)
    return (bits[:, : shape.numel()] >= dropped - LEVELS // 2).view(len(numbers), *shape)


def draws(forward: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    """Does this pass take numbers from torch's generator, on whatever device?"""
    with torch.no_grad(), torch.random.fork_rng([]), Watch() as watch:
        forward(x)
    return watch.seen


class Watch(TorchDispatchMode):
    """Notes whether an operation in here is random."""

    seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen |= torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))
