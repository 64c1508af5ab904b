"""Self-training (Yarowsky 1995; Abney 2004): samples of which the model is sure join the labelled ones."""

import torch
from torch import Tensor

from fedshvr.algorithms.objectives.hard_pseudo_label import HardPseudoLabel
from fedshvr.algorithms.objectives.ramp import Ramp
from fedshvr.errors import check


class SelfTraining(HardPseudoLabel):
    """CE(L_k) + alpha0/M_k sum_{i in J_k} CE(u_i, y_i): the samples J_k have joined, with the labels y_i.

    At the start of each round i joins if max_c f(u_i)_c >= threshold, y_i = argmax_c f(u_i)_c. J_k is made anew each
    time, so that a sample may leave or change its label (Yarowsky), or with keep it stays with its first label.
    With alpha0 = M_k/N_k all samples of the larger set L_k + J_k count alike.
    J_k and y_k are the client's memory: rows of v, zeros for what has not joined. The log has the size of J_k over all
    clients (pseudo_labels), and the share of it that is right (pseudo_label_acc).
    """

    def __init__(
        self, alpha0: float, threshold: float, ramp: Ramp, keep: bool = False, label_view: str = "weak"
    ) -> None:
        super().__init__(alpha0, ramp, label_view=label_view)
        check(0 <= threshold < 1, f"algorithm.objective.threshold={threshold}: must be at least 0 and below 1")
        self.threshold, self.keep = threshold, keep

    def label(self, logits: Tensor) -> Tensor:
        sure = logits.softmax(-1).amax(-1, keepdim=True) >= self.threshold
        return super().label(logits) * sure

    def revise(self, v: Tensor, before: Tensor) -> Tensor:
        joined = before.amax(-1, keepdim=True) == 1  # at first v is uniform
        return torch.where(joined, before, v) if self.keep else v
