"""What a federation is told, in groups that belong together."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from math import inf
from typing import Any

import torch
from torch import nn

from fedshvr.algorithms.aggregation import Average
from fedshvr.algorithms.corrections import Correction
from fedshvr.algorithms.objectives.base import Objective
from fedshvr.algorithms.privacy import Privacy
from fedshvr.compute.engine import ENGINES
from fedshvr.compute.memory import PLACES
from fedshvr.errors import check
from fedshvr.federation.cohort import Cohorts
from fedshvr.federation.plan import LocalSGD

BUFFERS = ("average", "local")
EVALUATE = ("theta", "ema")
ON_CLIENT_ERROR = ("fail", "skip")


@dataclass(frozen=True)
class Method:
    """The algorithm: what a client minimises, how its gradient is corrected, how models become one; its local SGD.

    And how much of one client the result may show.
    """

    objective: Objective
    correction: Correction
    aggregation: Average
    local: LocalSGD
    privacy: Privacy = field(default_factory=Privacy)

    def __post_init__(self) -> None:
        name = type(self.correction).__name__
        check(
            not (self.local.momentum and self.correction.plain_sgd),
            f"client.momentum={self.local.momentum}: must be 0, because {name} assumes plain SGD",
        )
        check(
            not (self.aggregation.groups and self.correction.memory),
            f"algorithm/aggregation: grouping starts clients from different models, but {name} "
            "compares their moves from one; use algorithm/correction=none or proximal",
        )
        self.privacy.check_method(self.objective, self.correction, self.aggregation)

    def begin_round(self, round: int) -> None:
        """alpha0 and the phase of the objective follow from the round alone."""
        self.objective.begin_round(round * self.local.epochs)


@dataclass(frozen=True)
class ServerRule:
    """The server's optimiser (SGD, lr 1: the paper), what becomes of batch-norm statistics, and what is evaluated."""

    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    buffers: str = "average"
    evaluate: str = "theta"
    ema_decay: float = 0.999
    server_epochs: float = 1.0  # of the local solver on the labels that the server has, after each aggregation
    on_client_error: str = "fail"  # skip: a client that raises, or sends what is not finite, is left out of the round

    def __post_init__(self) -> None:
        check(self.buffers in BUFFERS, f"buffers={self.buffers}: must be one of {', '.join(BUFFERS)}")
        check(self.evaluate in EVALUATE, f"evaluate={self.evaluate}: must be one of {', '.join(EVALUATE)}")
        valid = ", ".join(ON_CLIENT_ERROR)
        check(
            self.on_client_error in ON_CLIENT_ERROR,
            f"on_client_error={self.on_client_error}: must be one of {valid}",
        )
        check(0 <= self.ema_decay < 1, f"ema_decay={self.ema_decay}: must be at least 0 and below 1")
        epochs = self.server_epochs
        check(0 < epochs < inf, f"server_epochs={epochs}: must be positive and finite")


@dataclass(frozen=True)
class Compute:
    """How the work is done: no number depends on it beyond rounding."""

    engine: str = "auto"
    client_state: str = "device"
    compile: str | None = None

    def __post_init__(self) -> None:
        place, valid = self.client_state, ", ".join(PLACES)
        check(place in PLACES, f"client_state={place}: must be one of {valid}")
        check(self.engine in ENGINES, f"engine={self.engine}: must be one of {', '.join(ENGINES)}")
        check(
            self.compile is None or self.engine in ("auto", "sequential"),
            f"compile={self.compile}: works with engine=sequential, not with engine={self.engine}",
        )


@dataclass(frozen=True)
class Measures:
    """What is measured beside the training."""

    optimality_gap: bool = False
    server_loss_every: int = 0
    client_accuracy: bool = False

    def __post_init__(self) -> None:
        every = self.server_loss_every
        check(every >= 0, f"server_loss_every={every}: must be at least 0 (0: never)")


def grouped(**options: Any) -> dict[str, Any]:
    """Single options, by the names that configs/train.yaml has for them, as the groups that Federated takes."""
    kinds = {"cohorts": Cohorts, "server": ServerRule, "compute": Compute, "measures": Measures}
    groups = {
        name: kind(**{f.name: options.pop(f.name) for f in fields(kind) if f.name in options})
        for name, kind in kinds.items()
    }
    check(not options, f"unknown options: {', '.join(options)}")
    return groups
