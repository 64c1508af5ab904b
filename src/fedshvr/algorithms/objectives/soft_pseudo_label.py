"""Fed-SHVR's objective: soft pseudo-labels with two regularisers (the paper, eq. 5 and Lemma 1)."""

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from fedshvr.algorithms.objectives.base import Objective
from fedshvr.algorithms.objectives.batch import Batch, Network, Parts, State
from fedshvr.algorithms.objectives.formulas import (
    kl_from_uniform,
    mean_kl_from_uniform,
    one_hot_argmax,
    soft_cross_entropy,
)
from fedshvr.algorithms.objectives.ramp import Ramp
from fedshvr.compute.stacked import cross_entropy
from fedshvr.errors import check


class SoftPseudoLabel(Objective):
    """F_k = CE(L_k) + alpha0 CE(U_k, v_k) + alpha1 r1(v_k) + alpha2 r2(theta).

    r1(v)     = mean_i KL(v_i || uniform)           softens the pseudo-labels
    r2(theta) = mean_i KL(f_theta(u_i) || uniform)  confidence penalty; the gradient flows through f
    Lemma 1:  v = f^(alpha0/alpha1) / sum f^(alpha0/alpha1); alpha1 = 0 is the hard label.
    """

    parts = ("labeled", "unlabeled", "r2")
    EXPONENTS = ("final", "current")

    def __init__(
        self,
        alpha0: float,
        alpha1: float,
        alpha2: float,
        ramp: Ramp,
        exponent: str = "final",
        relabel: str = "round",
        label_view: str = "weak",
    ) -> None:
        for name, value in (("alpha0", alpha0), ("alpha1", alpha1), ("alpha2", alpha2)):
            check(value >= 0, f"algorithm.objective.{name}={value}: must be at least 0")
        check(
            exponent in self.EXPONENTS,
            f"algorithm.objective.exponent={exponent}: must be one of {', '.join(self.EXPONENTS)}",
        )
        super().__init__(alpha0, ramp)
        self.alpha1, self.alpha2, self.exponent = alpha1, alpha2, exponent
        self.set_labeling(relabel, label_view)

    def label(self, logits: Tensor) -> Tensor:
        """Lemma 1 in log space: softmax of alpha0/alpha1 times the log-probabilities."""
        if self.alpha1 == 0:
            return one_hot_argmax(logits)
        alpha0 = self.weight if self.exponent == "final" else self.alpha0
        return torch.softmax(alpha0 / self.alpha1 * log_softmax(logits, -1), -1)

    def label_cost(self, v: Tensor) -> Tensor:
        return self.alpha1 * kl_from_uniform(v.log().clamp_min(torch.finfo(v.dtype).min))

    def loss(self, net: Network, batch: Batch, state: State) -> tuple[Tensor, Parts]:
        logits_x, logits_u, v = self.look(net, batch)
        log_f = log_softmax(logits_u, -1)
        labeled = cross_entropy(logits_x, batch.y)
        unlabeled = soft_cross_entropy(log_f, v)
        r2 = mean_kl_from_uniform(log_f)
        return labeled + self.alpha0 * unlabeled + self.alpha2 * r2, {
            "labeled": labeled,
            "unlabeled": unlabeled,
            "r2": r2,
        }
