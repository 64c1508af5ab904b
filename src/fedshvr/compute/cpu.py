"""The cores of this machine, the library that multiplies large matrices, and an allocator that keeps what is freed."""

import ctypes
import math
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


def cpu_count() -> int:
    """Cores that this process may use: by its affinity, its container and LOKY_MAX_CPU_COUNT, joblib's limit."""
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(max(1, min(own, quota(), int(os.environ.get("LOKY_MAX_CPU_COUNT", own)))))


def quota(groups: Path = Path("/sys/fs/cgroup")) -> float:
    """The cores that the control group of a container grants: "limit period" in version 2, two files in version 1."""
    names = ["cpu.max"] if (groups / "cpu.max").is_file() else ["cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"]
    numbers = " ".join((groups / name).read_text() for name in names if (groups / name).is_file()).split()
    limit, period = numbers if len(numbers) == 2 else ("max", "1")
    return math.inf if limit == "max" or int(limit) <= 0 else math.ceil(int(limit) / int(period))


def keep_freed_memory() -> None:
    """Tell glibc not to hand freed blocks back: a local step's gradient would be fresh, unmapped pages every time."""
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, 256 << 20)
        libc.mallopt(_M_TRIM_THRESHOLD, 1 << 30)


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
