"""FedAvg against the bare loop: speed, where the time goes, and that both end at the same accuracy."""

from dataclasses import replace
from typing import Any

import torch
from loops import BareLoop, accuracy, network, stick, synthetic, workload
from ours import federated, here, ours
from source import ROOT
from timing import against, race

from fedshvr.compute.streams import Draws
from fedshvr.data import sources
from fedshvr.running.profiling import Profile

Rows = dict[str, dict[str, Any]]
ALONE = {"trainer.devices": 1, "threads": 1}


def against_bare(name: str, repeats: int, small: bool) -> Rows:
    """A workload with the default options; for comparison in one process, one client after another, and by hand."""
    work = workload(name, small)
    contestants = {
        "bare": stick("bare", work),
        "ours": ours(work),
        "one": ours(work, **ALONE),
        "sequential": ours(work, engine="sequential", **ALONE),
        "floor": stick("floor", work),
    }
    seconds = race(contestants, repeats)
    seconds["epoch"] = [answer["epoch"] for answer in contestants["ours"].answers[-repeats:]]
    rows = {f"{name}_{kind}": against(seconds, kind, "bare") for kind in ("one", "sequential", "floor", "epoch")}
    what = contestants["ours"].ready()
    return {name: {**against(seconds, "ours", "bare"), "engine": what["engine"], "layout": what["layout"]}, **rows}


def profile(repeats: int, small: bool) -> Rows:
    """Where the time of a round goes, by engine: shares of the phases that profile=true prints."""
    shares = {}
    for name in ("mlp", "wide"):
        work = workload(name, small)
        for engine in ("sequential", "vectorized"):
            timed = Profile()
            here(federated(work, *synthetic(work), network(work), engine=engine), 3, timed)
            shares[f"{name}, {engine}"] = timed.shares()
    return {"profile": shares}


def same_accuracy(repeats: int, small: bool) -> Rows:
    """The mlp workload on MNIST (digits if it is not in the cache): ours and the bare loop reach the same accuracy."""
    name = "mnist" if (ROOT / "data/mnist.npz").exists() and not small else "digits"
    images, mlp = sources.load(name, ROOT / "data", download=False), workload("mlp", False)
    work = replace(mlp, samples=len(images.y) // mlp.clients, shape=tuple(images.x.shape[1:]))
    x, y = (data[: work.clients * work.samples].unflatten(0, (work.clients, -1)) for data in (images.x, images.y))
    module, rounds = federated(work, x, y, network(work), engine="sequential"), 1 if small else 5
    here(module, rounds)

    def our_draws(round: int, client: int) -> torch.Tensor:
        choices = module.bench.batcher.choose(Draws(module.cohorts.seed, round, torch.tensor([client])), work.steps)
        return choices.labeled[0] - client * work.samples

    draws = {"bare": None, "bare_our_draws": our_draws}
    loops = {kind: BareLoop(work, x, y, network(work), indices) for kind, indices in draws.items()}
    for loop in loops.values():
        for _ in range(rounds):
            loop.round()
    net, test = network(work), (images.x_test, images.y_test)
    torch.nn.utils.vector_to_parameters(module.theta.detach().clone(), net.parameters())
    row = {"ours": accuracy(net, net.state_dict(), *test)}
    row |= {kind: accuracy(net, loop.theta, *test) for kind, loop in loops.items()}
    theta = torch.cat([p.flatten() for p in loops["bare_our_draws"].theta.values()])
    difference = float((theta - module.theta.detach()).abs().max())
    return {"accuracy": {**row, "theta_difference": difference, "data": name, "rounds": rounds}}
