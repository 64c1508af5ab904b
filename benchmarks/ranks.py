"""FedAvg on two ranks of one thread each; between its rounds rank 0 runs the bare loop: ranks.py mlp 5 0."""

import json
import sys
import time
from statistics import median

import source  # noqa: F401
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import DDPStrategy
from loops import WORKLOADS, Elsewhere, network, one_thread, ratio, synthetic
from ours import federated, trainer

from fedshvr.compute.cpu import keep_freed_memory
from fedshvr.rounds.federated import Federated

TRIALS = 2  # rounds that are not counted


class Between(Callback):
    """After every epoch, a round of the bare loop on rank 0 while the others wait."""

    def __init__(self, name: str, repeats: int, small: bool) -> None:
        self.name, self.repeats, self.small = name, repeats, small
        self.seconds: dict[str, list[float]] = {"bare": [], "ours": [], "epoch": []}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.bare = Elsewhere("bare", self.name, self.small) if trainer.is_global_zero else None
        trainer.strategy.barrier()
        self.started = time.perf_counter()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Federated)
        epoch = time.perf_counter() - self.started
        bare = self.bare.round() if self.bare else 0.0
        if trainer.current_epoch >= TRIALS:
            for name, spent in (("bare", bare), ("ours", pl_module.row["seconds"]), ("epoch", epoch)):
                self.seconds[name].append(spent)
        trainer.should_stop = trainer.current_epoch == TRIALS + self.repeats - 1
        if trainer.should_stop and self.bare:
            self.bare.close()
        trainer.strategy.barrier()
        self.started = time.perf_counter()


def measure(name: str, repeats: int, small: bool) -> None:
    work = WORKLOADS[name].shrunk() if small else WORKLOADS[name]
    between = Between(name, repeats, small)
    strategy = DDPStrategy(forward_sync_buffers=False, process_group_backend="gloo")
    on_two = trainer(between, devices=2, strategy=strategy)
    on_two.fit(federated(work, *synthetic(work), network(work), engine="auto"))
    if on_two.is_global_zero:
        s = between.seconds
        row = {"ours": ratio(s, "ours", "bare"), "epoch": ratio(s, "epoch", "bare")}
        print(json.dumps({**row, "seconds": {k: median(v) for k, v in s.items()}, "repeats": repeats}))


if __name__ == "__main__":
    one_thread()
    keep_freed_memory()
    measure(sys.argv[1], int(sys.argv[2]), bool(int(sys.argv[3])))
