"""The few formulas that several objectives share."""

from collections.abc import Sequence
from math import log

import torch
from torch import Tensor, nn

from fedshvr.algorithms.objectives.batch import Parts
from fedshvr.compute.streams import _GOLDEN, _mix
from fedshvr.compute.vector import Forward, together
from fedshvr.errors import check


def mean_logits(net: Forward, views: Sequence[Tensor]) -> Tensor:
    """log mean_j f(view_j) of each image, up to a constant; the logits themselves if there is one view."""
    return mean_prediction(together(net, *views))


def mean_prediction(logits: Sequence[Tensor]) -> Tensor:
    return logits[0] if len(logits) == 1 else torch.stack(tuple(logits)).log_softmax(-1).logsumexp(0)


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


def head_of(network: nn.Module) -> nn.Linear:
    """The last linear layer."""
    linear = [module for module in network.modules() if isinstance(module, nn.Linear)]
    check(bool(linear), "algorithm/objective: this one needs a model that ends with a linear layer")
    return linear[-1]
