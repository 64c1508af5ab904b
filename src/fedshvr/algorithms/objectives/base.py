"""What every objective offers."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from fedshvr.algorithms.objectives.batch import Batch, Network, Parts, State
from fedshvr.algorithms.objectives.labeling import Labeling
from fedshvr.algorithms.objectives.ramp import Ramp
from fedshvr.compute.stacked import cross_entropy
from fedshvr.compute.streams import Draws
from fedshvr.errors import check

AS_IT_IS = nullcontext()


class Objective(Labeling):
    """A method's loss. Pure in the parameters: the same code runs for one client and, under vmap, for many at once."""

    uses_unlabeled = True
    counts_unlabeled = True  # does tau_k count the unlabelled data this round? If not, it is FedAvg's
    memory: tuple[str, ...] = ()  # names of the vectors of the size of theta that each client keeps
    parts: tuple[str, ...] = ()  # names of the parts of the loss, in the order in which `loss` gives them
    repeats = False  # does it compare passes that must drop the same units?
    compiles = True  # can torch.compile take `loss`? Not if it differentiates inside
    adapts = False  # does `adapt` change the memory before each step?
    whole = ""  # why every client must have both labelled and unlabelled samples, if so
    alpha0: Any = 0.0  # current weight of the unlabelled term; a tensor where it changes within the round

    def __init__(self, weight: float = 0.0, ramp: Ramp | None = None) -> None:
        check(weight >= 0, f"algorithm.objective.weight={weight}: must be at least 0")
        self.weight, self.ramp = weight, ramp or Ramp(0)

    def wrap(self, network: nn.Module) -> nn.Module:
        """The network whose parameters are theta, made once from the model."""
        return network

    def plain(self, state: State) -> State:
        """The tensors of the model itself, by its own names, from those of the network that is evaluated."""
        return state

    def exchanges(self, round_index: int) -> bool:
        """Do clients get each other's models into their memory before this round? Needs MODEL in `widths`."""
        return False

    def begin_round(self, epoch: float) -> None:
        """Set what depends on how many epochs have passed."""
        self.alpha0 = self.weight * self.ramp(epoch)

    def learns_unlabeled(self, epoch: float) -> bool:
        """Does it learn from unlabelled samples in the round that begins at this epoch?"""
        return self.uses_unlabeled

    @contextmanager
    def weighed(self, alpha0: Tensor) -> Iterator[None]:
        """alpha0 of one step in here; else it is that of the start of the round."""
        before, self.alpha0 = self.alpha0, alpha0
        try:
            yield
        finally:
            self.alpha0 = before

    def at_step(self, noise: dict[str, Tensor], dtype: torch.dtype) -> AbstractContextManager[None]:
        """With alpha0 of the step that has this noise."""
        return self.weighed(noise["alpha0"].to(dtype)) if "alpha0" in noise else AS_IT_IS

    def widths(self, parameters: int, classes: int) -> dict[str, int]:
        """How many numbers each vector of the memory has."""
        return dict.fromkeys(self.memory, parameters)

    def draw(self, draws: Draws, steps: int, labeled: int, unlabeled: int) -> dict[str, Tensor]:
        """Random numbers for Batch.noise, first dimensions (clients, steps)."""
        return {}

    def begin_client(self, state: State, theta: Tensor, done: Tensor) -> None:
        """Prepare the client's memory at the start of its round; `done` counts the steps of its earlier rounds."""

    def adapt(self, net: Network, batch: Batch, state: State, done: Tensor) -> State:
        """New values of the client's memory, from the batch of the step to come; `done` counts the steps before it."""
        return state

    def loss(self, net: Network, batch: Batch, state: State) -> tuple[Tensor, Parts]:
        raise NotImplementedError

    def labeled_loss(self, net: Network, batch: Batch) -> Tensor:
        """The labelled term by itself: what a server that has labels descends."""
        return cross_entropy(net(batch.x), batch.y)

    def without_labels(self, loss: Tensor, parts: Parts) -> Tensor:
        """The loss of a client that has no label: of the sum, the other terms."""
        return loss - parts["labeled"]

    def after_step(self, state: State, theta_k: Tensor, done: Tensor) -> None:
        """Update the client's memory after a local step; `done` counts its steps before this one."""
