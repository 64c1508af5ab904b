"""The cost of a round as the work grows, each with the exponent of a power law."""

import os
from collections.abc import Sequence
from dataclasses import replace
from math import log
from statistics import linear_regression
from typing import Any

from fedavg import Rows
from loops import LAPTOP, MNIST, Workload, workload
from ours import ours
from timing import Contestant, Seconds, against, race, spread

REPEATS = 3  # of a point
TOTAL = 80_000  # samples of all clients: 8 for each of 10,000


def exponent(x: Sequence[float], y: Sequence[float]) -> float:
    """b of y = a x^b by least squares of the logarithms."""
    return linear_regression([log(v) for v in x], [log(v) for v in y]).slope


def curve(points: dict[float, Contestant]) -> dict[str, Any]:
    """Seconds a round at each point, the points in turn; the exponent over all of them and over the last two."""
    seconds = race({str(x): contestant for x, contestant in points.items()}, REPEATS, warmup=1)
    x, found = list(points), [spread(values) for values in seconds.values()]
    y = [f["ours"] for f in found]
    quartiles = [f["quartiles"] for f in found]
    fits = {"exponent": exponent(x, y), "last": exponent(x[-2:], y[-2:])}
    return {"x": x, "seconds": y, "quartiles": quartiles, **fits}


def federation_of(clients: int, small: bool) -> Workload:
    """The same samples and the same 10,000 local steps in all, however many clients have them."""
    samples = (TOTAL // 100 if small else TOTAL) // clients
    return Workload("clients", clients, samples, MNIST, 8 if small else 200, 32, epochs=4)


def many_clients(repeats: int, small: bool) -> Rows:
    """10,000 clients against 10."""
    few, many = (2, 20) if small else (10, 10_000)
    seconds: Seconds = race({"few": ours(federation_of(few, small)), "many": ours(federation_of(many, small))}, repeats)
    return {"scaling": against(seconds, "many", "few")}


def by_clients(small: bool) -> dict[str, Any]:
    counts = (2, 20) if small else (10, 100, 1_000, 10_000)
    return curve({n: ours(federation_of(n, small)) for n in counts})


def by_parameters(small: bool) -> dict[str, Any]:
    """FedAvg of two clients with four steps of 32 samples each; the MLP's hidden layer grows."""
    works = [Workload("parameters", 2, 128, MNIST, 10**n * 100 // 795, 32) for n in range(2, 4 if small else 7)]
    return curve({10 + 795 * work.hidden: ours(work) for work in works})


def by_samples(small: bool) -> dict[str, Any]:
    """Fed-SHVR with ten clients of 100 steps on 8x8 images: more unlabelled samples cost their labelling alone."""
    points, each = {}, (10, 100) if small else (100, 1_000, 10_000, 100_000)
    for m in each:
        work = Workload("samples", 10, 10 + m, (1, 8, 8), 200, 32, epochs=3_200 / m, labeled=10)
        points[10 * m] = ours(work, "fed_shvr")
    found = curve(points)
    said = [contestant.ready() for contestant in points.values()]
    return {**found, "setup": [what["setup"] + what["start"] for what in said]}


def by_cores(work: Workload, method: str) -> dict[str, Any]:
    """As many processes of one thread; -1 is ideal."""
    cores = os.cpu_count() or 1
    counts = sorted({1, *(2**i for i in range(1, cores.bit_length())), cores} & set(range(1, cores + 1)))
    counts = counts if len(counts) > 1 else [1, 2]
    return curve({n: ours(work, method, threads=1, **{"trainer.devices": n}) for n in counts})


def curves(repeats: int, small: bool) -> Rows:
    found = {"clients": by_clients(small), "parameters": by_parameters(small), "samples": by_samples(small)}
    laptop = LAPTOP.shrunk() if small else replace(LAPTOP, epochs=1)
    for name, work, method in (
        ("mlp", workload("mlp", small), "fedavg"),
        ("wide", workload("wide", small), "fedavg"),
        ("Fed-SHVR", laptop, "fed_shvr"),
    ):
        found[f"cores, {name}"] = by_cores(work, method)
    return {"curves": found}
