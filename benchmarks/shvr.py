"""Fed-SHVR against a bare loop of it, FedAvg, the machine's rate of products and the passes of CNN13."""

import os
from dataclasses import replace
from statistics import median

from fedavg import ALONE, Rows
from loops import LAPTOP, PAPER, Workload, least_operations, stick, workload
from ours import ours
from sticks import passes, product, product_operations
from timing import Fleet, Seconds, against, race, spread

CNN = Workload("cnn13", 2, 330, (3, 32, 32), 0, 32, labeled=10, width=0.25)
PART = 4  # of the paper's 371 steps a round and of its unlabelled samples, one in so many


def laptop(repeats: int, small: bool) -> Rows:
    """MNIST Non-IID at laptop scale against the bare loop of Fed-SHVR."""
    work = LAPTOP.shrunk() if small else LAPTOP
    contestants = {"bare": stick("shvr", work), "ours": ours(work, "fed_shvr")}
    return {"laptop": {**against(race(contestants, repeats), "ours", "bare"), **contestants["ours"].ready()}}


def paper(repeats: int, small: bool) -> Rows:
    """The paper's size: which share of the machine's product rate the least operations of a round reach."""
    work = PAPER.shrunk() if small else replace(PAPER, samples=60 + 5_940 // PART)
    size, cores = 64 if small else 3072, os.cpu_count() or 1
    contestants = {
        "ours": ours(work, "fed_shvr"),
        "processes": Fleet([product(size, 1) for _ in range(cores)]),
        "threads": product(size, cores),
    }
    seconds = race(contestants, repeats, warmup=1)
    made = {"processes": cores * product_operations(size), "threads": product_operations(size)}
    rates = {kind: [made[kind] / s for s in seconds[kind]] for kind in made}
    best = max(rates, key=lambda kind: median(rates[kind]))
    needs = least_operations(work)
    shares = [needs / s / rate for s, rate in zip(seconds["ours"], rates[best], strict=True)]
    facts = {"tflop": needs / 1e12, "part": PART, "seconds": {"ours": median(seconds["ours"])}}
    facts["gflops"] = {kind: median(rate) / 1e9 for kind, rate in rates.items()}
    return {"paper": {**spread(shares), **facts, **contestants["ours"].ready()}}


def control_variates(repeats: int, small: bool) -> Rows:
    """The time of a round with Fed-SHVR's correction over that without it."""
    work = workload("wide", small)
    seconds = race({"plain": ours(work), "corrected": ours(work, "control_variates")}, repeats)
    return {"control_variates": against(seconds, "corrected", "plain")}


def against_fedavg(repeats: int, small: bool) -> Rows:
    """Fed-SHVR, all of it, against FedAvg on as many samples a step; both without and both with translation."""
    rows: Rows = {}
    for name, pixels in (("fed_shvr", 0), ("fed_shvr_translate2", 2)):
        mlp = replace(workload("mlp", small), pixels=pixels)
        half, whole = replace(mlp, labeled=mlp.samples // 100 or 1), replace(mlp, batch=2 * mlp.batch, epochs=2)
        seconds = race({"fedavg": ours(whole), "fed_shvr": ours(half, "fed_shvr")}, repeats)
        steps = {"fedavg": mlp.clients * whole.steps, "fed_shvr": sum(map(half.steps_on, half.unlabeled))}
        rows[name] = against(each(seconds, steps), "fed_shvr", "fedavg")
    return rows


def cnn13(repeats: int, small: bool) -> Rows:
    """CNN13 against its passes by a client: local steps alone and the whole round, one process of one thread each.

    With the default options the clients share the cores, which the passes do not: a row for information.
    """
    work = replace(CNN, samples=CNN.labeled + 2 * CNN.batch) if small else CNN
    clients = {"ours": work.clients, "default": work.clients, "network": 1}
    steps = {
        "network": passes(work, labels=False),
        "ours": ours(work, "fed_shvr_steps", **ALONE),
        "default": ours(work, "fed_shvr_steps"),
    }
    seconds = each(race(steps, repeats, warmup=1), clients)
    whole = {"network": passes(work, labels=True), "ours": ours(work, "fed_shvr", **ALONE)}
    return {
        "cnn13_steps": against(seconds, "ours", "network"),
        "cnn13_steps_default": against(seconds, "default", "network"),
        "cnn13": against(each(race(whole, repeats, warmup=1), clients), "ours", "network"),
    }


def each(seconds: Seconds, parts: dict[str, int]) -> Seconds:
    """Seconds of a step, or of a client, from those of a round."""
    return {name: [value / parts[name] for value in values] for name, values in seconds.items()}
