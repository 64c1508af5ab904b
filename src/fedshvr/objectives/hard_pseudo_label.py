"""Pseudo-Label (Lee 2013): the most probable class is taken as the label."""

from torch import Tensor
from torch.nn.functional import log_softmax

from fedshvr.errors import check
from fedshvr.objectives.base import (
    Batch,
    Network,
    Objective,
    Parts,
    Ramp,
    State,
    one_hot_argmax,
    soft_cross_entropy,
)
from fedshvr.stacked import cross_entropy
from fedshvr.vector import together


class HardPseudoLabel(Objective):
    """CE(L_k) + alpha0 CE(U_k, argmax f): labels renewed each round (the paper's block descent) or each step (Lee)."""

    parts = ("labeled", "unlabeled")
    RELABEL = ("round", "step")

    def __init__(self, alpha0: float, ramp: Ramp, relabel: str = "round") -> None:
        check(alpha0 >= 0, f"algorithm.objective.alpha0={alpha0}: must be at least 0")
        check(
            relabel in self.RELABEL,
            f"algorithm.objective.relabel={relabel}: must be one of {', '.join(self.RELABEL)}",
        )
        self.final_alpha0, self.ramp = alpha0, ramp
        self.pseudo_labels = relabel == "round"
        self.views = ("weak",) if self.pseudo_labels else ("weak", "clean")

    def begin_round(self, epoch: float) -> None:
        self.alpha0 = self.final_alpha0 * self.ramp(epoch)

    def label(self, logits: Tensor) -> Tensor:
        return one_hot_argmax(logits)

    def loss(self, net: Network, batch: Batch, state: State) -> tuple[Tensor, Parts]:
        logits_x, logits_u = together(net, batch.x, batch.u[0])
        v = batch.v if self.pseudo_labels else one_hot_argmax(net.untracked(batch.u[1]).detach())
        labeled = cross_entropy(logits_x, batch.y)
        unlabeled = soft_cross_entropy(log_softmax(logits_u, -1), v)
        return labeled + self.alpha0 * unlabeled, {"labeled": labeled, "unlabeled": unlabeled}
