"""A network whose numbers can be worked out by hand."""

from math import log

import torch
from torch import Tensor, nn

from fedshvr.compute.vector import FlatNet


class Line(nn.Module):
    """Logits (w x, 0) of a number x, w = ln 3: f(x) = (3^x, 1) / (3^x + 1), so f(1) = (3, 1)/4 and f(2) = (9, 1)/10."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([log(3)], dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.w * x, 0 * x], 1)


def line() -> FlatNet:
    return FlatNet(Line(), torch.device("cpu"), torch.float64)


def column(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)[:, None]


def slope(loss: Tensor, net: FlatNet) -> float:
    """d loss / d w. That of f_0 is f_0 f_1 x: 3/16 at x = 1 and 9/50 at x = 2."""
    return torch.autograd.grad(loss, net.params, retain_graph=True)[0].item()


ZERO = torch.tensor([0])  # the labelled image x = 1 has class 0 in all cases: CE = -ln 3/4, slope -1/4
CE, CE_SLOPE = -log(3 / 4), -1 / 4
