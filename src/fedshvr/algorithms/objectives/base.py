"""What every objective offers."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from fedshvr.algorithms.objectives.batch import Batch, Network, Parts, State
from fedshvr.algorithms.objectives.formulas import mean_logits
from fedshvr.algorithms.objectives.ramp import Ramp
from fedshvr.compute.streams import Draws
from fedshvr.errors import check

LABEL_VIEWS = {"clean": ("clean",), "weak": ("weak",), "mean4": ("weak",) * 4}
RELABEL = ("round", "epoch", "step")
AS_IT_IS = nullcontext()


class Objective:
    """A method's loss. Pure in the parameters: the same code runs for one client and, under vmap, for many at once."""

    uses_unlabeled = True
    counts_unlabeled = True  # does tau_k count the unlabelled data this round? If not, it is FedAvg's
    views: tuple[str, ...] = ("weak",)  # "clean", "weak" or "strong", one per entry of Batch.u
    label_views: tuple[str, ...] = ("clean",)  # the views of an image whose mean prediction `label` is given
    makes_labels = False  # does it have `label`?
    pseudo_labels = False  # does `label` make v at the start of each round?
    labels_each_epoch = False  # ... and from theta_k at the start of the client's later epochs of the round?
    labels_now = True  # ... or does it keep the labels of an earlier round this time?
    label_everyone = False  # are the labels made for all clients, not only for those that take part?
    memory: tuple[str, ...] = ()  # names of the vectors of the size of theta that each client keeps
    parts: tuple[str, ...] = ()  # names of the parts of the loss, in the order in which `loss` gives them
    repeats = False  # does it compare passes that must drop the same units?
    compiles = True  # can torch.compile take `loss`? Not if it differentiates inside
    adapts = False  # does `adapt` change the memory before each step?
    alpha0: Any = 0.0  # current weight of the unlabelled term; a tensor where it changes within the round

    def __init__(self, weight: float = 0.0, ramp: Ramp | None = None) -> None:
        check(weight >= 0, f"algorithm.objective.weight={weight}: must be at least 0")
        self.weight, self.ramp = weight, ramp or Ramp(0)

    def wrap(self, network: nn.Module) -> nn.Module:
        """The network whose parameters are theta, made once from the model."""
        return network

    def exchanges(self, round_index: int) -> bool:
        """Do clients get each other's models into their memory before this round? Needs MODEL in `widths`."""
        return False

    def begin_round(self, epoch: float) -> None:
        """Set what depends on how many epochs have passed."""
        self.alpha0 = self.weight * self.ramp(epoch)

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

    def set_labeling(self, relabel: str, label_view: str) -> None:
        """For methods with pseudo-labels: when they are made, and from which view.

        round: of all the client's samples, from theta; epoch: the same, and again from theta_k at the start of each
        later epoch of the round; step: of the samples of the batch, from theta_k.
        clean: the image as it is; weak: one augmented view, drawn anew for each labelling; mean4: the mean prediction
        over four of them.
        """
        choices = (("relabel", relabel, RELABEL), ("label_view", label_view, tuple(LABEL_VIEWS)))
        for name, value, valid in choices:
            check(value in valid, f"algorithm.objective.{name}={value}: must be one of {', '.join(valid)}")
        self.makes_labels = True
        self.label_views, self.pseudo_labels = LABEL_VIEWS[label_view], relabel != "step"
        self.labels_each_epoch = relabel == "epoch"
        self.views = ("weak",) if self.pseudo_labels else ("weak", *self.label_views)

    def label(self, logits: Tensor) -> Tensor:
        """Pseudo-labels v of the images with these logits."""
        raise AssertionError("only asked of objectives with pseudo-labels")

    def targets(self, net: Network, batch: Batch) -> Tensor:
        """v of the batch: from the start of the round or epoch, or made now from the client's current model."""
        if self.pseudo_labels:
            return batch.v
        with torch.no_grad(), net.no_masks():
            return self.label(mean_logits(net.untracked, batch.u[1:]))

    def label_cost(self, v: Tensor) -> Tensor:
        """The part of F that depends on v alone, per sample."""
        return v.new_zeros(len(v))

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

    def after_step(self, state: State, theta_k: Tensor, done: Tensor) -> None:
        """Update the client's memory after a local step; `done` counts its steps before this one."""
