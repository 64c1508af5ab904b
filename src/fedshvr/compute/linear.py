"""Linear layers whose weight gradient stays in its factors, so that a local step never writes it out.

The gradient of W in y = x W' + b is (dloss/dy)' x. Autograd would make this product, as large as W, only to have it
added to the parameter and thrown away. Here the backward pass keeps dloss/dy and x, and the step adds their product to
the parameter in one call. Works on one client's (B, in) and, under vmap, on many clients' (n, B, in) alike.

On a CPU the step of a weight that no cache holds waits until the weight is next read: see Due. And of samples that
recur such a layer keeps the outputs: see Recurring.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import product
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from fedshvr.compute.products import SMALL, affine, as_stack, large_products, products_with
from fedshvr.compute.recurring import Recurring, Uses
from fedshvr.compute.stacked import current_vmap, for_all

LARGE = 1 << 18  # numbers in a weight from which on a client alone gains: less than this, autograd's own code is faster
HUGE = 1 << 20  # numbers in a weight from which on a CPU its step is made together with the next forward pass
PART = 2 << 20  # bytes of it that are in hand at a time


class Factors(NamedTuple):
    """One use of a layer: gradient of parameter `weight` is outer' x, and that of parameter `bias` is outer' 1."""

    weight: int  # the position among the network's parameters
    bias: int | None
    outer: Tensor
    x: Tensor

    def add_to(self, views: list[Tensor], scale: float) -> None:
        """views[i] += scale * gradient of parameter i."""
        self.add_bias_to(views, scale)
        weight = views[self.weight]
        with products_with(weight):
            if self.outer.dim() == 2:
                weight.addmm_(self.outer.mT, self.x, alpha=scale)
            elif weight[0].numel() >= SMALL:
                weight.baddbmm_(self.outer.mT, self.x, alpha=scale)
            else:
                weight.add_(torch.bmm(self.outer.mT, self.x), alpha=scale)

    def add_bias_to(self, views: list[Tensor], scale: float) -> None:
        if self.bias is not None:
            views[self.bias].add_(self.outer.sum(-2), alpha=scale)


class Due(NamedTuple):
    """weight += scale (times d + sum of outer' x), to be done when the weight is next read.

    It is done part by part, and each part serves the forward pass while it is in the cache: so a weight of 16 MB comes
    from main memory once for its step and the pass after it, not three times. All tensors are those of a stack.
    """

    weight: Tensor  # (n, out, in)
    d: Tensor | None
    factors: list[Factors]
    scale: float
    times: int = 1

    @large_products()
    def settle(self, x: Tensor | None = None, y: Tensor | None = None) -> None:
        """Do it; and y = x W' of every client if there is an x, (n, B, in)."""
        clients, rows, width = self.weight.shape
        size = max(1, PART // (width * self.weight.element_size()))
        for k, start in product(range(clients), range(0, rows, size)):
            part, now = self.weight[k, start : start + size], slice(start, start + size)
            if self.d is not None:
                part.add_(self.d[k, now], alpha=self.scale * self.times)
            for factor in self.factors:
                part.addmm_(factor.outer[k, :, now].mT, factor.x[k], alpha=self.scale)
            if x is not None and y is not None:
                torch.mm(x[k], part.mT, out=y[k, :, now])


class Stack(Protocol):
    """Parameters of many clients."""

    rows: list[Tensor]  # all clients' values of each, (n, ...)

    @property
    def params(self) -> list[Tensor]: ...  # one client's, as vmap shows it


class FactoredLayers:
    """The linear layers of a network, whose gradients can be had in factors."""

    def __init__(self, network: nn.Module) -> None:
        self.on = self.reading = False
        self.stack: Stack | None = None  # the stacked clients, under vmap
        self.learned: int | None = None  # how many of a pass's first samples get a gradient; None: all
        self.found: list[Factors] = []
        self.due: dict[int, Due] = {}  # steps of huge weights that wait, by the weight's position
        self.uses: Uses | None = None  # samples that recur and are now used
        self.recurring: dict[int, Recurring] = {}  # what huge layers know of them, likewise
        position = {id(p): i for i, p in enumerate(network.parameters())}
        self.others = set(position.values())  # parameters that are in no such layer
        self.weights: list[Tensor] = []
        for layer in network.modules():
            if type(layer) is nn.Linear:  # a parametrised layer has another type: its weight is not a parameter
                bias = None if layer.bias is None else position[id(layer.bias)]
                layer.forward = LayerForward(self, layer, position[id(layer.weight)], bias)  # type: ignore
                self.others -= {position[id(layer.weight)], bias}
                self.weights.append(layer.weight)

    def take(self) -> list[Factors]:
        """What the last backward pass left."""
        found, self.found = self.found, []
        return found

    @property
    def huge(self) -> bool:
        """Is there a weight whose step may wait?"""
        return any(waits(weight) for weight in self.weights)

    @large_products()
    def put_off(self, step: Due, whole: bool) -> None:
        """Leave the step of a huge weight to whoever reads it next, but for the part of samples that recur.

        It is the whole step, or something else is added to the weight as well.
        """
        position = step.factors[0].weight
        if not whole and position in self.recurring:
            self.settle(position)
            del self.recurring[position]
        left = self.keep(position, step, self.uses) if whole and self.uses else step.factors
        earlier = self.due.pop(position, None)
        before, times = (earlier.factors, earlier.times) if earlier else ([], 0)
        self.due[position] = step._replace(factors=before + left, times=times + 1)

    def keep(self, position: int, step: Due, uses: Uses) -> list[Factors]:
        """Make the step of samples that recur; returns what is left of its factors for the weight."""
        begin = [uses.begin(f.x) for f in step.factors]
        if any(begin) and position not in self.recurring:
            self.settle(position)
            self.recurring[position] = Recurring(step.weight, step.d, uses.samples, step.scale)
        known = self.recurring.get(position)
        if known is None:
            return step.factors
        known.drift_on()
        for f, first in zip(step.factors, begin, strict=True):
            known.learn(f.x, f.outer)
            if first:
                known.owe(uses.place, f.outer[:, :first])
        rest = [(f, first) for f, first in zip(step.factors, begin, strict=True) if first < f.x.shape[1]]
        return [f._replace(outer=f.outer[:, first:], x=f.x[:, first:]) for f, first in rest]

    @large_products()
    def product(self, position: int, weight: Tensor, x: Tensor) -> Tensor:
        """x W' of a stack, (n, B, in), with W as it is after all its steps."""
        known, first = self.recurring.get(position), 0
        y = x.new_empty(len(x), x.shape[1], weight.shape[1])
        if known and self.uses and (first := self.uses.begin(x)):
            y[:, :first] = known.outputs(self.uses.place)
        if first < x.shape[1]:
            others, of_others = x[:, first:], y[:, first:]
            if due := self.due.pop(position, None):
                due.settle(others, of_others)
            else:
                of_others.copy_(affine(others, weight, None))
            if known:
                known.complete(of_others, others)
        return y

    def settle(self, weight: int | None = None) -> None:
        """Make the steps that wait, of one weight or of all: before a parameter is read other than by its layer."""
        for position in list(self.due) if weight is None else [weight] if weight in self.due else []:
            self.due.pop(position).settle()
        for position in list(self.recurring) if weight is None else [weight] if weight in self.recurring else []:
            self.recurring[position].settle()
        if weight is None:  # whoever asks may write the parameters
            self.uses, self.recurring = None, {}

    def forget(self) -> None:
        """Drop what a pass that was broken off has left."""
        self.found, self.due, self.uses, self.recurring = [], {}, None, {}

    def factored(self, stack: "Stack | None" = None, on: bool = True) -> AbstractContextManager[None]:
        """Backward passes of what is computed in here leave Factors, which `take` hands out."""
        return self._passes(on, False, stack)

    def plain(self) -> AbstractContextManager[None]:
        """Ordinary gradients in here, for whoever differentiates a second time or at other parameters."""
        return self.factored(on=False)

    def read(self, stack: "Stack | None" = None) -> AbstractContextManager[None]:
        """The same at the parameters as they are; a pass without gradients leaves to a huge weight what it is owed."""
        return self._passes(False, True, stack)

    @contextmanager
    def _passes(self, on: bool, reading: bool, stack: "Stack | None") -> Iterator[None]:
        before = self.on, self.reading, self.stack
        self.on, self.reading, self.stack = on, reading, stack
        try:
            yield
        finally:
            self.on, self.reading, self.stack = before


class LayerForward:
    """A layer's forward pass, factored or plain."""

    def __init__(self, layers: FactoredLayers, layer: nn.Linear, weight: int, bias: int | None) -> None:
        self.layers, self.layer, self.weight, self.bias = layers, layer, weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        stack = self.layers.stack
        if self.layers.reading:
            return self._read(x, stack)
        if stack is None:
            weight, bias = self.layer.weight, self.layer.bias
            large = weight.numel() >= LARGE and not torch._C._are_functorch_transforms_active()
            if large and self.layers.on and plain(x):
                return FactoredLinear.apply(x, weight, bias, self)
            self.layers.settle(self.weight)
            return self._elsewhere(x, weight, bias)
        vmap = current_vmap()
        if vmap is None or not (self.layers.on and plain(x)):
            self.layers.settle(self.weight)
            return linear(x, *self._mine(stack.params))
        return for_all(vmap, lambda x: FactoredLinear.apply(x, *self._mine(stack.rows), self), x)

    @staticmethod
    def _elsewhere(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x W' + b of a plain pass: vmap would copy huge weights that lie apart, such as the clients' teachers."""
        vmap = current_vmap()
        if vmap is None or not (plain(x) and waits(weight)):
            return affine(x, weight, bias)
        y = for_all(vmap, lambda x, weight: affine(x, weight, None), x, weight)
        return y if bias is None else y + bias

    def _read(self, x: Tensor, stack: Stack | None) -> Tensor:
        vmap, only_read = current_vmap(), plain(x) and not torch.is_grad_enabled()
        if stack is not None and vmap is not None and only_read:
            return for_all(vmap, lambda x: self.now(x, *self._mine(stack.rows)), x)
        if only_read and not torch._C._are_functorch_transforms_active():
            return self.now(x, self.layer.weight, self.layer.bias)
        self.layers.settle(self.weight)
        return affine(x, self.layer.weight, self.layer.bias)

    def now(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x W' + b with W as it is after all its steps, of one client or of a stack."""
        if self.weight not in self.layers.due and self.weight not in self.layers.recurring:
            return affine(x, weight, bias)
        y = self.layers.product(self.weight, as_stack(weight), as_stack(x)).view(*x.shape[:-1], -1)
        return y if bias is None else y.add_(bias.unsqueeze(-2))

    def _mine(self, params: list[Tensor]) -> tuple[Tensor, Tensor | None]:
        return params[self.weight], None if self.bias is None else params[self.bias]

    def note(self, outer: Tensor, x: Tensor) -> None:
        self.layers.found.append(Factors(self.weight, self.bias, outer, x.detach()))


def plain(x: Tensor) -> bool:
    """Is this a plain batch of vectors, in an ordinary pass?"""
    return x.dim() == 2 and not (torch.compiler.is_compiling() or torch.is_autocast_enabled(x.device.type))


def waits(weight: Tensor) -> bool:
    """Is this weight, one client's or a stack of them, so large that its step should wait?"""
    return as_stack(weight)[0].numel() >= HUGE


class FactoredLinear(torch.autograd.Function):
    """x W' + b; the gradients of W and b are noted in factors, that of x flows on."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, layer: LayerForward) -> Tensor:
        ctx.save_for_backward(x)
        ctx.weight, ctx.layer, ctx.learned, layers = weight, layer, layer.layers.learned, layer.layers
        if ctx.needs_input_grad[0] and layer.weight in layers.recurring:
            layers.settle(layer.weight)  # the backward pass reads the weight
        return layer.now(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        ctx.layer.note(outer[..., : ctx.learned, :], x[..., : ctx.learned, :])
        return (outer @ ctx.weight if ctx.needs_input_grad[0] else None), None, None, None
