"""Our contestant, set up as src/train.py does it: ours.py <workload> <method> <options>, a round for every line."""

import json
import logging
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as src/train.py does, before torch is loaded

import numpy as np
import source
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, LambdaCallback
from loops import CLASSES, Workload, network, synthetic
from timing import Contestant
from torch import Tensor, nn

from fedshvr.algorithms.aggregation import Average, Normalized
from fedshvr.algorithms.corrections import ControlVariates, Correction
from fedshvr.algorithms.objectives.ramp import Ramp
from fedshvr.algorithms.objectives.soft_pseudo_label import SoftPseudoLabel
from fedshvr.algorithms.objectives.supervised import Supervised
from fedshvr.compute.cpu import keep_freed_memory
from fedshvr.data.augment import Augment, Shift
from fedshvr.data.holdings import Federation
from fedshvr.data.sources import ImageData
from fedshvr.federation.partition import Split
from fedshvr.federation.plan import LocalSGD, make_plan
from fedshvr.models.cnn13 import CNN13
from fedshvr.rounds.federated import Federated
from fedshvr.rounds.options import Method, grouped
from fedshvr.running.cores import lay_out

ROUNDS = 100  # of the run that the rule on processes is asked about
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")


def fed_shvr(labels_now: bool = True) -> dict[str, Any]:
    """Fed-SHVR, or its local steps alone."""
    objective = SoftPseudoLabel(alpha0=1.0, alpha1=0.75, alpha2=0.1, ramp=Ramp(0, "none"))
    objective.labels_now = labels_now
    return {"objective": objective, "correction": ControlVariates(), "aggregation": Normalized()}


METHODS: dict[str, Callable[[], dict[str, Any]]] = {
    "fedavg": dict,
    "control_variates": lambda: {"correction": ControlVariates()},
    "fed_shvr": fed_shvr,
    "fed_shvr_steps": partial(fed_shvr, labels_now=False),
}


def ours(work: Workload, method: str = "fedavg", **options: Any) -> Contestant:
    """Ours in a process of its own; the options are those of src/train.py, by default as it has them."""
    threads = options.get("threads")
    return Contestant("ours.py", work.text(), method, json.dumps(options), threads=threads)


def model(work: Workload) -> nn.Module:
    if not work.width:
        return network(work)
    torch.manual_seed(0)
    return CNN13(work.shape, CLASSES, work.width)


def federated(
    work: Workload, x: Tensor, y: Tensor, net: nn.Module, method: str = "fedavg", engine: str = "auto"
) -> Federated:
    """The orchestrator of this work; x is (clients, samples, *shape)."""
    known = work.labeled or work.samples
    splits = []
    for k, m in enumerate(work.unlabeled if work.labeled else [0] * work.clients):
        first = k * work.samples
        splits.append(Split(np.arange(first, first + known), np.arange(first + known, first + known + m), ()))
    images = ImageData("bench", x.flatten(0, 1), y.flatten(), x[0], y[0], tuple("0123456789"[:CLASSES]))
    local = LocalSGD(work.eta, work.epochs, work.batch, work.batch)
    parts = {"objective": Supervised(), "correction": Correction(), "aggregation": Average()} | METHODS[method]()
    return Federated(
        net,
        Federation(images, splits, make_plan(splits, local, parts["objective"].uses_unlabeled)),
        Method(local=local, **parts),
        {"clean": Augment(), "weak": Shift(work.pixels) if work.pixels else Augment()},
        **grouped(optimizer=lambda params: torch.optim.SGD(params, lr=1.0), seed=0, engine=engine),
    )


PLAIN = {"logger": False, "enable_checkpointing": False, "limit_val_batches": 0}  # a Trainer that only trains


def here(module: Federated, rounds: int, *callbacks: Callback) -> list[float]:
    """Seconds of each round in this process."""
    seconds: list[float] = []
    note = LambdaCallback(on_train_epoch_end=lambda *_: seconds.append(module.row["seconds"]))
    quiet = {"enable_progress_bar": False, "enable_model_summary": False}
    trainer = Trainer(accelerator="cpu", devices=1, max_epochs=rounds, callbacks=[*callbacks, note], **PLAIN, **quiet)
    trainer.fit(module)
    return seconds


class Turns(Callback):
    """A round for every line that comes: the first process reads it and prints the seconds, the others wait."""

    def __init__(self, setup: float, layout: str) -> None:
        self.what, self.begun = {"setup": setup, "layout": layout}, time.perf_counter()
        self.lines = os.fdopen(os.dup(0))  # a forked process has no other way to it

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        start = time.perf_counter() - self.begun
        self._say(trainer, {"start": start, "engine": pl_module.run_clients.__name__, **self.what})
        self._wait(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        epoch = time.perf_counter() - self.started
        self._say(trainer, {"seconds": pl_module.row["seconds"], "epoch": epoch})
        self._wait(trainer)

    def _say(self, trainer: Trainer, what: dict[str, Any]) -> None:
        if trainer.is_global_zero:
            print(json.dumps(what), flush=True)

    def _wait(self, trainer: Trainer) -> None:
        line = self.lines.readline() if trainer.is_global_zero else None
        trainer.should_stop = not trainer.strategy.broadcast(line)
        self.started = time.perf_counter()


def main(work: Workload, method: str, engine: str = "auto", **options: Any) -> None:
    """The set-up of fedshvr.running.run, without loggers, evaluation and checkpoints."""
    keep_freed_memory()
    torch.set_num_threads(1)
    x, y = synthetic(work)
    started = time.perf_counter()
    module = federated(work, x, y, model(work), method, engine)
    setup = time.perf_counter() - started
    with initialize_config_dir(str(source.ROOT / "configs"), version_base="1.3"):
        changes = [f"{name}={value}" for name, value in options.items()]
        cfg = compose("train", changes, return_hydra_config=True)
    layout = lay_out(cfg.trainer, cfg.hydra, cfg.threads, module, ROUNDS)
    turns = Turns(setup, str(layout))
    with tempfile.TemporaryDirectory() as folder:
        module.state_folder = Path(folder)
        own = {**PLAIN, "callbacks": [turns], "default_root_dir": folder, "max_epochs": -1}
        instantiate(cfg.trainer, **own, **layout.trainer_options()).fit(module)


if __name__ == "__main__":
    main(Workload.of(sys.argv[1]), sys.argv[2], **json.loads(sys.argv[3]))
