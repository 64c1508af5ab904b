"""What an objective is given: the data of a local step, and the network at the client's parameters."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from fedshvr.compute.vector import Forward

State = dict[str, Tensor]
Parts = dict[str, Tensor]
MODEL = "model"  # the table of each client's last theta_k, kept if `Objective.widths` has it


class Batch(NamedTuple):
    """One local step's data. There is no label of an unlabelled image in it, so none can leak."""

    x: Tensor  # labelled images (augmented)
    y: Tensor  # their classes
    u: tuple[Tensor, ...] = ()  # views of the unlabelled images, in the order of Objective.views
    v: Any = ()  # their pseudo-labels, rows on the simplex (or shorter: a label that counts less), if pseudo_labels
    noise: dict[str, Tensor] = {}  # random numbers that Objective.draw asked for

    def map(self, f: Callable[[Tensor], Tensor]) -> "Batch":
        """f of every tensor."""
        v = f(self.v) if isinstance(self.v, Tensor) else self.v
        return Batch(f(self.x), f(self.y), tuple(map(f, self.u)), v, {name: f(t) for name, t in self.noise.items()})


class Network(Protocol):
    """The network at the client's current parameters."""

    @property
    def params(self) -> list[Any]: ...
    def __call__(self, x: Tensor, learned: int | None = None) -> Tensor: ...
    def at(self, vector: Tensor) -> Forward: ...
    def untracked(self, x: Tensor) -> Tensor: ...
    def same_masks(self) -> AbstractContextManager[None]: ...
    def no_masks(self) -> AbstractContextManager[None]: ...
