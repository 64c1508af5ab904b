"""Our contestant: the real Federated under the real Trainer, in a thread that makes one round when it is asked."""

import logging
import tempfile
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import source  # noqa: F401
import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from loops import CLASSES, Workload, one_thread
from torch import Tensor, nn

from fedshvr.algorithms.aggregation import Average, Normalized
from fedshvr.algorithms.corrections import Correction
from fedshvr.algorithms.objectives.base import Objective
from fedshvr.algorithms.objectives.supervised import Supervised
from fedshvr.data.augment import Augment
from fedshvr.data.holdings import Federation
from fedshvr.data.sources import ImageData
from fedshvr.federation.partition import Split
from fedshvr.federation.plan import LocalSGD, make_plan
from fedshvr.rounds.federated import Federated
from fedshvr.rounds.options import Method, grouped

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")


def federated(
    work: Workload,
    x: Tensor,
    y: Tensor,
    model: nn.Module,
    objective: Objective | None = None,
    correction: Correction | None = None,
    aggregation: Average | Normalized | None = None,
    labeled: int | None = None,
    weak: Augment | None = None,
    **options: Any,
) -> Federated:
    """The first `labeled` samples of every client are labelled (all if None), the others are not."""
    ends = np.arange(1, work.clients + 1) * work.samples
    known = work.samples if labeled is None else labeled
    splits = [
        Split(np.arange(end - work.samples, end - work.samples + known), np.arange(end - work.samples + known, end), ())
        for end in ends
    ]
    images = ImageData("bench", x.flatten(0, 1), y.flatten(), x[0], y[0], tuple("0123456789"[:CLASSES]))
    local = LocalSGD(work.eta, work.epochs, work.batch, work.batch)
    objective = objective or Supervised()
    return Federated(
        model,
        Federation(images, splits, make_plan(splits, local, objective.uses_unlabeled)),
        Method(objective, correction or Correction(), aggregation or Average(), local),
        {"clean": Augment(), "weak": weak or Augment()},
        **grouped(optimizer=lambda params: torch.optim.SGD(params, lr=1.0), seed=0, **options),
    )


def trainer(*callbacks: Callback, max_epochs: int = -1, **options: Any) -> Trainer:
    return Trainer(
        accelerator="cpu",
        max_epochs=max_epochs,
        limit_val_batches=0,
        logger=False,
        callbacks=list(callbacks),
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        **options,
    )


class Closed(Exception):
    """No more rounds are wanted."""


class Turn(Callback):
    """Lets the Trainer make one epoch at a time."""

    def __init__(self) -> None:
        self.go, self.done = threading.Semaphore(0), threading.Semaphore(0)
        self.epoch, self.stop = 0.0, False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._wait()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.epoch = time.perf_counter() - self.started
        self.done.release()
        self._wait()

    def _wait(self) -> None:
        self.go.acquire()
        if self.stop:
            raise Closed
        self.started = time.perf_counter()


class Ours:
    """`round()` is the time of a training_step, `epochs` collects that of the whole Lightning epoch around it."""

    def __init__(self, module: Federated) -> None:
        self.module, self.turn, self.epochs = module, Turn(), list[float]()
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._fit, daemon=True)
        self.thread.start()

    def _fit(self) -> None:
        try:
            one_thread()
            with tempfile.TemporaryDirectory() as folder:
                self.module.state_folder = Path(folder)
                trainer(self.turn, default_root_dir=folder).fit(self.module)
        except Closed:
            pass
        except BaseException as error:
            self.error = error
            self.turn.done.release()

    def round(self) -> float:
        self.turn.go.release()
        self.turn.done.acquire()
        if self.error:
            raise self.error
        self.epochs.append(self.turn.epoch)
        return self.module.row["seconds"]

    def close(self) -> None:
        self.turn.stop = True
        self.turn.go.release()
        self.thread.join()
