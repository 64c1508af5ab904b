"""A tiny federation of random images and a small MLP, run through the real Federated, Client and Trainer in float64."""

import logging

import numpy as np
import torch
from lightning import Trainer
from torch import Tensor, nn

from fedshvr.algorithms.aggregation import Average, Normalized
from fedshvr.algorithms.corrections import Correction
from fedshvr.algorithms.objectives.base import Objective
from fedshvr.algorithms.privacy import Privacy
from fedshvr.data.augment import Augment, Shift
from fedshvr.data.holdings import Federation
from fedshvr.data.randaugment import RandAugment
from fedshvr.data.sources import ImageData
from fedshvr.federation.partition import Split
from fedshvr.federation.plan import LocalSGD, make_plan
from fedshvr.models.mlp import MLP
from fedshvr.rounds.federated import Federated
from fedshvr.rounds.options import Method, grouped

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

CLASSES, SIDE = 3, 8
LABELED, UNLABELED = (4, 6, 5), (12, 18, 24)  # per client: unequal steps
LOCAL = LocalSGD(eta=0.1, epochs=1, batch_labeled=3, batch_unlabeled=6)
WEAK = Shift(1)
AUGMENTS: dict[str, Augment] = {"clean": Augment(), "weak": WEAK, "strong": RandAugment(WEAK)}
AS_THEY_ARE: dict[str, Augment] = {"clean": Augment(), "weak": Augment(), "strong": RandAugment(Augment())}


def images(seed: int = 0) -> ImageData:
    """Noise around one pattern a class."""
    rng = torch.Generator().manual_seed(seed)
    total = sum(LABELED) + sum(UNLABELED)
    pattern = torch.randn(CLASSES, 1, SIDE, SIDE, generator=rng, dtype=torch.float64)
    y = torch.arange(total) % CLASSES
    x = pattern[y] + torch.randn(total, 1, SIDE, SIDE, generator=rng, dtype=torch.float64)
    return ImageData("tiny", x, y, x[:9], y[:9], tuple("abc"))


def splits() -> list[Split]:
    sizes = [n for pair in zip(LABELED, UNLABELED, strict=True) for n in pair]
    parts = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    return [Split(parts[i], parts[i + 1], tuple(range(CLASSES))) for i in range(0, len(parts), 2)]


def hidden() -> Tensor:
    """The indices of the samples whose labels no client knows."""
    return torch.from_numpy(np.concatenate([split.unlabeled for split in splits()]))


def network(dropout: float = 0.0) -> MLP:
    torch.manual_seed(1)
    return MLP((1, SIDE, SIDE), CLASSES, hidden=[7], dropout=dropout).double()


class BatchNormed(nn.Sequential):
    """A convolution with batch norm (its running mean comes first among the buffers) and dropout."""

    def __init__(self) -> None:
        head = nn.Linear(6 * (SIDE - 2) ** 2, CLASSES)
        super().__init__(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), head)


def federated(
    objective: Objective,
    correction: Correction | None = None,
    aggregation: Average | Normalized | None = None,
    *,
    data: ImageData | None = None,
    model: nn.Module | None = None,
    local: LocalSGD = LOCAL,
    privacy: Privacy | None = None,
    augments: dict[str, Augment] = AUGMENTS,
    **options: object,
) -> Federated:
    parts = splits()
    federation = Federation(data or images(), parts, make_plan(parts, local, objective.uses_unlabeled))
    return Federated(
        model or network(),
        federation,
        Method(objective, correction or Correction(), aggregation or Average(), local, privacy or Privacy()),
        augments,
        **grouped(optimizer=lambda params: torch.optim.SGD(params, lr=1.0), seed=0, **options),
    )


def fit(
    objective: Objective,
    correction: Correction | None = None,
    aggregation: Average | Normalized | None = None,
    rounds: int = 3,
    **options: object,
) -> Federated:
    """The orchestrator after this many rounds."""
    return train(federated(objective, correction, aggregation, **options), rounds)


def train(module: Federated, rounds: int, precision: str = "64-true", **options: object) -> Federated:
    trainer = Trainer(
        max_epochs=rounds,
        precision=precision,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **{"limit_val_batches": 0} | options,
    )
    trainer.fit(module)
    return module
