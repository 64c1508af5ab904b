"""Trains on the device of device.py and on the CPU for test_device.py, and writes down what happened.

python tests/on_device.py results.json fedavg fed_shvr ...
"""

import json
import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import device
import ranks
import tiny
import torch
from conftest import STACKED, compose_train
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import SingleDeviceStrategy
from methods import MADE
from torch import Tensor, nn

from fedshvr.algorithms.corrections import ControlVariates
from fedshvr.algorithms.objectives.batch import Batch, Network, Parts, State
from fedshvr.algorithms.objectives.supervised import Supervised
from fedshvr.algorithms.robust import GeometricMedian, Median
from fedshvr.compute import engine, linear
from fedshvr.data.sources import ImageData
from fedshvr.federation.plan import LocalSGD
from fedshvr.rounds.federated import Federated
from fedshvr.running.profiling import Profile
from fedshvr.running.run import build, quiet

ROUNDS = 2  # the second finds what the first has left
ENGINES = ("sequential", "vectorized")
SMALLER = ["partition.clients=3", "partition.unlabeled=32", "model.hidden=[4]"]


class Item(Supervised):
    """Reads its loss in every step."""

    def loss(self, net: Network, batch: Batch, state: State) -> tuple[Tensor, Parts]:
        loss, parts = super().loss(net, batch, state)
        return (loss if loss.item() < 1e9 else 2 * loss), parts


class Mask(Supervised):
    """Picks images by a mask: the host must know how many."""

    def loss(self, net: Network, batch: Batch, state: State) -> tuple[Tensor, Parts]:
        known = batch.y >= 0
        return super().loss(net, Batch(batch.x[known], batch.y[known]), state)


class OnHost(Supervised):
    """Scales the classes with numbers that it has left on the CPU."""

    def loss(self, net: Network, batch: Batch, state: State) -> tuple[Tensor, Parts]:
        logits = net(batch.x) * torch.ones(tiny.CLASSES, dtype=batch.x.dtype)
        return nn.functional.cross_entropy(logits, batch.y), {}


def batch_norm() -> nn.Module:
    torch.manual_seed(1)
    layers = nn.Flatten(), nn.Linear(tiny.SIDE**2, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, tiny.CLASSES)
    return nn.Sequential(*layers).double()


def spoilt() -> ImageData:
    """Client 1's images are no numbers."""
    data, split = tiny.images(), tiny.splits()[1]
    x = data.x.clone()
    x[[*split.labeled, *split.unlabeled]] = torch.nan
    return replace(data, x=x)


def local(**options: Any) -> LocalSGD:
    return LocalSGD(**{"eta": 0.1, "epochs": 1, "batch_labeled": 3, "batch_unlabeled": 6} | options)


def shvr(**options: Any) -> Federated:
    return tiny.federated(MADE["soft"](), ControlVariates(), **options)


@cache
def built(name: str) -> Federated:
    return build(compose_train(f"algorithm={name}", *ranks.TINY, *SMALLER, *ranks.SOONER.get(name, [])))[1]


def algorithm(name: str, engine: str) -> Federated:
    module = deepcopy(built(name))
    module.compute = replace(module.compute, engine=engine)
    return module


OPTIONS: dict[str, Callable[[], Federated]] = {
    "relabel=step": lambda: tiny.federated(MADE["soft_step"]()),
    "label_view=mean4": lambda: tiny.federated(MADE["soft_mean4"]()),
    "dropout": lambda: shvr(model=tiny.network(dropout=0.5)),
    "a random layer": lambda: shvr(model=nn.Sequential(tiny.network(), nn.AlphaDropout(0.1))),
    "batch norm": lambda: shvr(model=batch_norm()),
    "buffers=local": lambda: shvr(model=batch_norm(), buffers="local"),
    "option I": lambda: tiny.federated(MADE["supervised"](), ControlVariates("I")),
    "median": lambda: tiny.federated(MADE["fixmatch"](), aggregation=Median()),
    "geometric median": lambda: tiny.federated(MADE["fixmatch"](), aggregation=GeometricMedian(4)),
    "garbage": lambda: shvr(attack="garbage", attackers=1),
    "momentum, decay": lambda: tiny.federated(MADE["soft"](), local=local(momentum=0.9, weight_decay=0.1)),
    "shuffle": lambda: shvr(local=local(sampling="shuffle")),
    "gap and server loss": lambda: shvr(optimality_gap=True, server_loss_every=1),
    "engine=measure": lambda: shvr(engine="measure"),
    "1 epoch sequential": lambda: shvr(local=local(epochs=1), engine="sequential"),
    "1 epoch vectorized": lambda: shvr(local=local(epochs=1), engine="vectorized"),
    "3 epochs sequential": lambda: shvr(local=local(epochs=3), engine="sequential"),
    "3 epochs vectorized": lambda: shvr(local=local(epochs=3), engine="vectorized"),
}
BAD: dict[str, Callable[[], Federated]] = {
    "skip": lambda: shvr(on_client_error="skip", data=spoilt(), server_loss_every=0),
    "client_state=cpu": lambda: shvr(client_state="cpu"),
    "item": lambda: tiny.federated(Item(), engine="sequential"),
    "item stacked": lambda: tiny.federated(Item(), engine="vectorized"),
    "mask": lambda: tiny.federated(Mask(), engine="sequential"),
    "on host": lambda: tiny.federated(OnHost(), engine="sequential"),
    "on host stacked": lambda: tiny.federated(OnHost(), engine="vectorized"),
}


class Notes(Callback):
    """What crossed between host and device in each round, and in each evaluation."""

    def __init__(self) -> None:
        self.reads: list[list[str]] = []
        self.uploads: list[list[str]] = []
        self.evaluations: list[list[str]] = []
        self.rows: list[dict[str, str]] = []

    def on_train_batch_start(self, *_: Any) -> None:
        device.reads.clear(), device.uploads.clear()

    def on_train_batch_end(self, *_: Any) -> None:
        self.reads.append([*device.reads]), self.uploads.append([*device.uploads])

    def on_validation_batch_start(self, *_: Any) -> None:
        device.reads.clear()

    def on_validation_batch_end(self, *_: Any) -> None:
        self.evaluations.append([*device.reads])

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Federated)
        self.rows.append({name: repr(value) for name, value in pl_module.row.items() if name != "seconds"})


def train(module: Federated, *callbacks: Callback, **place: Any) -> Notes:
    notes = Notes()
    Trainer(
        max_epochs=ROUNDS,
        precision="64-true",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        callbacks=[notes, *callbacks],
        **place,
    ).fit(module)
    return notes


def both(make: Callable[[], Federated], *callbacks: Callback) -> dict[str, Any]:
    """The same on the device and on the CPU."""
    there, here = make(), make()
    try:
        strategy = SingleDeviceStrategy(device=device.DEVICE)
        notes = train(there, *callbacks, accelerator=device.OnDevice(), devices=1, strategy=strategy)
    except RuntimeError as error:
        return {"error": str(error).splitlines()[0]}
    rows = train(here, accelerator="cpu").rows
    crossed = {"reads": notes.reads, "uploads": notes.uploads, "evaluations": notes.evaluations}
    return crossed | {"equal": torch.equal(there.theta.cpu(), here.theta), "rows": notes.rows, "rows on the CPU": rows}


if __name__ == "__main__":
    quiet()
    linear.LARGE = 1  # also small layers keep their gradient in factors
    engine.FEWEST = 2  # on the CPU as on the device
    target, *algorithms = sys.argv[1:]
    results = {name: both(make) for name, make in (OPTIONS | BAD).items()}
    results["profile=true"] = both(shvr, Profile())
    cases = [(name, e) for e in ENGINES for name in algorithms if e == "sequential" or name in STACKED]
    results |= {f"{name} {e}": both(partial(algorithm, name, e)) for name, e in cases}
    Path(target).write_text(json.dumps(results))
