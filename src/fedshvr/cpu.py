"""How this process uses the processor: its threads, and an allocator that keeps what is freed."""

import ctypes
import os
import platform

import torch
from torch import nn

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
SMALL = 500_000  # parameters of a fully connected network whose products are too small to share


def keep_freed_memory() -> None:
    """Tell glibc not to hand freed blocks back: a local step's gradient would be fresh, unmapped pages every time."""
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, 256 << 20)
        libc.mallopt(_M_TRIM_THRESHOLD, 1 << 30)


def share_cores(network: nn.Module, processes: int, threads: int | None) -> None:
    """Threads of this process: as asked, else one for a small network, else its share of the machine's cores.

    The rule looks at the network alone: the number of threads shows in the last bits of every product.
    """
    if threads is None and "OMP_NUM_THREADS" in os.environ:
        return
    convolutional = any(isinstance(m, nn.Conv2d) for m in network.modules())
    small = not convolutional and sum(p.numel() for p in network.parameters()) <= SMALL
    share = max(1, (os.cpu_count() or 1) // processes)
    torch.set_num_threads(threads or (1 if small else share))
