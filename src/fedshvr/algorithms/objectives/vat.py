"""Virtual adversarial training (Miyato et al. 2018): be stable in the direction in which you are least so."""

import torch
from torch import Tensor
from torch.func import grad, jvp
from torch.nn.functional import log_softmax

from fedshvr.algorithms.objectives.base import Objective
from fedshvr.algorithms.objectives.batch import Batch, Network, Parts, State
from fedshvr.algorithms.objectives.formulas import normals, soft_cross_entropy
from fedshvr.algorithms.objectives.ramp import Ramp
from fedshvr.compute.stacked import cross_entropy
from fedshvr.compute.streams import Draws
from fedshvr.compute.vector import Forward
from fedshvr.errors import check


class VAT(Objective):
    """CE(L_k) + w(t) [mean_i KL(p(u_i)* || p(u_i + r_i)) + entropy H(p(u))],  r = epsilon H d / |H d|,  d ~ N(0, I).

    H is the Hessian of the divergence at r = 0: one power iteration. No gradient flows through p(u)* and r; batch norm
    keeps the statistics of the labelled pass; all passes over u drop the same units, or the divergence would measure
    the masks. The published code takes H d as a difference quotient with xi = 1e-6, which in float32 is rounding noise;
    here its limit for xi -> 0 is taken exactly.
    """

    parts = ("labeled", "unlabeled", "entropy")
    repeats = True
    compiles = False

    def __init__(self, weight: float, epsilon: float, ramp: Ramp, entropy: float = 0.0) -> None:
        super().__init__(weight, ramp)
        check(epsilon > 0, f"algorithm.objective.epsilon={epsilon}: must be positive")
        check(entropy >= 0, f"algorithm.objective.entropy={entropy}: must be at least 0")
        self.epsilon, self.entropy = epsilon, entropy

    def draw(self, draws: Draws, steps: int, labeled: int, unlabeled: int) -> dict[str, Tensor]:
        return {"direction": draws("direction", (steps, unlabeled))}

    def loss(self, net: Network, batch: Batch, state: State) -> tuple[Tensor, Parts]:
        (u,) = batch.u
        with net.same_masks():
            log_p = log_softmax(net.untracked(u), -1)
            r = self.epsilon * steepest(net.untracked, u, log_p.detach().exp(), normals(batch.noise["direction"], u))
            divergence = kl(log_p.detach(), log_softmax(net.untracked(u + r), -1))
        entropy = soft_cross_entropy(log_p, log_p.exp())
        labeled = cross_entropy(net(batch.x), batch.y)
        return labeled + self.alpha0 * (divergence + self.entropy * entropy), {
            "labeled": labeled,
            "unlabeled": divergence,
            "entropy": entropy,
        }


@torch.no_grad()
def steepest(logits: Forward, u: Tensor, p: Tensor, d: Tensor) -> Tensor:
    """H d as unit vectors, one for each image: H = J' (diag(p) - p p') J with J the Jacobian of the logits."""
    change = jvp(logits, (u,), (unit(d),))[1]
    pull = p * (change - (p * change).sum(-1, keepdim=True))
    return unit(grad(lambda x: (pull * logits(x)).sum())(u))


def unit(d: Tensor) -> Tensor:
    """Each image scaled to length 1 (or 0); first by its largest entry, so that no square underflows."""
    dims = list(range(1, d.dim()))
    d = d / d.abs().amax(dims, keepdim=True).clamp_min(torch.finfo(d.dtype).tiny)
    return d / d.square().sum(dims, keepdim=True).sqrt().clamp_min(1)


def kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """mean_i KL(p_i || q_i)."""
    return (log_p.exp() * (log_p - log_q)).sum(-1).mean()
