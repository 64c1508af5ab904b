"""What the numbers were measured on, and what else went on there at the same time."""

import os
import platform
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedshvr.compute.cpu import cpu_name

STAT = Path("/proc/stat")


def machine() -> dict[str, Any]:
    """Nothing that names the machine."""
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count() or 0,
        "system": platform.system(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
    }


@contextmanager
def watched() -> Iterator[dict[str, float]]:
    """Fills in the shares of the machine's CPU time that went to others and that the host took away meanwhile.

    Ours is what this process and the children that have ended used, so contestants must be closed in here.
    """
    shares: dict[str, float] = {}
    before, own = _cpu(), _own()
    yield shares
    if before:
        total, busy, stolen = (now - then for now, then in zip(_cpu(), before, strict=True))
        others = busy - (_own() - own)
        shares |= {"others": max(0.0, others / total), "stolen": stolen / total} if total else {}


def _cpu() -> tuple[float, ...]:
    """Seconds of all cores since boot: total, busy here, stolen by the host."""
    if not STAT.exists():
        return ()
    names = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
    spent = dict(zip(names, map(int, STAT.read_text().splitlines()[0].split()[1:9]), strict=True))
    idle = spent["idle"] + spent["iowait"]
    total, ticks = sum(spent.values()), os.sysconf("SC_CLK_TCK")
    return total / ticks, (total - idle - spent["steal"]) / ticks, spent["steal"] / ticks


def _own() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)
