"""Ladder network (Rasmus et al. 2015): every layer learns to denoise itself, with help from the layer above."""

import torch
from torch import Tensor, nn

from fedshvr.algorithms.objectives.base import Objective
from fedshvr.algorithms.objectives.batch import Batch, Network, Parts, State
from fedshvr.algorithms.objectives.formulas import weighted
from fedshvr.algorithms.objectives.ladder_net import LadderNet
from fedshvr.algorithms.objectives.ramp import Ramp
from fedshvr.compute.stacked import cross_entropy
from fedshvr.compute.streams import Draws
from fedshvr.errors import check


class Ladder(Objective):
    """CE(L_k; z~) + w(t) sum_l lambda_l mean |z^l - (e^l - mean^l) / std^l|^2, l = 0 (the image) .. L (the logits).

    clean pass:  z^l = BN(W^l h^(l-1)) with mean^l and std^l;  z^0 = the image, mean^0 = 0, std^0 = 1
    noisy pass:  z~^l = BN(W^l h~^(l-1)) + noise N(0, I);  z~^0 = z^0 + image_noise N(0, I)
    in both:     h^l = ReLU(z^l + beta^l), logits gamma (z^L + beta^L)
    estimates:   e^l = (z~^l - m(u^l)) s(u^l) + m(u^l), unit by unit;  u^L = BN(softmax), u^l = BN(V^(l+1) e^(l+1))
                 m(u) = a1 sigmoid(a2 u + a3) + a4 u + a5,  s(u) = a6 sigmoid(a7 u + a8) + a9 u + a10
    The gradient flows through both passes, as published; beta, gamma, V and a are part of theta; the clean pass is what
    is tested. A network other than the MLP is one layer: its logits alone are denoised (the Gamma variant), and noise
    is added there and to the image. Labelled and unlabelled images are one population for batch norm and are all
    denoised (in the public code two, and the unlabelled alone). Published with Adam, and with MNIST in [0, 1], standard
    deviation .3081: lambda_0 = 1000 and the noise 0.3 there are 1000 (.3081)^2 = 95 and 0.3 / .3081 = 0.97 here.
    """

    parts = ("labeled", "unlabeled")

    def __init__(
        self, weight: float, noise: float, image_noise: float, lambdas: list[float], top: float, ramp: Ramp
    ) -> None:
        super().__init__(weight, ramp)
        for name, value in (("noise", noise), ("image_noise", image_noise), ("top", top)):
            check(value >= 0, f"algorithm.objective.{name}={value}: must be at least 0")
        valid = len(lambdas) > 0 and min(lambdas) >= 0
        check(valid, f"algorithm.objective.lambdas={list(lambdas)}: must be a list of numbers of at least 0")
        self.noise, self.image_noise, self.lambdas, self.top = noise, image_noise, list(lambdas), top

    def wrap(self, network: nn.Module) -> nn.Module:
        self.ladder = LadderNet(network, self.noise, self.image_noise)
        return self.ladder

    def plain(self, state: State) -> State:
        return self.ladder.folded(state)

    def draw(self, draws: Draws, steps: int, labeled: int, unlabeled: int) -> dict[str, Tensor]:
        return {"noise": draws("noise", (steps, 1 + len(self.ladder.stages), labeled + unlabeled))}

    def loss(self, net: Network, batch: Batch, state: State) -> tuple[Tensor, Parts]:
        images = torch.cat([batch.x, *batch.u])
        with net.no_masks():
            _, clean = self.ladder.watch(net, images)
        logits, noisy = self.ladder.watch(net.untracked, images, batch.noise["noise"])
        costs = self.ladder.denoise(logits, clean, noisy)
        lambdas = self.lambdas + self.lambdas[-1:] * len(costs) if len(costs) > 1 else [self.top]
        unlabeled = torch.stack([weight * cost for weight, cost in zip(lambdas, costs, strict=False)]).sum()
        return weighted(cross_entropy(logits[: len(batch.x)], batch.y), self.alpha0, unlabeled)
