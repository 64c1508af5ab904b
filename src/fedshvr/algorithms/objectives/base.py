"""What every objective offers, what it is given, and the few formulas that several share."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import exp, log
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from fedshvr.compute.streams import _GOLDEN, Draws, _mix
from fedshvr.compute.vector import Forward, together
from fedshvr.errors import check

State = dict[str, Tensor]
Parts = dict[str, Tensor]
LABEL_VIEWS = {"clean": ("clean",), "weak": ("weak",), "mean4": ("weak",) * 4}
RELABEL = ("round", "epoch", "step")
AS_IT_IS = nullcontext()
MODEL = "model"  # the table of each client's last theta_k, kept if `widths` has it


class Batch(NamedTuple):
    """One local step's data. There is no label of an unlabelled image in it, so none can leak."""

    x: Tensor  # labelled images (augmented)
    y: Tensor  # their classes
    u: tuple[Tensor, ...] = ()  # views of the unlabelled images, in the order of Objective.views
    v: Any = ()  # their pseudo-labels, rows on the simplex, if Objective.pseudo_labels
    noise: dict[str, Tensor] = {}  # random numbers that Objective.draw asked for

    def map(self, f: Callable[[Tensor], Tensor]) -> "Batch":
        """f of every tensor."""
        v = f(self.v) if isinstance(self.v, Tensor) else self.v
        return Batch(f(self.x), f(self.y), tuple(map(f, self.u)), v, {name: f(t) for name, t in self.noise.items()})


class Network(Protocol):
    """The network at the client's current parameters."""

    @property
    def params(self) -> list[Any]: ...
    def __call__(self, x: Tensor) -> Tensor: ...
    def at(self, vector: Tensor) -> Forward: ...
    def untracked(self, x: Tensor) -> Tensor: ...
    def same_masks(self) -> AbstractContextManager[None]: ...
    def no_masks(self) -> AbstractContextManager[None]: ...


class Ramp:
    """The share of the unlabelled term's weight at an epoch, 1 from epoch `epochs` on.

    Before that it is start + (1 - start) r(x) with x = epoch / epochs: linear r = x; exp r = exp(-5 (1 - x)^2), which
    begins at 0.0067; none is 1 throughout. The epochs are those at the start of the round, or (by=epoch, by=step) at
    the start of the client's current epoch or step.
    """

    SHAPES = ("linear", "exp", "none")
    BY = ("round", "epoch", "step")

    def __init__(self, epochs: float, shape: str = "linear", start: float = 0.0, by: str = "round") -> None:
        check(shape in self.SHAPES, f"ramp.shape={shape}: must be one of {', '.join(self.SHAPES)}")
        check(epochs >= 0, f"ramp.epochs={epochs}: must be at least 0")
        check(0 <= start <= 1, f"ramp.start={start}: must be between 0 and 1")
        check(by in self.BY, f"ramp.by={by}: must be one of {', '.join(self.BY)}")
        self.epochs, self.shape, self.start, self.by = epochs, shape, start, by

    def over(self, epoch: float) -> bool:
        return self.shape == "none" or epoch >= self.epochs

    def __call__(self, epoch: float) -> float:
        if self.over(epoch):
            return 1.0
        x = epoch / self.epochs
        return self.start + (1 - self.start) * (x if self.shape == "linear" else exp(-5 * (1 - x) ** 2))


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


def mean_logits(net: Forward, views: Sequence[Tensor]) -> Tensor:
    """log mean_j f(view_j) of each image, up to a constant; the logits themselves if there is one view."""
    logits = together(net, *views)
    return logits[0] if len(logits) == 1 else torch.stack(logits).log_softmax(-1).logsumexp(0)


def soft_cross_entropy(log_f: Tensor, v: Tensor) -> Tensor:
    """-mean_i <v_i, log f_i>."""
    return (v * log_f).sum() / -len(log_f)


def kl_from_uniform(log_p: Tensor) -> Tensor:
    """KL(p_i || uniform) of each row, from log-probabilities."""
    return (log_p.exp() * log_p).sum(-1) + log(log_p.shape[-1])


def mean_kl_from_uniform(log_p: Tensor) -> Tensor:
    """mean_i KL(p_i || uniform): the same with fewer operations, for the inner loop."""
    return (log_p.exp() * log_p).sum() / len(log_p) + log(log_p.shape[-1])


def one_hot_argmax(logits: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).to(logits.dtype)


def weighted(labeled: Tensor, alpha0: float, unlabeled: Tensor) -> tuple[Tensor, Parts]:
    """The loss labeled + alpha0 unlabeled, and its parts."""
    return labeled + alpha0 * unlabeled, {"labeled": labeled, "unlabeled": unlabeled}


def normals(numbers: Tensor, like: Tensor) -> Tensor:
    """Standard normal numbers of the shape of `like`, the i-th row from the i-th uniform number alone.

    So a round's random images need not be drawn at its start and kept. Each uniform number's 53 bits are the key of a
    stream of their own.
    """
    position = torch.arange(1, like[0].numel() + 1, device=like.device)
    bits = _mix(_mix((numbers * 2.0**53).long())[:, None] + position * _GOLDEN)
    uniform = (((bits >> 41) & (2**23 - 1)).to(like.dtype) + 0.5) * 2.0**-23  # exact in float32, never 0 or 1
    return torch.special.ndtri(uniform).view_as(like)
