"""A client: a LightningModule whose training_step is one corrected local step on the network it borrows."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

import torch
from lightning import LightningModule
from torch import Tensor

from fedshvr.algorithms.corrections import Correction
from fedshvr.algorithms.objectives.base import Batch, Objective, State, mean_logits
from fedshvr.compute.linear import Factors
from fedshvr.compute.memory import Table
from fedshvr.compute.streams import Draws, stream_seed
from fedshvr.compute.vector import FlatNet, split_like, wide
from fedshvr.data.batches import Batcher, Pool, per_step
from fedshvr.federation.plan import LocalSGD, Plan, epoch_starts

LABEL_CHUNK = 2048  # images that are labelled in one forward pass


@dataclass
class Bench:
    """What clients share in one process and borrow in turn: the network, the data and the parts."""

    net: FlatNet
    pool: Pool
    plan: Plan
    batcher: Batcher
    objective: Objective
    correction: Correction
    local: LocalSGD
    seed: int
    tables: dict[str, Table]  # what clients remember: name -> (own clients, width)
    unlabeled: list[Tensor]  # client k's unlabelled samples, on the device
    hidden: Tensor  # the true class of every sample: for the log alone, no objective sees it
    progress: Callable[[int, int], None] = field(default=lambda client, step: None)


@dataclass
class Round:
    """What the server broadcasts at the start of a round."""

    index: int
    theta: Tensor
    buffers: Tensor
    c: Tensor  # the server's control variate, empty if the correction has none
    done: Tensor  # (K,) local steps that each client has made in earlier rounds, in main memory
    group_models: Tensor  # (S, P): what the clients start from if the aggregation keeps groups, else empty
    group_of: list[int]  # each client's row of it

    def start(self, clients: list[int]) -> Tensor:
        """What these clients start from, (n, P)."""
        if not len(self.group_models):
            return self.theta.expand(len(clients), -1)
        return self.group_models[[self.group_of[k] for k in clients]]

    def done_of(self, clients: list[int]) -> Tensor:
        """The local steps that these clients have made, (n,) on the device."""
        return self.done[clients].to(self.theta.device, non_blocking=True)


class Descent:
    """theta_k <- theta_k - eta (g + wd theta_k + d_k + mu (theta_k - theta)) in place, for one client or a stack."""

    def __init__(
        self,
        bench: Bench,
        params: Sequence[Tensor],
        theta_k: Tensor,
        theta: Tensor,
        d: Tensor | None,
        m: Tensor | None,
    ) -> None:
        self.local, self.mu, self.linears, self.params = bench.local, bench.correction.mu, bench.net.linears, params
        self.theta_k, self.theta, self.d = theta_k, theta, d
        self.unit = theta_k.new_ones(theta_k.shape[:-1])  # d loss / d loss of each client
        # with momentum: m <- rho m + (corrected gradient), theta_k <- theta_k - eta m; m starts at 0 each round
        self.out, self.scale = (theta_k, -self.local.eta) if m is None else (m, 1.0)
        self.out_views = split_like(self.out, bench.net.shapes)

    def step(self, loss: Tensor) -> None:
        """One corrected step. Clients of a stack do not mix: row k of every gradient is client k's own."""
        self.update(torch.autograd.grad(loss, self.params, self.unit, allow_unused=True), self.linears.take())

    def update(self, grads: tuple[Tensor | None, ...], factors: list[Factors]) -> None:
        """The gradient is `grads` where there is one, plus the products of the linear layers' factors."""
        out, scale, pull = self.out, self.scale, self.local.weight_decay + self.mu
        if self.local.momentum:
            out.mul_(self.local.momentum)
        if pull:
            out.add_(self.theta_k, alpha=scale * pull)
        if self.mu:
            out.add_(self.theta, alpha=-scale * self.mu)
        if self.d is not None:
            out.add_(self.d, alpha=scale)
        for factor in factors:
            factor.add_to(self.out_views, scale)
        whole = [(view, g) for view, g in zip(self.out_views, grads, strict=True) if g is not None]
        if whole:
            views, found = zip(*whole, strict=True)
            torch._foreach_add_(views, found, alpha=scale)
        if self.local.momentum:
            self.theta_k.add_(out, alpha=-self.local.eta)


class Client(LightningModule):
    """Client k of the federation. It owns its index, steps and weight; everything heavy is borrowed for the round."""

    bench: Bench
    descent: Descent
    state: State

    def __init__(self, index: int, tau: int, omega: float) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.index, self.tau, self.omega = index, tau, omega

    def fit(self, bench: Bench, round: Round) -> Tensor:
        """tau_k local steps from theta; theta_k is left in bench.net. Returns loss and parts of each step."""
        k, net = self.index, bench.net
        local_buffers = bench.tables.get("buffers")
        keeps = local_buffers is not None and bool(round.done[k])
        start = round.start([k])[0]
        net.load(start, local_buffers.get([k])[0] if local_buffers and keeps else round.buffers)
        net.module.train()
        seed_network(stream_seed(bench.seed, "network", round.index, k), start.device)
        self.bench = bench
        self.state = {name: rows[0] for name, rows in client_state(bench, round, [k]).items()}
        d = client_offset(bench, round, [k])
        m = torch.zeros_like(net.theta) if bench.local.momentum else None
        self.descent = Descent(bench, net.params, net.theta, start, None if d is None else d[0], m)
        done = round.done_of([k])[0]
        choices = bench.batcher.choose(Draws(bench.seed, round.index, torch.tensor([k])), self.tau)
        trace: list[Tensor] = []
        step, epochs = 0, label_epochs(bench, self.tau)
        with net.linears.factored():
            for block in bench.batcher.blocks(choices, bench.pool, epochs):
                bench.progress(k, step)
                for batch in per_step(block.map(itemgetter(0)), 0):
                    net.masks.begin_step(batch.noise.get("masks"))
                    with bench.objective.at_step(batch.noise, batch.x.dtype):
                        if bench.objective.adapts:
                            self.state |= bench.objective.adapt(net, batch, self.state, done + step)
                        trace += self.training_step(batch, step)
                    if self.state:
                        bench.objective.after_step(self.state, net.theta, done + step)
                    step += 1
                if step in epochs:
                    renew_labels(bench, round.index, k, epochs[step], choices.at(0, step).noise)
        for name, row in self.state.items():
            bench.tables[name].put([k], row[None])
        if local_buffers:
            local_buffers.put([k], net.buffers[None])
        del self.bench, self.descent, self.state  # handed back: a client between rounds holds no vector
        return torch.stack(trace).view(self.tau, -1)

    def training_step(self, batch: Batch, step: int) -> list[Tensor]:  # type: ignore[override]
        """One corrected step: theta_k <- theta_k - eta (g_k(theta_k, v_k) + correction)."""
        net = self.bench.net
        loss, parts = self.bench.objective.loss(net, batch, self.state)
        self.descent.step(loss)
        return [loss.detach(), *(part.detach() for part in parts.values())]


def seed_network(seed: int, device: torch.device) -> None:
    """For layers that draw from torch's generator. torch.manual_seed takes a stack trace for each absent device."""
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def client_state(bench: Bench, round: Round, clients: list[int], copied: bool = False) -> State:
    """The objective's memory of these clients, (n, ...) each, ready for the round; a copy leaves the tables alone."""
    state = {name: bench.tables[name].get(clients) for name in bench.objective.memory}
    if copied:
        state = {name: rows.clone() for name, rows in state.items()}
    if state:
        bench.objective.begin_client(state, round.start(clients), round.done_of(clients))
    return state


def client_offset(bench: Bench, round: Round, clients: list[int]) -> Tensor | None:
    """d_k of these clients, (n, P)."""
    name = bench.correction.memory
    return bench.correction.offset(bench.tables[name].get(clients), round.c) if name else None


def label_epochs(bench: Bench, tau: int) -> dict[int, int]:
    """{step: epoch} where a client with tau steps renews its labels within the round."""
    return epoch_starts(tau, bench.local.epochs) if bench.objective.labels_each_epoch else {}


@torch.no_grad()
def new_labels(bench: Bench, round_index: int, k: int, epoch: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Client k's unlabelled samples in parts, each with its labels v from the network as it is loaded.

    The prediction is that of the objective's label_views, drawn anew for each labelling.
    """
    net, pool, objective = bench.net, bench.pool, bench.objective
    augment, samples = bench.batcher.augments[objective.label_views[0]], bench.unlabeled[k]
    looks = len(objective.label_views) if augment.numbers else 1
    draws = Draws(bench.seed, round_index, torch.tensor([k]))
    purpose = f"label view {epoch}" if epoch else "label view"
    moves = draws(purpose, (looks, len(samples), augment.numbers))[0]
    size = LABEL_CHUNK // looks
    net.module.eval()
    for index, move in zip(samples.split(size), moves.split(size, dim=1), strict=True):
        logits = mean_logits(net, [augment.apply(pool.x[index], m) for m in move])
        yield index, objective.label(logits.to(pool.v.dtype))


def renew_labels(bench: Bench, round_index: int, k: int, epoch: int, noise: dict[str, Tensor]) -> None:
    """v_k <- Lemma 1 at the client's own model, which is loaded: before the first step of a later epoch."""
    with bench.objective.at_step(noise, bench.pool.v.dtype):
        for index, v in new_labels(bench, round_index, k, epoch):
            bench.pool.v[index] = v
    bench.net.module.train()


def full_parts(bench: Bench, round: Round, k: int, chunk: int = 1024) -> Iterator[tuple[float, Batch, Tensor]]:
    """All of client k's data without augmentation, in parts: the share of each in F_k(theta, v_k), its batch and loss.

    Every part of the unlabelled data comes with all labelled data: sum_j m_j/M (CE(L) + term(U_j)) is exact.
    """
    net, plan, objective = bench.net, bench.plan, bench.objective
    net.load(round.start([k])[0], round.buffers)
    net.module.eval()
    labeled, unlabeled = plan.labeled[k], plan.unlabeled[k]
    chunked = unlabeled if objective.uses_unlabeled else labeled
    state = {name: rows[0] for name, rows in client_state(bench, round, [k], copied=True).items()}
    for part in chunked.split(chunk):
        lab, unl = (labeled, part) if objective.uses_unlabeled else (part, part[:0])
        choices = bench.batcher.fixed(lab, unl).to(net.theta.device)
        batch = bench.batcher.gather(choices, bench.pool, clean=True).map(lambda t: t[0, 0])
        yield len(part) / len(chunked), batch, objective.loss(net, batch, state)[0]


def full_gradient(bench: Bench, round: Round, k: int) -> Tensor:
    """The gradient of F_k(theta, v_k) over all of client k's data."""
    total = torch.zeros_like(bench.net.theta)
    views = split_like(total, bench.net.shapes)
    for share, _, loss in full_parts(bench, round, k):
        for view, grad in zip(views, torch.autograd.grad(loss, bench.net.params), strict=True):
            view.add_(grad, alpha=share)
    return total


@torch.no_grad()
def full_loss(bench: Bench, round: Round, k: int) -> Tensor:
    """F_k(theta, v_k) over all of client k's data, with the part that depends on v_k alone."""
    net, objective = bench.net, bench.objective
    total = torch.zeros((), dtype=wide(net.theta.device), device=net.theta.device)
    for share, batch, loss in full_parts(bench, round, k):
        cost = objective.label_cost(objective.targets(net, batch)).mean() if objective.makes_labels else 0.0
        total += share * (loss + cost)
    return total
