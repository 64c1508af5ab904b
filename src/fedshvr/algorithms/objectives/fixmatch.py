"""FixMatch (Sohn et al. 2020): confident labels of the weak view train the strong view."""

from torch import Tensor
from torch.nn.functional import cross_entropy

from fedshvr.algorithms.objectives.base import Objective
from fedshvr.algorithms.objectives.batch import Batch, Network, Parts, State
from fedshvr.algorithms.objectives.formulas import weighted
from fedshvr.algorithms.objectives.ramp import Ramp
from fedshvr.compute.vector import together
from fedshvr.errors import check


class FixMatch(Objective):
    """CE(L_k) + w(t) mean_i 1[max p_i >= threshold] CE(argmax p_i, f_theta(strong u_i)),  p_i = f_theta(weak u_i)*.

    Published with an average of the weights for the test, decay 0.999 (here evaluate=ema), and with 7 unlabelled images
    for a labelled one (here client.batch_unlabeled).
    """

    views = ("weak", "strong")
    parts = ("labeled", "unlabeled")

    def __init__(self, weight: float, threshold: float, ramp: Ramp) -> None:
        super().__init__(weight, ramp)
        check(0 <= threshold < 1, f"algorithm.objective.threshold={threshold}: must be at least 0 and below 1")
        self.threshold = threshold

    def loss(self, net: Network, batch: Batch, state: State) -> tuple[Tensor, Parts]:
        logits_x, weak, strong = together(net, batch.x, *batch.u)
        confidence, label = weak.detach().softmax(-1).max(-1)
        sure = (confidence >= self.threshold).to(strong.dtype)
        unlabeled = (sure * cross_entropy(strong, label, reduction="none")).mean()
        return weighted(cross_entropy(logits_x, batch.y), self.alpha0, unlabeled)
