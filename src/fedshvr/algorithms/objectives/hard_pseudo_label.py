"""Pseudo-Label (Lee 2013): the most probable class is taken as the label."""

from torch import Tensor
from torch.nn.functional import log_softmax

from fedshvr.algorithms.objectives.base import Objective
from fedshvr.algorithms.objectives.batch import Batch, Network, Parts, State
from fedshvr.algorithms.objectives.formulas import one_hot_argmax, soft_cross_entropy, weighted
from fedshvr.algorithms.objectives.ramp import Ramp
from fedshvr.compute.stacked import cross_entropy
from fedshvr.errors import check


class HardPseudoLabel(Objective):
    """CE(L_k) + alpha0 CE(U_k, argmax f): labels renewed each round (the paper), epoch or step (Lee)."""

    parts = ("labeled", "unlabeled")

    def __init__(self, alpha0: float, ramp: Ramp, relabel: str = "round", label_view: str = "weak") -> None:
        check(alpha0 >= 0, f"algorithm.objective.alpha0={alpha0}: must be at least 0")
        super().__init__(alpha0, ramp)
        self.set_labeling(relabel, label_view)

    def label(self, logits: Tensor) -> Tensor:
        return one_hot_argmax(logits)

    def loss(self, net: Network, batch: Batch, state: State) -> tuple[Tensor, Parts]:
        logits_x, logits_u, v = self.look(net, batch)
        unlabeled = soft_cross_entropy(log_softmax(logits_u, -1), v)
        return weighted(cross_entropy(logits_x, batch.y), self.alpha0, unlabeled)
