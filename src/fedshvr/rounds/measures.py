"""What is measured on all of the clients' clean data: F(theta, v), its gradient, and whether the corrections cancel."""

from collections.abc import Callable, Iterator

import torch
from lightning import Trainer
from torch import Tensor

from fedshvr.algorithms.objectives.batch import Batch
from fedshvr.compute.vector import split_like, wide
from fedshvr.rounds.bench import Bench
from fedshvr.rounds.messages import Broadcast
from fedshvr.rounds.reduce import over_ranks
from fedshvr.rounds.terms import own_terms

Send = Callable[[list[int]], Broadcast]


def full_parts(bench: Bench, broadcast: Broadcast, chunk: int = 1024) -> Iterator[tuple[float, Batch, Tensor]]:
    """All of a client's data without augmentation, in parts: the share of each in F_k(theta, v_k), its batch and loss.

    Every part of the unlabelled data comes with all labelled data: sum_j m_j/M (CE(L) + term(U_j)) is exact.
    """
    net, plan, objective, (k,) = bench.net, bench.batcher.plan, bench.method.objective, broadcast.clients
    net.load(broadcast.theta[0], broadcast.buffers)
    net.module.eval()
    labeled, unlabeled = plan.labeled[k], plan.unlabeled[k]
    chunked = unlabeled if objective.uses_unlabeled and len(unlabeled) else labeled
    state = {name: rows[0] for name, rows in bench.state(broadcast, copied=True).items()}
    for part in chunked.split(chunk):
        lab, unl = (labeled, part) if chunked is unlabeled else (part, part[:0])
        choices = bench.batcher.fixed(lab, unl).to(net.theta.device)
        batch = bench.batcher.gather(choices, bench.pool, clean=True).map(lambda t: t[0, 0])
        yield len(part) / len(chunked), batch, own_terms(objective, *objective.loss(net, batch, state), batch)[0]


def full_gradient(bench: Bench, broadcast: Broadcast) -> Tensor:
    """The gradient of F_k(theta, v_k) over all of a client's data."""
    total = torch.zeros_like(bench.net.theta)
    views = split_like(total, bench.net.shapes)
    for share, _, loss in full_parts(bench, broadcast):
        for view, grad in zip(views, torch.autograd.grad(loss, bench.net.params), strict=True):
            view.add_(grad, alpha=share)
    return total


@torch.no_grad()
def full_loss(bench: Bench, broadcast: Broadcast) -> Tensor:
    """F_k(theta, v_k) over all of a client's data, with the part that depends on v_k alone."""
    net, objective, (k,) = bench.net, bench.method.objective, broadcast.clients
    makes_labels = objective.makes_labels and len(bench.samples.unlabeled[k]) > 0
    total = torch.zeros((), dtype=wide(net.theta.device), device=net.theta.device)
    for share, batch, loss in full_parts(bench, broadcast):
        cost = objective.label_cost(objective.targets(net, batch)).mean() if makes_labels else 0.0
        total += share * (loss + cost)
    return total


def weighted_gradient(bench: Bench, send: Send, own: list[int], weight_of: dict[int, float]) -> Tensor:
    """sum_k w_k grad F_k(theta, v_k) over this rank's clients; its square is the first term of g_t."""
    total = torch.zeros_like(bench.net.theta)
    for k in own:
        total.add_(full_gradient(bench, send([k])), alpha=weight_of[k])
    return total


def weighted_loss(bench: Bench, send: Send, own: list[int], omega: Tensor) -> Tensor:
    """sum_k omega_k F_k(theta, v_k) over this rank's clients that take part."""
    own = [k for k in own if omega[k]]
    if not own:
        return torch.zeros((), dtype=wide(bench.net.theta.device), device=bench.net.theta.device)
    losses = torch.stack([full_loss(bench, send([k])) for k in own])
    return losses @ omega[own].to(losses)


def sum_omega_d(bench: Bench, c: Tensor | None, trainer: Trainer) -> Tensor:
    """|sum_k omega_k d_k|; d_k is affine in client k's memory and the omega_k sum to 1. NaN if it is on disk."""
    correction = bench.method.correction
    if not correction.memory:
        return torch.tensor(0.0)
    table = bench.tables[correction.memory]
    rows = table.in_memory()
    if rows is None:
        return torch.tensor(float("nan"))
    omega = bench.batcher.plan.omega[list(table.row_of)].to(rows.device, table.dtype)
    weighted = over_ranks((omega @ rows).to(table.device), trainer)
    d = correction.offset(weighted, weighted if c is None else c)
    return torch.tensor(0.0) if d is None else torch.linalg.vector_norm(d)


def over_clients(accuracy: Tensor) -> list[float]:
    """The mean over clients, that of the worst tenth of them (rounded up), and the standard deviation."""
    worst = accuracy.sort().values[: -(-len(accuracy) // 10)]
    return [accuracy.mean().item(), worst.mean().item(), accuracy.std(correction=0).item()]
