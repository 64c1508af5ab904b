"""FedMatch's parameters as a sum of two, of which one learns at a time."""

import torch
from torch import Tensor, nn


class Halves(nn.Module):
    """sigma + psi, with the gradient of one of them; in evaluation, entries of psi up to `zero_below` count as 0."""

    learns = "sigma"

    def __init__(self, zero_below: float) -> None:
        super().__init__()
        self.zero_below = zero_below

    def right_inverse(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """psi = 0.2 sigma as published, and sigma + psi = theta, the model that every other method starts from."""
        sigma = theta / 1.2
        return sigma, theta - sigma

    def forward(self, sigma: Tensor, psi: Tensor) -> Tensor:
        if not self.training:
            psi = torch.where(psi.abs() > self.zero_below, psi, 0.0)
        return sigma + psi.detach() if self.learns == "sigma" else sigma.detach() + psi
