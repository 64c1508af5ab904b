"""The cores of this machine, and an allocator that keeps what is freed."""

import ctypes
import math
import os
import platform
from pathlib import Path

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


def cpu_name(info: Path = Path("/proc/cpuinfo")) -> str:
    lines = info.read_text().splitlines() if info.is_file() else []
    names = (line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


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
