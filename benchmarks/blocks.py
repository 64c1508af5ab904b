"""Would the first layer's products of several coming steps at once be faster? Not built: this is why.

With W_0 at the start of a block and the batches x_s known in advance, the outputs of step s are
    x_s W_0' - eta sum_{r<s} (x_s x_r') g_r,    and after the block  W = W_0 - eta sum_r g_r' x_r:
two large products instead of two small ones a step, and two more for the Gram matrix and the low-rank part.
"""

import time
from collections.abc import Callable
from math import prod
from statistics import median
from typing import Any

import torch
from fedavg import Rows
from loops import MNIST
from timing import interleaved, ratios

from fedshvr.compute.linear import Due, Factors

BLOCKS = (2, 4, 8)
REPEATS = 9


def step_by_step(x: torch.Tensor, g: torch.Tensor, w: torch.Tensor) -> None:
    for x_s, g_s in zip(x, g, strict=True):
        torch.mm(x_s, w.T)
        w.addmm_(g_s.T, x_s, alpha=-1e-9)


def waiting(x: torch.Tensor, g: torch.Tensor, w: torch.Tensor) -> None:
    """What is built: a step is made together with the next forward pass (fedshvr.compute.linear)."""
    for x_s, g_s, x_next in zip(x, g, x.roll(-1, 0), strict=True):
        Due(w[None], None, [Factors(0, None, g_s[None], x_s[None])], -1e-9).settle(x_next[None])


def block_by_block(x: torch.Tensor, g: torch.Tensor, w: torch.Tensor, size: int) -> None:
    for x_b, g_b in zip(x.split(size), g.split(size), strict=True):
        batch, images, gradients = x_b.shape[1], x_b.flatten(0, 1), g_b.flatten(0, 1)
        outputs, gram = images @ w.T, images @ images.T
        for s in range(1, len(x_b)):
            here, before = slice(s * batch, (s + 1) * batch), slice(s * batch)
            outputs[here].addmm_(gram[here, before], gradients[before], alpha=1e-9)
        w.addmm_(gradients.T, images, alpha=-1e-9)


def seconds(function: Callable[..., None], *arguments: Any) -> Callable[[], float]:
    def run() -> float:
        started = time.perf_counter()
        function(*arguments)
        return time.perf_counter() - started

    return run


def blocks(repeats: int, small: bool) -> Rows:
    """Seconds of the first layer in blocks of so many steps over those step by step, in one thread."""
    torch.set_num_threads(1)
    table = []
    for hidden, batch in ((8, 4),) if small else ((200, 32), (200, 64), (5_000, 32), (5_000, 64)):
        steps = max(BLOCKS) * (1 if hidden >= 5_000 else 8)
        x, g = torch.randn(steps, batch, prod(MNIST)), torch.randn(steps, batch, hidden)
        w = torch.randn(hidden, prod(MNIST))
        rounds = {0: seconds(step_by_step, x, g, w), 1: seconds(waiting, x, g, w)}
        rounds |= {n: seconds(block_by_block, x, g, w, n) for n in BLOCKS}
        found = interleaved({str(n): run for n, run in rounds.items()}, REPEATS)
        ratio = {n: median(ratios(found, str(n), "0")) for n in (1, *BLOCKS)}
        table.append(
            {"network": f"784-{hidden}-10, batch {batch}", "ms": 1e3 * median(found["0"]) / steps, "ratio": ratio}
        )
    return {"blocks": {"table": table}}
