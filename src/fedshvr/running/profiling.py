"""Where the time of a round goes: a table for profile=true."""

import sys
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from fedshvr.compute.engine import timed
from fedshvr.rounds import federated
from fedshvr.rounds.federated import Federated
from fedshvr.rounds.seats import Descent

PHASES = {
    "draw": "random choices of samples and augmentations",
    "gather": "images and labels of the batches, augmented",
    "forward": "the objective's loss",
    "update": "corrected step on theta_k, with the product of the factors of large linear layers' gradients",
    "label": "pseudo-labels from theta",
    "collect": "sums over clients and the server step",
    "backward": "the rest of the gradient and of the clients' work",
}


class Profile(Callback):
    """Times the phases of every round after the first, and prints the table when the run has ended."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.total = 0.0
        self.restore: list[tuple[Any, str, Callable]] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Federated)
        bench = pl_module.bench
        self.device = pl_module.device
        self._time(bench.batcher, "choose", "draw")
        self._time(bench.batcher, "gather", "gather")
        self._time(bench.method.objective, "loss", "forward")
        self._time(federated, "relabel", "label")
        self._time(Descent, "update", "update")
        run_clients = pl_module.run_clients
        pl_module.run_clients = lambda *args: timed(run_clients(*args), partial(self._add, "clients"))

    def _add(self, phase: str, seconds: float) -> None:
        self.seconds[phase] += seconds

    def _time(self, owner: Any, name: str, phase: str) -> None:
        inner: Callable = getattr(owner, name)

        def measured(*args: Any, **kwargs: Any) -> Any:
            started = self._now()
            try:
                return inner(*args, **kwargs)
            finally:
                self._add(phase, self._now() - started)

        setattr(owner, name, measured)
        self.restore.append((owner, name, inner))

    def _now(self) -> float:
        torch.get_device_module(self.device).synchronize()
        return time.perf_counter()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Federated)
        if trainer.current_epoch == 0:  # warm-up
            self.seconds.clear()
        else:
            self.total += pl_module.row["seconds"]

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for owner, name, inner in self.restore:
            setattr(owner, name, inner)
        if trainer.is_global_zero and self.total:
            print(self.table(), file=sys.stderr)

    def shares(self) -> dict[str, float]:
        """The share of each phase in the time of the rounds."""
        known = {phase: self.seconds[phase] for phase in ("draw", "gather", "forward", "update", "label")}
        local = self.seconds["clients"]
        known["backward"] = local - sum(known[phase] for phase in ("draw", "gather", "forward", "update"))
        known["collect"] = self.total - local - known["label"]
        return {phase: seconds / self.total for phase, seconds in known.items()}

    def table(self) -> str:
        rows = [f"{phase:>9} {100 * share:>5.1f} %  {PHASES[phase]}" for phase, share in self.shares().items()]
        return "\n".join(["where the time of a round went", *rows])
