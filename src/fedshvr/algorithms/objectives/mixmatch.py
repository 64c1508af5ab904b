"""MixMatch (Berthelot et al. 2019): sharpened guesses, then MixUp of labelled and unlabelled images."""

import torch
from scipy.special import betaincinv
from torch import Tensor
from torch.nn.functional import mse_loss, one_hot

from fedshvr.algorithms.objectives.base import Objective
from fedshvr.algorithms.objectives.batch import Batch, Network, Parts, State
from fedshvr.algorithms.objectives.formulas import soft_cross_entropy, weighted
from fedshvr.algorithms.objectives.ramp import Ramp
from fedshvr.compute.streams import Draws
from fedshvr.errors import check


class MixMatch(Objective):
    """CE(X') + w(t) MSE(f(U'), q'), (X', U') = MixUp((X, U), shuffled (X, U)).

    q  = sharpen(mean over the two views of f(u)), no gradient;  sharpen(p) = p^(1/T) / sum p^(1/T)
    a' = l a + (1 - l) b for images and labels alike,  l = max(l0, 1 - l0),  l0 ~ Beta(beta, beta) for each image
    Published with an average of the weights for the test, decay 0.999: here evaluate=ema.
    """

    views = ("weak", "weak")
    parts = ("labeled", "unlabeled")
    whole = "mixes labelled images with unlabelled ones"

    def __init__(self, weight: float, temperature: float, beta: float, ramp: Ramp) -> None:
        super().__init__(weight, ramp)
        check(temperature > 0, f"algorithm.objective.temperature={temperature}: must be positive")
        check(beta > 0, f"algorithm.objective.beta={beta}: must be positive")
        self.temperature, self.beta = temperature, beta

    def draw(self, draws: Draws, steps: int, labeled: int, unlabeled: int) -> dict[str, Tensor]:
        shape = (steps, labeled + len(self.views) * unlabeled)
        share = torch.from_numpy(betaincinv(self.beta, self.beta, draws("share", shape).numpy()))
        return {"share": torch.maximum(share, 1 - share), "partner": draws("partner", shape).argsort(-1)}

    def loss(self, net: Network, batch: Batch, state: State) -> tuple[Tensor, Parts]:
        q = self.guess(net, batch.u)
        share, partner = batch.noise["share"].to(q.dtype), batch.noise["partner"]
        images = mixup(torch.cat([batch.x, *batch.u]), share, partner)
        targets = mixup(torch.cat([one_hot(batch.y, q.shape[-1]).to(q.dtype), q, q]), share, partner)
        logits, n = net(images), len(batch.x)
        labeled = soft_cross_entropy(logits[:n].log_softmax(-1), targets[:n])
        return weighted(labeled, self.alpha0, mse_loss(logits[n:].softmax(-1), targets[n:]))

    @torch.no_grad()
    def guess(self, net: Network, views: tuple[Tensor, ...]) -> Tensor:
        """q of each unlabelled image."""
        first, second = net.untracked(torch.cat(views)).softmax(-1).chunk(2)
        return (((first + second) / 2).log() / self.temperature).softmax(-1)


def mixup(a: Tensor, share: Tensor, partner: Tensor) -> Tensor:
    share = share.view(-1, *[1] * (a.dim() - 1))
    return share * a + (1 - share) * a[partner]
