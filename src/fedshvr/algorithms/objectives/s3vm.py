"""Semi-supervised SVM (Joachims 1999; Chapelle & Zien 2005): a boundary far from all samples, classes in proportion."""

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fedshvr.algorithms.objectives.base import Objective
from fedshvr.algorithms.objectives.batch import Batch, Network, Parts, State
from fedshvr.algorithms.objectives.ramp import Ramp
from fedshvr.compute.vector import together
from fedshvr.errors import check


class S3VM(Objective):
    """hinge(L_k) + w(t) [hat(U_k) + balance B(U_k)],  hinge = mean_i max(0, 1 - m(x_i, y_i)).

    m(z, y) = z_y - max_{c != y} z_c  is the margin of class y at the logits z (Crammer & Singer's, for many classes)
    hat     = mean_i max(0, 1 - max_y m(u_i, y)): the hinge with the label that costs least; two classes: 1 - |f(u_i)|
    B       = |a - p|^2, a = mean_i z(u_i), p = the classes' shares of the labelled images, both around their mean
    B is Chapelle & Zien's balancing constraint as a penalty: with two classes it is (mean_i f(u_i) - mean_i y_i)^2 / 2,
    f = z_0 - z_1, y = +-1. Its gradient is linear in p, so the shares of a batch do for those of L_k.
    The term |w|^2 / 2 is client.weight_decay. Natural with model=linear; w(t) is the annealed C* of both papers.
    """

    parts = ("labeled", "unlabeled", "balance")

    def __init__(self, weight: float, balance: float, ramp: Ramp) -> None:
        super().__init__(weight, ramp)
        check(balance >= 0, f"algorithm.objective.balance={balance}: must be at least 0")
        self.balance = balance
        self.whole = "compares with the shares of the labelled classes, unless balance=0" if balance else ""

    def labeled_loss(self, net: Network, batch: Batch) -> Tensor:
        return hinge(net(batch.x), batch.y)

    def loss(self, net: Network, batch: Batch, state: State) -> tuple[Tensor, Parts]:
        logits_x, logits_u = together(net, batch.x, batch.u[0])
        labeled, unlabeled = hinge(logits_x, batch.y), hinge(logits_u, logits_u.argmax(-1))
        shares = one_hot(batch.y, logits_x.shape[-1]).to(logits_x.dtype).mean(0)
        balance = imbalance(logits_u, shares)
        return labeled + self.alpha0 * (unlabeled + self.balance * balance), {
            "labeled": labeled,
            "unlabeled": unlabeled,
            "balance": balance,
        }


def hinge(logits: Tensor, y: Tensor) -> Tensor:
    """mean_i max(0, 1 - m(z_i, y_i))."""
    own = one_hot(y, logits.shape[-1]).bool()
    margin = logits.masked_fill(~own, -torch.inf).amax(-1) - logits.masked_fill(own, -torch.inf).amax(-1)
    return (1 - margin).relu().mean()


def imbalance(logits: Tensor, shares: Tensor) -> Tensor:
    """B: how far the mean output is from the classes' shares, both with mean 0 over the classes."""
    outputs = logits.mean(0)
    return ((outputs - outputs.mean()) - (shares - shares.mean())).square().sum()
