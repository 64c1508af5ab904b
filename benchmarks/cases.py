"""What is measured: each case gives the rows of the results, as ratios of interleaved rounds."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from loops import (
    CLASSES,
    MNIST,
    WORKLOADS,
    BareLoop,
    Elsewhere,
    Workload,
    accuracy,
    interleaved,
    network,
    ratio,
    synthetic,
)
from ours import Ours, federated, trainer
from source import ROOT

from fedshvr.algorithms.aggregation import Normalized
from fedshvr.algorithms.corrections import ControlVariates
from fedshvr.algorithms.objectives.ramp import Ramp
from fedshvr.algorithms.objectives.soft_pseudo_label import SoftPseudoLabel
from fedshvr.compute.streams import Draws
from fedshvr.data import sources
from fedshvr.data.augment import Shift
from fedshvr.models.cnn13 import CNN13
from fedshvr.running.profiling import Profile

Rows = dict[str, dict[str, Any]]
TRIALS = 2  # rounds that are not counted


def against_bare(name: str, repeats: int, small: bool) -> Rows:
    """FedAvg on a workload: the bare loop, the hand-written floor, and ours with engine=auto and sequential."""
    work = WORKLOADS[name].shrunk() if small else WORKLOADS[name]
    x, y = synthetic(work)
    with (
        closing(Elsewhere("bare", name, small)) as bare,
        closing(Elsewhere("floor", name, small)) as floor,
        closing(Ours(federated(work, x, y, network(work), engine="auto"))) as ours,
        closing(Ours(federated(work, x, y, network(work), engine="sequential"))) as sequential,
    ):
        contestants = {"bare": bare, "floor": floor, "ours": ours, "sequential": sequential}
        seconds = interleaved({key: c.round for key, c in contestants.items()}, repeats, TRIALS)
        seconds["epoch"] = ours.epochs[-repeats:]
        engine = ours.module.run_clients.__name__
    row = {contestant: ratio(seconds, contestant, "bare") for contestant in ("ours", "epoch", "sequential", "floor")}
    return {name: {**row, "engine": engine, "seconds": {k: median(v) for k, v in seconds.items()}, "repeats": repeats}}


def profile(repeats: int, small: bool) -> Rows:
    """Where the time of a round goes, by engine: shares of the phases that profile=true prints."""
    shares = {}
    for name in ("mlp", "wide"):
        work = WORKLOADS[name].shrunk() if small else WORKLOADS[name]
        for engine in ("sequential", "vectorized"):
            timed = Profile()
            trainer(timed, max_epochs=3).fit(federated(work, *synthetic(work), network(work), engine=engine))
            shares[f"{name}, {engine}"] = timed.shares()
    return {"profile": shares}


def two_ranks(name: str, repeats: int, small: bool) -> Rows:
    """The same on two processes of one thread each; the bare loop runs in one of them while the other waits."""
    command = [sys.executable, str(ROOT / "benchmarks/ranks.py"), name, str(repeats), str(int(small))]
    return {f"{name}_ranks": json.loads(_last_line(command))}


def control_variates(repeats: int, small: bool) -> Rows:
    """The time of a round with Fed-SHVR's correction over that without it."""
    work = WORKLOADS["wide"].shrunk() if small else WORKLOADS["wide"]
    x, y = synthetic(work)
    with (
        closing(Ours(federated(work, x, y, network(work)))) as plain,
        closing(Ours(federated(work, x, y, network(work), correction=ControlVariates()))) as corrected,
    ):
        seconds = interleaved({"plain": plain.round, "corrected": corrected.round}, repeats)
    return {"control_variates": _against(seconds, "corrected", "plain")}


def soft_pseudo_label() -> SoftPseudoLabel:
    return SoftPseudoLabel(alpha0=1.0, alpha1=0.75, alpha2=0.1, ramp=Ramp(0, "none"))


def fed_shvr(repeats: int, small: bool) -> Rows:
    """Fed-SHVR, all of it, against FedAvg on as many samples a step; both without and both with translation."""
    mlp = WORKLOADS["mlp"].shrunk() if small else WORKLOADS["mlp"]
    half, whole = replace(mlp, epochs=1), replace(mlp, batch=2 * mlp.batch, epochs=2)
    x, y = synthetic(mlp)
    rows: Rows = {}
    for name, weak in (("fed_shvr", None), ("fed_shvr_translate2", Shift(2))):
        parts = {"objective": soft_pseudo_label(), "correction": ControlVariates(), "aggregation": Normalized()}
        labeled = mlp.samples // 100 or 1
        with (
            closing(Ours(federated(whole, x, y, network(mlp), weak=weak, engine="auto"))) as fedavg,
            closing(
                Ours(federated(half, x, y, network(mlp), labeled=labeled, weak=weak, engine="auto", **parts))
            ) as shvr,
        ):
            rounds = {"fedavg": _per_step(fedavg), "fed_shvr": _per_step(shvr)}
            rows[name] = _against(interleaved(rounds, repeats, TRIALS), "fed_shvr", "fedavg")
    return rows


def cnn13(repeats: int, small: bool) -> Rows:
    """Fed-SHVR's round with CNN13 at width 1/4 against the passes of the network that it cannot do without."""
    work = Workload("cnn13", 2, 66 if small else 330, (3, 32, 32), 0, 32)
    x, y = synthetic(work)
    make = lambda: CNN13(work.shape, CLASSES, width=0.25)  # noqa: E731
    labeled = 10
    rows: Rows = {}
    for name, relabel in (("cnn13_steps", False), ("cnn13", True)):
        objective = soft_pseudo_label()
        objective.relabel = relabel
        module = federated(work, x, y, make(), objective, ControlVariates(), Normalized(), labeled=labeled)
        forward = work.samples - labeled if relabel else 0
        with closing(Ours(module)) as ours:
            rounds = {"network": _passes(make(), x[0, :64], module.plan.tau[0], forward), "ours": _per_client(ours)}
            rows[name] = _against(interleaved(rounds, repeats), "ours", "network")
    return rows


def _passes(net: torch.nn.Module, x: torch.Tensor, steps: int, forward: int) -> Callable[[], float]:
    """`steps` times forward and backward on the batch, and a forward pass without gradient over `forward` images."""
    params, one = list(net.parameters()), torch.ones(len(x), CLASSES)
    images = x.repeat(-(-forward // len(x)), 1, 1, 1)[:forward]

    def run() -> float:
        started = time.perf_counter()
        if forward:
            with torch.no_grad():
                net.eval()(images)
        net.train()
        for _ in range(steps):
            torch.autograd.grad(net(x), params, one)
        return time.perf_counter() - started

    return run


def scaling(repeats: int, small: bool) -> Rows:
    """The time of a round from 10 to 1,000 clients, with the same number of local steps in all."""
    total, counts = (640, (2, 10)) if small else (64_000, (10, 100, 1_000))
    base = Workload("scaling", 1, total, MNIST, 200, 32, epochs=5)
    x, y = synthetic(base)
    ours = {}
    for clients in counts:
        work = replace(base, clients=clients, samples=total // clients)
        shape = (clients, work.samples)
        ours[clients] = Ours(federated(work, x.view(*shape, *MNIST), y.view(shape), network(work), engine="auto"))
    seconds = interleaved({str(clients): _per_step(o) for clients, o in ours.items()}, repeats, TRIALS)
    for contestant in ours.values():
        contestant.close()
    few = str(counts[0])
    row = {"ours": ratio(seconds, str(counts[-1]), few), "by_clients": {n: ratio(seconds, n, few) for n in seconds}}
    return {"scaling": {**row, "repeats": repeats}}


def memory(repeats: int, small: bool) -> Rows:
    """Peak resident memory in GB with the 4 M parameter MLP: FedAvg, and control variates on disk."""
    rows: Rows = {}
    few, many, hidden = (2, 8, 50) if small else (10, 1_000, 5_000)
    for name, clients, correction in (("few", few, 0), ("fedavg", many, 0), ("disk", many, 1)):
        command = [sys.executable, str(ROOT / "benchmarks/peak.py"), str(clients), str(hidden), str(correction)]
        rows[name] = json.loads(_last_line(command))
    disk = rows["disk"]
    return {
        "memory": {
            "ours": disk["peak_gb"],
            "clients": many,
            "fedavg_gb": rows["fedavg"]["peak_gb"],
            "fedavg_few_gb": rows["few"]["peak_gb"],
            "seconds_a_round": disk["seconds"],
        }
    }


def start_up(repeats: int, small: bool) -> Rows:
    """Seconds from the command to the first local step, and of --help: the median of fresh processes."""
    repeats = 1 if small else 3
    first = median(_first_step() for _ in range(repeats))
    return {"first_step": {"ours": first}, "help": {"ours": median(_help() for _ in range(repeats))}}


def _first_step() -> float:
    """From the launch to the first row of metrics.csv, less the time of that round as the row has it."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(ROOT / "src/train.py"), "logger=csv", "rounds=1", f"hydra.run.dir={folder}"]
        started, metrics = time.time(), Path(folder) / "metrics.csv"
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT)
        while process.poll() is None and not metrics.exists():
            time.sleep(0.01)
        found = time.time() - started
        if process.wait():
            raise RuntimeError(f"{' '.join(command)}: failed")
        header, row, *_ = metrics.read_text().splitlines()
        return found - float(row.split(",")[header.split(",").index("seconds")])


def _help() -> float:
    started = time.perf_counter()
    command = [sys.executable, str(ROOT / "src/train.py"), "--help"]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, cwd=ROOT)
    return time.perf_counter() - started


def same_accuracy(repeats: int, small: bool) -> Rows:
    """The mlp workload on MNIST (digits if it is not in the cache): ours and the bare loop reach the same accuracy."""
    name = "mnist" if (ROOT / "data/mnist.npz").exists() and not small else "digits"
    images = sources.load(name, ROOT / "data", download=False)
    mlp = WORKLOADS["mlp"]
    work = replace(mlp, samples=len(images.y) // mlp.clients, shape=tuple(images.x.shape[1:]))
    used = work.clients * work.samples
    x, y = images.x[:used].unflatten(0, (work.clients, -1)), images.y[:used].unflatten(0, (work.clients, -1))
    module = federated(work, x, y, network(work))
    ours, own_draws = Ours(module), BareLoop(work, x, y, network(work))

    def our_draws(round: int, client: int) -> torch.Tensor:
        choices = module.bench.batcher.choose(Draws(module.cohorts.seed, round, torch.tensor([client])), work.steps)
        return choices.labeled[0] - client * work.samples

    our_draws_loop = BareLoop(work, x, y, network(work), our_draws)
    rounds = 1 if small else 5
    with closing(ours):
        for _ in range(rounds):
            for contestant in (ours, own_draws, our_draws_loop):
                contestant.round()
        net, test = network(work), (images.x_test, images.y_test)
        ours_theta = module.theta.detach().clone()
        torch.nn.utils.vector_to_parameters(ours_theta.clone(), net.parameters())
        row = {"ours": accuracy(net, net.state_dict(), *test)}
    row |= {"bare": accuracy(net, own_draws.theta, *test), "bare_our_draws": accuracy(net, our_draws_loop.theta, *test)}
    theta = torch.cat([p.flatten() for p in our_draws_loop.theta.values()])
    difference = float((theta - ours_theta).abs().max())
    return {"accuracy": {**row, "theta_difference": difference, "data": name, "rounds": rounds}}


def _per_step(ours: Ours) -> Callable[[], float]:
    """The time of a round over its local steps."""
    return lambda: ours.round() / sum(ours.module.plan.tau)


def _per_client(ours: Ours) -> Callable[[], float]:
    return lambda: ours.round() / len(ours.module.plan.tau)


def _against(seconds: dict[str, list[float]], ours: str, other: str) -> dict[str, Any]:
    medians = {name: median(values) for name, values in seconds.items()}
    return {"ours": ratio(seconds, ours, other), "seconds": medians, "repeats": len(seconds[ours])}


def _last_line(command: list[str]) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}:\n{done.stderr[-2000:]}")
    return done.stdout.strip().splitlines()[-1]


CASES: dict[str, Callable[[int, bool], Rows]] = {
    "mlp": lambda repeats, small: against_bare("mlp", repeats, small),
    "tiny": lambda repeats, small: against_bare("tiny", 4 * repeats, small),
    "wide": lambda repeats, small: against_bare("wide", repeats, small),
    "mlp_ranks": lambda repeats, small: two_ranks("mlp", repeats, small),
    "wide_ranks": lambda repeats, small: two_ranks("wide", repeats, small),
    "control_variates": control_variates,
    "fed_shvr": fed_shvr,
    "cnn13": cnn13,
    "scaling": scaling,
    "memory": memory,
    "start_up": start_up,
    "accuracy": same_accuracy,
    "profile": profile,
}
