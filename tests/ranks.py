"""Trains every algorithm for test_ranks.py, as one of WORLD_SIZE processes; the first writes theta of each to a file.

python tests/ranks.py thetas.pt fedavg fed_shvr ...
"""

import os
import sys
from dataclasses import replace

import torch
from conftest import compose_train
from lightning import Trainer
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor

from fedshvr.rounds.federated import Federated
from fedshvr.running.run import build, quiet

TINY = ["partition.clients=5", "partition.unlabeled=100", "client.epochs=0.5", "client.batch_unlabeled=8"]
TINY += ["model.hidden=[8]", "participation=0.8", "ramp.epochs=1", "evaluate=ema"]
SOONER = {
    "fedsem": ["algorithm.objective.labeled_rounds=1", "algorithm.objective.labeled_steps=labeled"],
    "fedmatch": ["algorithm.objective.helpers_every=2"],
    "fed_self_training": ["algorithm.objective.keep=true", "algorithm.objective.threshold=0.2"],
}
ROUNDS = 3
VARIANTS = {  # further runs of fed_shvr, by name
    "ramp.by=step": ["ramp.by=step", "ramp.start=0.1", "ramp.epochs=4", "client.epochs=2"],
    "relabel=epoch": ["algorithm.objective.relabel=epoch", "algorithm.objective.label_view=weak", "client.epochs=2"],
    "unreliable": ["client_dropout=0.3", "stragglers=0.5", "client.epochs=2"],
    "some_labeled": ["partition=some_labeled"],
    "private": ["privacy=central", "privacy.noise=0.1"],
    "garbage": ["attack=garbage", "algorithm/aggregation=geometric_median"],
    "skip": ["on_client_error=skip", "participation=1"],  # client 1 has an image that is no number
    "at server": ["partition.labeled_per_client=0", "server_labels=50", "client.epochs=1"],
}


def trained(algorithm: str, ranks: int, *overrides: str, evaluate: bool = False) -> Federated:
    """After a few rounds in float64."""
    module = build(compose_train(f"algorithm={algorithm}", *TINY, *SOONER.get(algorithm, []), *overrides))[1]
    if bad := module.server.rule.on_client_error == "skip":
        x = module.federation.images.x.clone()
        x[module.plan.unlabeled[1][0]] = torch.nan
        module.federation.images = replace(module.federation.images, x=x)
    Trainer(
        max_epochs=ROUNDS,
        precision="64-true",
        accelerator="cpu",
        devices=ranks,
        strategy=DDPStrategy(process_group_backend="gloo", forward_sync_buffers=False) if ranks > 1 else "auto",
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=int(evaluate),
        num_sanity_val_steps=0,
    ).fit(module)
    assert module.server.skips == [0, ROUNDS * bad, 0, 0, 0]
    return module


def theta(algorithm: str, ranks: int, *overrides: str, evaluate: bool = False) -> Tensor:
    """The model, and its moving average."""
    module = trained(algorithm, ranks, *overrides, evaluate=evaluate)
    return torch.stack([module.theta.detach(), module.server.ema])


def evaluation(ranks: int) -> Tensor:
    """Accuracy and loss on the test set and on the samples held out."""
    module = trained("fed_shvr", ranks, "validation=0.1", evaluate=True)
    return torch.tensor([module.row[name] for name in ("test_acc", "test_loss", "val_acc", "val_loss")])


if __name__ == "__main__":
    quiet()
    target, *algorithms = sys.argv[1:]
    size, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_RANK"])  # Lightning removes them after use
    thetas = {algorithm: theta(algorithm, size) for algorithm in algorithms}
    thetas |= {name: theta("fed_shvr", size, *overrides) for name, overrides in VARIANTS.items()}
    thetas["evaluation"] = evaluation(size)
    if rank == 0:
        torch.save(thetas, target)
