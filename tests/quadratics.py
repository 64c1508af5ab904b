"""Scalar quadratic clients f_k(x) = a_k (x - b_k)^2 / 2, run through the real Federated, Client and Trainer."""

import logging

import numpy as np
import torch
from tiny import train
from torch import Tensor, nn

from fedshvr.algorithms.aggregation import Average
from fedshvr.algorithms.corrections import Correction
from fedshvr.algorithms.objectives.base import Objective
from fedshvr.algorithms.objectives.batch import Batch, Network, Parts, State
from fedshvr.algorithms.privacy import Privacy
from fedshvr.data.augment import Augment
from fedshvr.data.holdings import Federation
from fedshvr.data.sources import ImageData
from fedshvr.federation.partition import Split
from fedshvr.federation.plan import LocalSGD, make_plan
from fedshvr.rounds.federated import Federated
from fedshvr.rounds.options import Method, grouped

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Parabola(nn.Module):
    """x; an "image" holds (a_k, b_k), the "logits" are a_k (x - b_k)^2 / 2."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, image: Tensor) -> Tensor:
        a, b = image.flatten(1).unbind(1)
        return a * (self.x - b) ** 2 / 2


class Quadratic(Objective):
    uses_unlabeled = False
    views = ()

    def loss(self, net: Network, batch: Batch, state: State) -> tuple[Tensor, Parts]:
        return net(batch.x).mean(), {}


def federation(
    a: list[float], b: list[float], tau: list[int], local: LocalSGD, weighting: str = "samples"
) -> Federation:
    """Client k holds tau_k copies of (a_k, b_k): with batch 1 and one epoch it makes tau_k steps; omega_k ~ tau_k."""
    rows = [(a[k], b[k]) for k in range(len(a)) for _ in range(tau[k])]
    x = torch.tensor(rows, dtype=torch.float64).view(-1, 1, 1, 2)
    y = torch.zeros(len(x), dtype=torch.long)
    ends = np.cumsum(tau)
    none = np.empty(0, dtype=np.int64)
    splits = [Split(np.arange(end - t, end), none, (0,)) for t, end in zip(tau, ends, strict=True)]
    images = ImageData("quadratic", x, y, x[:1], y[:1], ("only",))
    return Federation(images, splits, make_plan(splits, local, uses_unlabeled=False, weighting=weighting))


def solve(
    a: list[float],
    b: list[float],
    tau: list[int],
    correction: Correction,
    aggregation: Average,
    rounds: int,
    eta: float = 0.05,
    momentum: float = 0.0,
    weighting: str = "samples",
    privacy: Privacy | None = None,
    **options: object,
) -> Federated:
    """The orchestrator after this many rounds from x = 0, in float64."""
    local = LocalSGD(eta=eta, epochs=1, batch_labeled=1, batch_unlabeled=1, momentum=momentum)
    module = Federated(
        Parabola(),
        federation(a, b, tau, local, weighting),
        Method(Quadratic(), correction, aggregation, local, privacy or Privacy()),
        {"clean": Augment(), "weak": Augment()},
        **grouped(optimizer=lambda params: torch.optim.SGD(params, lr=1.0), seed=0, **options),
    )
    return train(module, rounds)
