"""Attackers: clients that send something else than what they have computed."""

import torch
from torch import Tensor

from fedshvr.compute.streams import stream
from fedshvr.rounds.messages import Broadcast, Update

FACTOR = {"sign_flip": -1.0, "scale": 100.0}  # of the move and of the change of c_k


def lie(update: Update, broadcast: Broadcast, attack: str, liars: set[int], seed: int) -> None:
    """Replace theta_k and the change of c_k of the liars in place; what they remember themselves is as it is.

    garbage: theta + n and n', standard normal numbers; else theta_k' - theta is a multiple of theta_k - theta.
    """
    for i, k in enumerate(update.clients):
        if k not in liars:
            continue
        move = update.theta[i] - broadcast.theta[i]
        sent = [move, update.change[i]] if len(update.change) else [move]
        if attack == "garbage":
            fake = noise(len(sent), move, seed, broadcast.round, k)
        else:
            fake = [FACTOR[attack] * honest for honest in sent]
        update.theta[i] = broadcast.theta[i] + fake[0]
        if len(update.change):
            update.change[i] = fake[1]


def noise(count: int, like: Tensor, *path: int) -> list[Tensor]:
    """Standard normal vectors, a function of seed, round and client."""
    numbers = torch.randn(count, len(like), generator=stream("attack", *path), dtype=torch.float64)
    return list(numbers.to(like))
