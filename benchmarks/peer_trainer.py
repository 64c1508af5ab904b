"""FedAvg with a new Lightning Trainer for every client, a round of the bare loop between: peer_trainer.py mlp 5 0."""

import logging
import sys
import warnings

import source  # noqa: F401
import torch
from lightning import LightningModule, Trainer
from loops import BareLoop, Workload, chosen, network, report, stick, synthetic
from timing import interleaved
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore")


class Module(LightningModule):
    def __init__(self, net: nn.Module, eta: float) -> None:
        super().__init__()
        self.net, self.eta = net, eta

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.net.parameters(), lr=self.eta)


class TrainerLoop(BareLoop):
    """The bare loop, but each client's epoch is Lightning's."""

    def train(self, x: Tensor, y: Tensor, indices: Tensor) -> None:
        loader = DataLoader(TensorDataset(x, y), self.work.batch, shuffle=True, drop_last=True)
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        trainer = Trainer(accelerator="cpu", devices=1, max_epochs=1, enable_checkpointing=False, **quiet)
        trainer.fit(Module(self.model, self.work.eta), loader)


def measure(work: Workload, repeats: int) -> None:
    x, y = synthetic(work)
    contestants = {"bare": stick("bare", work), "peer": TrainerLoop(work, x, y, network(work))}
    seconds = interleaved({name: c.round for name, c in contestants.items()}, repeats + 1, 0)
    contestants["bare"].close()
    report(seconds, "lightning")


if __name__ == "__main__":
    torch.set_num_threads(1)
    measure(*chosen(sys.argv))
