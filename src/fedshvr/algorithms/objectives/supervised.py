"""Supervised learning on the labelled data alone (FedAvg, FedProx, SCAFFOLD, FedNova as published)."""

from torch import Tensor

from fedshvr.algorithms.objectives.base import Objective
from fedshvr.algorithms.objectives.batch import Batch, Network, Parts, State
from fedshvr.compute.stacked import cross_entropy


class Supervised(Objective):
    """CE(theta; L_k)."""

    uses_unlabeled = False
    views = ()

    def loss(self, net: Network, batch: Batch, state: State) -> tuple[Tensor, Parts]:
        return cross_entropy(net(batch.x), batch.y), {}
