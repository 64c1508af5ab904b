"""The pseudo-label block of the round: v_k from theta, and how far from a stationary point the pair (theta, v) is."""

import torch
from torch import Tensor

from fedshvr.rounds.client import Bench, Round, full_gradient, full_loss, new_labels


@torch.no_grad()
def relabel(bench: Bench, round: Round, own: list[int], weight_of: dict[int, float], report: Tensor) -> None:
    """v_k <- Lemma 1 at theta; adds (correct, count, cost of the labels, movement) to the report.

    The movement is sum_k w_k |v_k' - v_k|^2, the second term of the paper's g_t, where v_k is the client's last one.
    """
    net, pool, objective = bench.net, bench.pool, bench.objective
    if not (objective.pseudo_labels and objective.labels_now and own):
        return
    for k in own:
        net.load(round.start([k])[0], round.buffers)
        samples, weight = bench.unlabeled[k], weight_of.get(k, 0.0)
        for index, v in new_labels(bench, round.index, k):
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


def weighted_loss(bench: Bench, round: Round, own: list[int], omega: Tensor) -> Tensor:
    """sum_k omega_k F_k(theta, v_k) over this rank's clients."""
    losses = torch.stack([full_loss(bench, round, k) for k in own])
    return losses @ omega[own].to(losses)
