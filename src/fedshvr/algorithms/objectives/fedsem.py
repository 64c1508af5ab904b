"""FedSem (Albaseer et al. 2020): learn from the labels, label the rest once, learn from both."""

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from fedshvr.algorithms.objectives.base import Objective
from fedshvr.algorithms.objectives.batch import Batch, Network, Parts, State
from fedshvr.algorithms.objectives.formulas import one_hot_argmax, soft_cross_entropy
from fedshvr.compute.stacked import cross_entropy
from fedshvr.compute.vector import together
from fedshvr.errors import check


class FedSem(Objective):
    """Phase 1, `labeled_rounds` rounds: CE(L_k). Phase 2: the mean cross-entropy of the batches of L_k and U_k as one.

    The labels of U_k are argmax f at the global model with which phase 1 ends, and stay. In phase 1 tau_k either counts
    all of a client's data, as in phase 2 and for every other semi-supervised method (MNIST IID: 371 steps a round on 60
    labels), or its labelled data alone, as FedAvg's does (3 steps).
    """

    label_everyone = True  # they are made once
    parts = ("labeled", "unlabeled")

    STEPS = ("all", "labeled")

    def __init__(
        self, labeled_rounds: int, epochs_per_round: float, labeled_steps: str = "all", label_view: str = "weak"
    ) -> None:
        super().__init__()
        check(labeled_rounds >= 0, f"algorithm.objective.labeled_rounds={labeled_rounds}: must be at least 0")
        check(
            labeled_steps in self.STEPS,
            f"algorithm.objective.labeled_steps={labeled_steps}: must be one of {', '.join(self.STEPS)}",
        )
        self.set_labeling("round", label_view)
        self.labeled_rounds, self.epochs_per_round = labeled_rounds, epochs_per_round
        self.labeled_steps = labeled_steps

    def begin_round(self, epoch: float) -> None:
        second = self.learns_unlabeled(epoch)
        self.labels_now = round(epoch / self.epochs_per_round) == self.labeled_rounds
        self.alpha0 = float(second)
        self.counts_unlabeled = self.labeled_steps == "all" or second

    def learns_unlabeled(self, epoch: float) -> bool:
        return round(epoch / self.epochs_per_round) >= self.labeled_rounds

    def label(self, logits: Tensor) -> Tensor:
        return one_hot_argmax(logits)

    def loss(self, net: Network, batch: Batch, state: State) -> tuple[Tensor, Parts]:
        if self.alpha0 == 0:
            labeled = cross_entropy(net(batch.x), batch.y)
            return labeled, {"labeled": labeled, "unlabeled": torch.zeros_like(labeled)}
        logits_x, logits_u = together(net, batch.x, batch.u[0])
        labeled = cross_entropy(logits_x, batch.y)
        unlabeled = soft_cross_entropy(log_softmax(logits_u, -1), batch.v)
        share = len(logits_x) / (len(logits_x) + len(logits_u))
        return share * labeled + (1 - share) * unlabeled, {"labeled": labeled, "unlabeled": unlabeled}

    def without_labels(self, loss: Tensor, parts: Parts) -> Tensor:
        return parts["unlabeled"]  # all that there is is U_k
