"""Pi model (Laine & Aila 2017): two noisy looks at the same image should agree."""

from torch import Tensor
from torch.nn.functional import mse_loss

from fedshvr.algorithms.objectives.base import Objective
from fedshvr.algorithms.objectives.batch import Batch, Network, Parts, State
from fedshvr.algorithms.objectives.formulas import weighted
from fedshvr.compute.stacked import cross_entropy
from fedshvr.compute.vector import together


class PiModel(Objective):
    """CE(L_k) + w(t) MSE(f_theta(u'), f_theta(u'')), w(t) = weight exp(-5 (1 - t/T)^2).

    u' and u'' are two augmented views, each with dropout of its own. The gradient flows through both, as published:
    neither is a target.
    """

    views = ("weak", "weak")
    parts = ("labeled", "unlabeled")

    def loss(self, net: Network, batch: Batch, state: State) -> tuple[Tensor, Parts]:
        logits_x, first, second = together(net, batch.x, *batch.u)
        disagreement = mse_loss(first.softmax(-1), second.softmax(-1))
        return weighted(cross_entropy(logits_x, batch.y), self.alpha0, disagreement)
