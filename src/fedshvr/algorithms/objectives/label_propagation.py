"""Label propagation (Zhu & Ghahramani 2002; on features, Iscen et al. 2019): labels flow to what is near."""

from math import log

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, one_hot

from fedshvr.algorithms.objectives.formulas import head_of, one_hot_argmax
from fedshvr.algorithms.objectives.hard_pseudo_label import HardPseudoLabel
from fedshvr.algorithms.objectives.ramp import Ramp
from fedshvr.compute.vector import Forward
from fedshvr.errors import check

ROWS = 1024  # samples whose features, or similarities to all others, are computed at once
POWER = 3  # of the similarities, as published


class LabelPropagation(HardPseudoLabel):
    """CE(L_k) + alpha0/M_k sum_i h_i CE(u_i, y_i),  y_i = argmax_c z_ic,  h_i = 1 - H(z_i / sum_c z_ic) / ln C.

    z = the rows of the unlabelled samples in the solution Z of (I - a D^-1/2 W D^-1/2) Z = Y, negative ones as 0;
    Y has one-hot rows for the labelled samples, else zeros; W = A + A', D = diag(W 1),
    A_ij = max(0, <g_i, g_j>)^3 if j is among the `neighbors` most similar to i, else 0; g_i = what the last linear
    layer is given for sample i at theta, scaled to length 1. Z is made at the start of each round from the client's
    clean samples by `iterations` conjugate-gradient steps; a sample that no label has reached gets none.
    Of n samples this takes n^2 |g| operations and n (neighbors + 1024) numbers; more than `samples` unlabelled ones are
    dealt with in parts, each with all the labelled. Otherwise than published, classes are not weighed by their size.
    """

    whole = "spreads the labels of a client over its other samples"

    def __init__(
        self, alpha0: float, diffusion: float, neighbors: int, iterations: int, samples: int, ramp: Ramp
    ) -> None:
        super().__init__(alpha0, ramp, label_view="clean")
        check(0 <= diffusion < 1, f"algorithm.objective.diffusion={diffusion}: must be at least 0 and below 1")
        for name, value in (("neighbors", neighbors), ("iterations", iterations), ("samples", samples)):
            check(value >= 1, f"algorithm.objective.{name}={value}: must be at least 1")
        self.diffusion, self.neighbors, self.iterations = diffusion, neighbors, iterations
        self.spread_samples = samples

    def wrap(self, network: nn.Module) -> nn.Module:
        self.head = head_of(network)
        return network

    def spread(self, net: Forward, x: Tensor, y: Tensor, u: Tensor) -> Tensor:
        graph = Graph(self.features(net, torch.cat([x, u])), self.neighbors)
        known = one_hot(y, self.head.out_features).to(graph.weight.dtype)
        start = torch.cat([known, known.new_zeros(len(u), known.shape[1])])
        z = solve(lambda p: p - self.diffusion * graph.step(p), start, self.iterations)[len(x) :].clamp_min(0)
        return one_hot_argmax(z) * certainty(z)

    def features(self, net: Forward, x: Tensor) -> Tensor:
        """g of these images, in no less than float32."""
        found: list[Tensor] = []
        hook = self.head.register_forward_pre_hook(lambda _, inputs: found.append(inputs[0]))
        for part in x.split(ROWS):
            net(part)
        hook.remove()
        return normalize(torch.cat(found).to(torch.promote_types(x.dtype, torch.float32)), dim=1)


class Graph:
    """W of the samples with these features, by the neighbours of each and the weights of the links to them, (n, k)."""

    def __init__(self, g: Tensor, neighbors: int) -> None:
        found = [nearest(g, rows, neighbors) for rows in torch.arange(len(g), device=g.device).split(ROWS)]
        similarity, self.near = (torch.cat(parts) for parts in zip(*found, strict=True))
        self.weight = similarity.clamp_min(0) ** POWER
        degree = self.product(g.new_ones(len(g), 1))
        self.scale = torch.where(degree > 0, degree.rsqrt(), 0)

    def product(self, p: Tensor) -> Tensor:
        """(A + A') p."""
        weight, classes = self.weight[..., None], p.shape[1]
        there = (weight * p[self.near]).sum(1)
        return there.index_add(0, self.near.flatten(), (weight * p[:, None]).view(-1, classes))

    def step(self, p: Tensor) -> Tensor:
        """D^-1/2 W D^-1/2 p."""
        return self.scale * self.product(self.scale * p)


def nearest(g: Tensor, rows: Tensor, neighbors: int) -> tuple[Tensor, Tensor]:
    """The similarities and indices of the samples most similar to each of these rows, itself left out."""
    similarity = (g[rows] @ g.T).scatter(1, rows[:, None], -torch.inf)
    top = similarity.topk(min(neighbors, len(g) - 1))
    return top.values, top.indices


def solve(operator: Forward, y: Tensor, iterations: int) -> Tensor:
    """z with operator(z) = y, column by column, by conjugate gradients; a column of zeros stays so."""
    tiny = torch.finfo(y.dtype).tiny
    z, r, p, rr = torch.zeros_like(y), y, y, y.square().sum(0)
    for _ in range(iterations):
        image = operator(p)
        length = rr / (p * image).sum(0).clamp_min(tiny)
        z, r = z + length * p, r - length * image
        before, rr = rr, r.square().sum(0)
        p = r + rr / before.clamp_min(tiny) * p
    return z


def certainty(z: Tensor) -> Tensor:
    """h of each row, 0 for a row of zeros."""
    total = z.sum(-1, keepdim=True)
    share = z / total.clamp_min(torch.finfo(z.dtype).tiny)
    entropy = -torch.xlogy(share, share).sum(-1, keepdim=True)
    return (total > 0) * (1 - entropy / log(z.shape[-1])).clamp_min(0)
