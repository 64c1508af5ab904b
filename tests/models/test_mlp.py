"""The initial weights of the MLP."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from fedshvr.errors import UserError
from fedshvr.models.mlp import MLP

FAN_IN, HIDDEN, CLASSES = 784, 500, 10


def linears(init: str) -> list[nn.Linear]:
    torch.manual_seed(3)
    network = MLP((1, 28, 28), CLASSES, [HIDDEN], init=init, dropout=0.5)
    return [layer for layer in network.layers if isinstance(layer, nn.Linear)]


def fans() -> list[tuple[int, int]]:
    return list(pairwise([FAN_IN, HIDDEN, CLASSES]))


def moments(weight: Tensor) -> tuple[float, float, float]:
    """mean, variance and largest size"""
    weight = weight.detach().double()
    return weight.mean().item(), weight.var().item(), weight.abs().max().item()


def test_torch_is_what_pytorch_draws() -> None:
    """Number by number, so that a run with the default is the run that it always was."""
    ours = linears("torch")
    torch.manual_seed(3)
    for layer, (fan_in, fan_out) in zip(ours, fans(), strict=True):
        theirs = nn.Linear(fan_in, fan_out)
        assert torch.equal(layer.weight, theirs.weight)
        assert torch.equal(layer.bias, theirs.bias)


def test_glorot_is_uniform_within_its_bound() -> None:
    for layer, (fan_in, fan_out) in zip(linears("glorot"), fans(), strict=True):
        bound = (6 / (fan_in + fan_out)) ** 0.5
        mean, variance, largest = moments(layer.weight)
        assert abs(mean) < 0.02 * bound
        assert 0.999 * bound < largest <= bound
        assert variance == pytest.approx(2 / (fan_in + fan_out), rel=0.03)
        assert not layer.bias.any()


def test_he_is_normal_with_variance_two_over_fan_in() -> None:
    for layer, (fan_in, _) in zip(linears("he"), fans(), strict=True):
        std = (2 / fan_in) ** 0.5
        mean, variance, largest = moments(layer.weight)
        assert abs(mean) < 0.05 * std
        assert variance == pytest.approx(std**2, rel=0.05)
        assert largest > 3 * std  # no bound: a uniform draw ends at 1.73 std
        assert not layer.bias.any()


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(UserError, match=r"^model\.init=xavier: must be one of torch, glorot, he$"):
        linears("xavier")
