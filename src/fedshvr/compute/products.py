"""Products of linear layers, by the better of torch's two libraries for this CPU."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import linear

SMALL = 1 << 13  # numbers in a weight below which a stack's products are written out: baddbmm_ goes client by client,
# and from which on the CPU's better library makes them


@contextmanager
def large_products() -> Iterator[bool]:
    """Products in here are made by the faster of torch's two libraries, in float32 as ever; is it oneDNN?"""
    if not onednn_is_better():
        yield False
        return
    options = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = options.fp32_precision
    if before == "none":
        options.fp32_precision = "bf16"  # "or better": without AMX, oneDNN's kernel for it is that of float32
    try:
        yield before in ("none", "bf16")
    finally:
        options.fp32_precision = before


@cache
def onednn_is_better(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Is this a CPU on which MKL, made for another one, takes twice oneDNN's time; and is oneDNN as exact there?

    By the CPU and the numbers, never by a clock: the same machine must give the same bits every time.
    """
    text = cpuinfo.read_text() if cpuinfo.is_file() else ""
    if "AuthenticAMD" not in text or " avx512f " not in text or not torch.backends.mkldnn.is_available():
        return False
    x, w = (torch.arange(n * 784).mul(step).sin().view(n, 784) for n, step in ((32, 1.7), (512, 2.3)))
    exact, options = x.double() @ w.double().T, torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before, options.fp32_precision = options.fp32_precision, "bf16"
    try:
        error = (x @ w.T - exact).abs().max() / exact.abs().max()
    finally:
        options.fp32_precision = before
    return bool(error < 3e-5)  # of float32 it is 3e-6, and of bfloat16 3e-3


def as_stack(matrix: Tensor) -> Tensor:
    """One client's matrix as a stack of one."""
    return matrix[None] if matrix.dim() == 2 else matrix


def products_with(weight: Tensor) -> AbstractContextManager[bool]:
    """Products with this weight, or a stack of them, are made by the CPU's better library if it is not small."""
    fits = weight.dtype == torch.float32 and weight.device.type == "cpu" and as_stack(weight)[0].numel() >= SMALL
    return large_products() if fits else nullcontext(False)


def affine(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x W' + b of one client, or of a stack."""
    with products_with(weight) as by_onednn:
        if weight.dim() == 2:
            return linear(x, weight, bias)
        learned = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
        if by_onednn and not learned:  # client by client: it would first copy a stack's weights, which lie apart
            y = x.new_empty(*x.shape[:2], weight.shape[1])
            for mine, w, out in zip(x, weight, y, strict=True):
                torch.mm(mine, w.T, out=out)
            return y if bias is None else y.add_(bias[:, None])
        return torch.bmm(x, weight.mT) if bias is None else torch.baddbmm(bias[:, None], x, weight.mT)
