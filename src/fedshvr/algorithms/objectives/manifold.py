"""Manifold regularisation (Belkin et al. 2006): near images should be told alike."""

import torch
from torch import Tensor

from fedshvr.algorithms.objectives.base import Objective
from fedshvr.algorithms.objectives.batch import Batch, Network, Parts, State
from fedshvr.algorithms.objectives.formulas import weighted
from fedshvr.algorithms.objectives.ramp import Ramp
from fedshvr.compute.stacked import cross_entropy
from fedshvr.compute.vector import together
from fedshvr.errors import check


class Manifold(Objective):
    """CE(L_k) + w(t)/n^2 sum_ij w_ij |f(x_i) - f(x_j)|^2 over the n images of the batch, labelled or not.

    w_ij = exp(-|x_i - x_j|^2 / s) if one of the two is among the `neighbors` nearest of the other, else 0; s is the
    mean of |x_i - x_j|^2 over these pairs. The gradient flows through both f(x_i) and f(x_j).
    The graph is that of a step's own images: no distance leaves the client, which the distributed versions (Fierimonte
    et al. 2016; Xie et al. 2019) must exchange. It takes n^2 numbers. Belkin et al. have one graph of all samples.
    """

    parts = ("labeled", "unlabeled")

    def __init__(self, weight: float, neighbors: int, ramp: Ramp) -> None:
        super().__init__(weight, ramp)
        check(neighbors >= 1, f"algorithm.objective.neighbors={neighbors}: must be at least 1")
        self.neighbors = neighbors

    def loss(self, net: Network, batch: Batch, state: State) -> tuple[Tensor, Parts]:
        w = graph(torch.cat([batch.x, batch.u[0]]), self.neighbors)
        logits_x, logits_u = together(net, batch.x, batch.u[0])
        roughness = dirichlet_energy(w, torch.cat([logits_x, logits_u]).softmax(-1))
        return weighted(cross_entropy(logits_x, batch.y), self.alpha0, roughness / len(w) ** 2)


def dirichlet_energy(w: Tensor, f: Tensor) -> Tensor:
    """sum_ij w_ij |f_i - f_j|^2 = 2 tr f'(D - W)f."""
    return 2 * (f * (w.sum(1, keepdim=True) * f - w @ f)).sum()


@torch.no_grad()
def graph(x: Tensor, neighbors: int) -> Tensor:
    """The weights w_ij of these images, (n, n)."""
    x = x.flatten(1)
    squares = x.square().sum(1)
    far = (squares[:, None] + squares - 2 * x @ x.T).clamp_min(0)
    others = far + torch.full_like(squares, torch.inf).diag()
    near = others.topk(min(neighbors, len(x) - 1), largest=False).indices
    linked = torch.zeros_like(far).scatter(1, near, 1.0)
    linked = torch.maximum(linked, linked.T)
    s = (linked * far).sum() / linked.sum()
    return linked * torch.exp(-far / s.clamp_min(torch.finfo(s.dtype).tiny))
