"""Randomness without state: every number is a function of (seed, purpose, round, client, position).

So resume, the number of ranks, the order of the clients and the engine cannot change what is drawn.
"""

import hashlib
from math import prod

import torch
from torch import Tensor

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit integer
_MIX1, _MIX2 = -4658895280553007687, -7723592293110705685  # splitmix64's 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def stream_seed(*path: int | str) -> int:
    """A 63-bit seed from a path such as (seed, "cohort", round)."""
    digest = hashlib.blake2b(repr(path).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def stream(*path: int | str) -> torch.Generator:
    """A fresh CPU generator for this path, for the few draws that concern all clients."""
    return torch.Generator().manual_seed(stream_seed(*path))


def _mix(z: Tensor) -> Tensor:
    """splitmix64's finaliser; int64 arithmetic wraps, and the masks make the shifts logical."""
    z = (z ^ ((z >> 30) & (2**34 - 1))) * _MIX1
    z = (z ^ ((z >> 27) & (2**37 - 1))) * _MIX2
    return z ^ ((z >> 31) & (2**33 - 1))


class Draws:
    """Uniform numbers for some clients' round, (clients, *shape), each client's independent of the others."""

    def __init__(self, seed: int, round: int, clients: Tensor) -> None:
        self.path, self.clients = (seed, round), clients

    def __call__(self, purpose: str, shape: tuple[int, ...]) -> Tensor:
        """Float64 in [0, 1)."""
        client_key = _mix((self.clients + 1) * _GOLDEN + stream_seed(*self.path, purpose))
        position = torch.arange(1, prod(shape) + 1, device=self.clients.device)
        bits = _mix(client_key[:, None] + position * _GOLDEN)
        return (((bits >> 11) & (2**53 - 1)).double() * 2.0**-53).view(len(self.clients), *shape)
