"""The contract between server and client: what travels in a round. Tensors and numbers, no live objects.

A message speaks of one client or of n whose rows lie in one stack; one client's is the case n = 1.
"""

import io
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor


@dataclass
class Broadcast:
    """From the server to n clients at the start of a round."""

    round: int
    clients: list[int]
    tau: list[int]  # local steps that each is to make
    theta: Tensor  # (n, P) what they start from: theta, or their group's model
    buffers: Tensor  # (B,) batch-norm statistics
    c: Tensor  # (P,) the server's control variate; empty if the correction has none
    done: Tensor  # (n,) local steps that each has made in earlier rounds; in main memory
    exchanged: dict[str, Tensor] = field(default_factory=dict)  # what clients are given of each other: name -> (n, P)

    def of(self, i: int) -> "Broadcast":
        """The i-th client's own."""
        rows = slice(i, i + 1)
        return replace(
            self,
            clients=self.clients[rows],
            tau=self.tau[rows],
            theta=self.theta[rows],
            done=self.done[rows],
            exchanged={name: t[rows] for name, t in self.exchanged.items()},
        )


@dataclass
class Update:
    """From n clients to the server when they have made their steps."""

    clients: list[int]
    tau: list[int]  # local steps that each has made
    omega: list[float]  # its weight among all clients
    theta: Tensor  # (n, P) theta_k
    buffers: Tensor  # (n, B)
    change: Tensor  # (n, P) of its control variate; empty if the correction reports none
    metrics: Tensor  # (n, 1 + parts) mean loss of its steps, and the means of the loss's parts
    finite: Tensor  # (n,) steps before the first whose loss was not finite; tau_k or more if all were

    def split(self) -> list["Update"]:
        """One Update for each client."""
        tensors = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        return [
            Update([k], [self.tau[i]], [self.omega[i]], **{name: t[i : i + 1] for name, t in tensors.items()})
            for i, k in enumerate(self.clients)
        ]

    def only(self, rows: list[int] | None = None) -> "Update":
        """A copy with these of its rows, or with all; a tensor that is empty stays so."""
        rows = list(range(len(self.clients))) if rows is None else rows
        lists = ([values[i] for i in rows] for values in (self.clients, self.tau, self.omega))
        tensors = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        return Update(*lists, **{name: t[rows] if len(t) else t for name, t in tensors.items()})  # type: ignore[arg-type]


@dataclass
class Labeled:
    """From a client that has made its pseudo-labels v_k anew, part by part of its m parts."""

    client: int
    samples: int  # unlabelled samples
    right: Tensor  # (m,) labels that are right: for the log, the client itself does not know
    given: Tensor  # (m,) labels, as a sample may be left without one
    cost: Tensor  # (m,) sum of the part of F that depends on v_k alone
    moved: Tensor  # (m,) |v_k' - v_k|^2


Message = Broadcast | Update | Labeled
KINDS = {kind.__name__: kind for kind in (Broadcast, Update, Labeled)}


def nbytes(message: Message) -> int:
    """The size of its tensors."""
    values = [v for value in vars(message).values() for v in (value.values() if isinstance(value, dict) else [value])]
    return sum(v.numel() * v.element_size() for v in values if isinstance(v, Tensor))


def to_bytes(message: Message) -> bytes:
    file = io.BytesIO()
    torch.save({"kind": type(message).__name__} | {name: _own(value) for name, value in vars(message).items()}, file)
    return file.getvalue()


def from_bytes(data: bytes) -> Message:
    """The message with its very bits, in main memory; nothing but tensors and numbers is read."""
    fields = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    return KINDS[fields.pop("kind")](**fields)


def _own(value: Any) -> Any:
    """A tensor without the rest of the memory that it is a view of."""
    if isinstance(value, dict):
        return {name: _own(v) for name, v in value.items()}
    return value.detach().clone(memory_format=torch.contiguous_format) if isinstance(value, Tensor) else value
