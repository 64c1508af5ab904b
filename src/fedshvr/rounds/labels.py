"""The pseudo-label block of the round: v_k from theta, or within a round from theta_k."""

from collections.abc import Iterator

import torch
from torch import Tensor

from fedshvr.algorithms.objectives.formulas import mean_logits
from fedshvr.compute.streams import Draws
from fedshvr.errors import placed
from fedshvr.federation.plan import epoch_starts
from fedshvr.rounds.bench import Bench
from fedshvr.rounds.messages import Broadcast, Labeled

LABEL_CHUNK = 2048  # images that are labelled in one forward pass


@torch.no_grad()
def relabel(bench: Bench, broadcast: Broadcast) -> Labeled:
    """v_k <- Lemma 1 at theta, for one client.

    A row of zeros is no label and does not count. The movement |v_k' - v_k|^2, from the client's last labels, is the
    second term of the paper's g_t.
    """
    pool, objective, hidden, (k,) = bench.pool, bench.method.objective, bench.samples.hidden, broadcast.clients
    bench.net.load(broadcast.theta[0], broadcast.buffers)
    make = spread_labels if objective.spread_samples else new_labels
    right, given, cost, moved = [], [], [], []
    with placed(lambda: f"round {broadcast.round + 1}, client {k}, its pseudo-labels"):
        for index, v in make(bench, broadcast.round, k):
            v = objective.revise(v, pool.v[index])
            labeled = v.sum(-1) > 0
            right.append((labeled & (v.argmax(-1) == hidden[index])).sum())
            given.append(labeled.sum())
            cost.append(objective.label_cost(v).sum())
            moved.append((v - pool.v[index]).square().sum())
            pool.v[index] = v
    return Labeled(k, len(bench.samples.unlabeled[k]), *map(torch.stack, (right, given, cost, moved)))


def spread_labels(bench: Bench, round: int, k: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Client k's unlabelled samples in parts, each with the labels that flow to it from all its labelled ones."""
    net, pool, objective = bench.net, bench.pool, bench.method.objective
    labeled = bench.batcher.plan.labeled[k].to(pool.x.device)
    net.module.eval()
    for index in bench.samples.unlabeled[k].split(objective.spread_samples):
        yield index, objective.spread(net, pool.x[labeled], pool.y[labeled], pool.x[index]).to(pool.v.dtype)


def label_epochs(bench: Bench, k: int, steps: int) -> dict[int, int]:
    """{step: epoch} where client k renews its labels within so many steps: all tau_k, or the first of them."""
    if not bench.method.objective.labels_each_epoch:
        return {}
    starts = epoch_starts(bench.batcher.plan.tau[k], bench.method.local.epochs)
    return {step: epoch for step, epoch in starts.items() if step < steps}


def renew_labels(bench: Bench, round: int, k: int, epoch: int, noise: dict[str, Tensor]) -> None:
    """v_k <- Lemma 1 at the client's own model, which is loaded: before the first step of a later epoch."""
    with bench.method.objective.at_step(noise, bench.pool.v.dtype):
        for index, v in new_labels(bench, round, k, epoch):
            bench.pool.v[index] = v
    bench.net.module.train()


@torch.no_grad()
def new_labels(bench: Bench, round: int, k: int, epoch: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Client k's unlabelled samples in parts, each with its labels v from the network as it is loaded.

    The prediction is that of the objective's label_views, drawn anew for each labelling.
    """
    net, pool, objective = bench.net, bench.pool, bench.method.objective
    augment, samples = bench.batcher.augments[objective.label_views[0]], bench.samples.unlabeled[k]
    looks = len(objective.label_views) if augment.numbers else 1
    draws = Draws(bench.seed, round, torch.tensor([k]))
    purpose = f"label view {epoch}" if epoch else "label view"
    moves = draws(purpose, (looks, len(samples), augment.numbers))[0]
    size = LABEL_CHUNK // looks
    net.module.eval()
    for index, move in zip(samples.split(size), moves.split(size, dim=1), strict=True):
        logits = mean_logits(net, [augment.apply(pool.x[index], m) for m in move])
        yield index, objective.label(logits.to(pool.v.dtype))
