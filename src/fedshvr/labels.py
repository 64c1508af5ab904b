"""The pseudo-label block of the round: v_k from theta, and how far from a stationary point the pair (theta, v) is."""

import torch
from torch import Tensor

from fedshvr.client import Bench, Round, full_gradient

CHUNK = 2048  # images in one forward pass without gradient


@torch.no_grad()
def relabel(bench: Bench, round: Round, own: list[int], weight_of: dict[int, float], report: Tensor) -> None:
    """v_k <- Lemma 1 at theta, from clean images; adds (correct, count, cost of the labels, movement) to the report.

    The movement is sum_k w_k |v_k' - v_k|^2, the second term of the paper's g_t.
    """
    net, pool, objective = bench.net, bench.pool, bench.objective
    if not (objective.pseudo_labels and objective.relabel and own):
        return
    net.module.eval()
    for k in own:
        net.load(round.start([k])[0], round.buffers)
        samples, weight = bench.unlabeled[k], weight_of.get(k, 0.0)
        for index in samples.split(CHUNK):
            v = objective.label(net(pool.x[index]).to(pool.v.dtype))
            report[0] += (v.argmax(-1) == bench.hidden[index]).sum()
            report[2] += weight / len(samples) * objective.label_cost(v).sum()
            report[3] += weight * (v - pool.v[index]).square().sum()
            pool.v[index] = v
        report[1] += len(samples)


def weighted_gradient(bench: Bench, round: Round, own: list[int], weight_of: dict[int, float]) -> Tensor:
    """sum_k w_k grad F_k(theta, v_k) over this rank's clients; its square is the first term of g_t."""
    total = torch.zeros_like(round.theta)
    for k in own:
        total.add_(full_gradient(bench, round, k), alpha=weight_of[k])
    return total
