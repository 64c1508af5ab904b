"""A network's parameters as views of one flat vector, and its float buffers (batch norm) as another."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedshvr.compute.dropout import Masks, draws
from fedshvr.compute.linear import FactoredLayers

Forward = Callable[[Tensor], Tensor]


def wide(device: torch.device) -> torch.dtype:
    """The type of counts and metrics: a small one would stop counting, and show the order of the clients."""
    return torch.float32 if device.type == "mps" else torch.float64


def flatten(tensors: list[Tensor]) -> Tensor:
    return torch.cat([t.detach().reshape(-1) for t in tensors]) if tensors else torch.empty(0)


def split_like(vector: Tensor, shapes: list[torch.Size]) -> list[Tensor]:
    """Views of the last dimension of `vector`, one per shape; leading dimensions stay."""
    ends = accumulate(shape.numel() for shape in shapes)
    return [
        vector[..., end - shape.numel() : end].view(*vector.shape[:-1], *shape)
        for end, shape in zip(ends, shapes, strict=True)
    ]


def aligned_rows(rows: Tensor) -> Tensor:
    """A copy whose rows begin on cache lines: matrix products on a stack of clients take half the time then."""
    n, width = rows.shape
    line = 64 // rows.element_size()
    return rows.new_empty(n, -(-width // line) * line)[:, :width].copy_(rows)


def channels_last(network: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Images with their channels beside each other: a CPU's convolutions take a fifth less time so."""
    if inputs[0].dim() != 4 or torch._C._are_functorch_transforms_active():
        return inputs
    return inputs[0].contiguous(memory_format=torch.channels_last), *inputs[1:]


class FlatNet:
    """One network whose parameters are views of `theta`: writing `theta` is loading the network."""

    def __init__(self, network: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
        self.module = network.to(device=device, dtype=dtype)
        named = list(self.module.named_parameters())
        self.names = [name for name, _ in named]
        self.shapes = [p.shape for _, p in named]
        self.params = [p for _, p in named]
        self.theta = flatten(list(self.params))
        self.views = split_like(self.theta, self.shapes)  # for in-place steps, outside autograd
        for p, view in zip(self.params, self.views, strict=True):
            p.data = view
        if device.type == "cpu" and any(isinstance(m, nn.Conv2d) for m in self.module.modules()):
            self.module.register_forward_pre_hook(channels_last)
        self.linears = FactoredLayers(self.module)
        self.masks = Masks(self.module)
        self.random = False  # does a layer draw from torch's generator?
        self.probed: Tensor | None = None  # a few samples to try things on
        self._buffers = {n: b for n, b in self.module.named_buffers() if b.is_floating_point()}

    @property
    def buffers(self) -> Tensor:
        """Batch-norm statistics as one vector: averaged with the clients' weights, never corrected."""
        return flatten(list(self._buffers.values())).to(self.theta.dtype)

    def load_buffers(self, vector: Tensor) -> None:
        buffers = list(self._buffers.values())
        for buffer, value in zip(buffers, split_like(vector, [b.shape for b in buffers]), strict=True):
            buffer.copy_(value)

    def load(self, theta: Tensor, buffers: Tensor) -> None:
        self.theta.copy_(theta)
        self.load_buffers(buffers)

    def __call__(self, x: Tensor, learned: int | None = None) -> Tensor:
        """Of how many of the first samples will anybody ask a gradient? None: of all."""
        self.linears.learned = learned
        return self.module(x)

    def at(self, vector: Tensor) -> Forward:
        """The same network at other parameters; its batch-norm statistics are not touched."""
        tensors = dict(zip(self.names, split_like(vector, self.shapes), strict=True))
        tensors |= {name: b.clone() for name, b in self.module.named_buffers()}

        def forward(x: Tensor) -> Tensor:
            with self.linears.plain():
                return functional_call(self.module, tensors, (x,))

        return forward

    def untracked(self, x: Tensor) -> Tensor:
        """A forward pass at the current parameters, with gradient, that leaves batch-norm statistics alone."""
        with self.linears.read():
            if not self._buffers:
                return self.module(x)
            return functional_call(self.module, {n: b.clone() for n, b in self.module.named_buffers()}, (x,))

    def probe(self, x: Tensor) -> None:
        """Find out with a few images whether the network has random layers beside dropout."""
        self.probed = x
        self.module.train()
        with self.no_masks():  # there is no step yet whose number the masks could be made from
            self.random = draws(self.untracked, x)

    @torch.no_grad()
    def stacks(self) -> bool:
        """Does vmap know all that the network does? Of nn.GRU and nn.LSTM, say, it does not."""
        x = self.probed
        if x is None:
            return True
        try:
            with self.no_masks():
                torch.vmap(lambda theta: self.at(theta)(x))(self.theta[None])
        except RuntimeError:
            return False
        return True

    def same_masks(self) -> AbstractContextManager[None]:
        """All passes in here drop the same units."""
        return self.masks.same()

    def no_masks(self) -> AbstractContextManager[None]:
        """Passes in here drop nothing."""
        return self.masks.none()


class StackedNet:
    """What an objective sees inside vmap: the network at one client's slice of the stacked parameters."""

    def __init__(self, net: FlatNet, rows: list[Tensor], one: Callable[[Tensor], Tensor]) -> None:
        self.net, self.rows, self.one = net, rows, one
        self.same_masks, self.no_masks = net.same_masks, net.no_masks

    @cached_property
    def params(self) -> list[Tensor]:
        return [self.one(rows) for rows in self.rows]

    def __call__(self, x: Tensor, learned: int | None = None) -> Tensor:
        self.net.linears.learned = learned
        with self.net.linears.factored(self):
            return self._forward(x) if self.net.linears.others else self.net.module(x)

    def _forward(self, x: Tensor) -> Tensor:
        return functional_call(self.net.module, dict(zip(self.net.names, self.params, strict=True)), (x,))

    def at(self, vector: Tensor) -> Forward:
        return self.net.at(vector)

    def untracked(self, x: Tensor) -> Tensor:
        with self.net.linears.read(self):
            return self._forward(x)


def together(net: Callable[..., Tensor], *inputs: Tensor, aside: Sequence[Tensor] = ()) -> tuple[Tensor, ...]:
    """One forward pass over several batches (one launch, one batch-norm population), split again.

    Those aside, last, are seen by the same network, but nobody asks a gradient of them.
    """
    sizes = [len(x) for x in (*inputs, *aside)]
    learned = {"learned": sum(sizes[: len(inputs)])} if aside else {}
    return net(torch.cat([*inputs, *aside]), **learned).split(sizes)
