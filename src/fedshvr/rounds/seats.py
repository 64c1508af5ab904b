"""Where local steps are made: by one client on the network itself, or by a stack of clients under vmap."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from operator import itemgetter

import torch
from torch import Tensor
from torch._C import _functorch as functorch
from torch._functorch.vmap import lazy_load_decompositions, vmap_increment_nesting

from fedshvr.algorithms.objectives.batch import Batch, State
from fedshvr.compute.linear import Due, Factors, as_stack, waits
from fedshvr.compute.recurring import Uses
from fedshvr.compute.streams import stream_seed
from fedshvr.compute.vector import StackedNet, aligned_rows, split_like
from fedshvr.data.batches import per_step
from fedshvr.rounds.bench import Bench
from fedshvr.rounds.messages import Broadcast
from fedshvr.rounds.terms import own_terms


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
        self.local, self.mu, self.linears = bench.method.local, bench.method.correction.mu, bench.net.linears
        self.params, self.theta_k, self.theta, self.d = params, theta_k, theta, d
        self.unit = theta_k.new_ones(theta_k.shape[:-1])  # d loss / d loss of each client
        # with momentum: m <- rho m + (corrected gradient), theta_k <- theta_k - eta m; m starts at 0 each round
        self.out, self.scale = (theta_k, -self.local.eta) if m is None else (m, 1.0)
        self.out_views = split_like(self.out, bench.net.shapes)
        self.d_views = self.out_views if d is None else split_like(d, bench.net.shapes)
        # a step may wait (linear.Due) if nothing but the weight's own layer reads theta_k between two steps
        alone = not (bench.method.objective.memory or bench.method.objective.adapts or self.local.momentum)
        self.may_wait = alone and not self.local.weight_decay + self.mu and theta_k.device.type == "cpu"

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
        late = self._put_off(grads, factors) if self.may_wait else set()
        if self.d is not None and not late:
            out.add_(self.d, alpha=scale)
        elif self.d is not None:
            now = [i for i in range(len(self.out_views)) if i not in late]
            torch._foreach_add_([self.out_views[i] for i in now], [self.d_views[i] for i in now], alpha=scale)
        for factor in factors:
            add = factor.add_bias_to if factor.weight in late else factor.add_to
            add(self.out_views, scale)
        whole = [(view, g) for view, g in zip(self.out_views, grads, strict=True) if g is not None]
        if whole:
            views, found = zip(*whole, strict=True)
            torch._foreach_add_(views, found, alpha=scale)
        if self.local.momentum:
            self.theta_k.add_(out, alpha=-self.local.eta)

    def _put_off(self, grads: tuple[Tensor | None, ...], factors: list[Factors]) -> set[int]:
        """Leave the steps of huge weights to whoever reads them next, and return their positions."""
        late = {f.weight for f in factors if waits(self.out_views[f.weight])}
        for i in late:
            d = None if self.d is None else as_stack(self.d_views[i])
            own = [f._replace(outer=as_stack(f.outer), x=as_stack(f.x)) for f in factors if f.weight == i]
            self.linears.put_off(Due(as_stack(self.out_views[i]), d, own, self.scale), whole=grads[i] is None)
        return late


class Alone:
    """One client: theta_k is the network's own vector."""

    def __init__(self, bench: Bench, broadcast: Broadcast) -> None:
        self.bench, net, (k,), start = bench, bench.net, broadcast.clients, broadcast.theta[0]
        self.clients, self.own_buffers = broadcast.clients, bench.tables.get("buffers")
        keeps = self.own_buffers is not None and bool(broadcast.done[0])
        net.load(start, self.own_buffers.get([k])[0] if self.own_buffers and keeps else broadcast.buffers)
        net.module.train()
        seed_network(stream_seed(bench.seed, "network", broadcast.round, k), start.device)
        self.memory = bench.state(broadcast)
        self.state, d = {name: rows[0] for name, rows in self.memory.items()}, bench.offset(broadcast)
        m = torch.zeros_like(net.theta) if bench.method.local.momentum else None
        self.descent = Descent(bench, net.params, net.theta, start, None if d is None else d[0], m)
        self.theta_k, self.done = net.theta[None], bench.steps_done(broadcast)[0]

    def at_work(self, uses: Uses | None) -> AbstractContextManager[None]:
        self.uses = uses
        return self.bench.net.linears.factored()

    def batches(self, block: Batch) -> Iterator[Batch]:
        return per_step(block.map(itemgetter(0)), 0)

    def loss(self, batch: Batch, step: int) -> tuple[Tensor, list[Tensor]]:
        net, objective, state = self.bench.net, self.bench.method.objective, self.state
        net.linears.uses = self.uses and self.uses.at(step, 1)
        net.masks.begin_step(batch.noise.get("masks"))
        with objective.at_step(batch.noise, batch.x.dtype):
            if objective.adapts:
                for name, row in objective.adapt(net, batch, state, self.done + step).items():
                    state[name].copy_(row.detach())
            loss, parts = own_terms(objective, *objective.loss(net, batch, state), batch)
        return loss, [*parts.values()]

    def after_step(self, step: int) -> None:
        if self.state:
            self.bench.method.objective.after_step(self.state, self.descent.theta_k, self.done + step)

    def load(self, i: int) -> None:
        """The network is at the client's model already."""

    def buffers(self) -> Tensor:
        """(1, B)"""
        buffers = self.bench.net.buffers[None]
        if self.own_buffers:
            self.own_buffers.put(self.clients, buffers)
        return buffers


class Stack:
    """Clients with as many steps or fewer from one to the next; those that are done drop out from the end."""

    def __init__(self, bench: Bench, broadcast: Broadcast) -> None:
        self.bench, self.tau, self.start, self.active = bench, broadcast.tau, broadcast.theta, 0
        self.theta_k, self.server_buffers = aligned_rows(broadcast.theta), broadcast.buffers
        self.memory, self.d = bench.state(broadcast), bench.offset(broadcast)
        self.m = torch.zeros_like(self.theta_k) if bench.method.local.momentum else None
        bench.net.module.train()
        self.all_done = bench.steps_done(broadcast)

    def at_work(self, uses: Uses | None) -> AbstractContextManager[None]:
        self.uses = uses
        return nullcontext()

    def batches(self, block: Batch) -> Iterator[Batch]:
        return per_step(block, 1)

    def loss(self, batch: Batch, step: int) -> tuple[Tensor, list[Tensor]]:
        tau = self.tau
        active = sum(t > step for t in tau) if step >= tau[-1] else len(tau)
        if active != self.active:
            self._stay(active)
        self.bench.net.linears.uses = self.uses and self.uses.at(step, active)
        if active < len(tau):
            batch = batch.map(itemgetter(slice(active)))
        losses, parts, adapted = _losses(self.bench, self.leaves, batch, self.state, self.done + step)
        for name, rows in adapted.items():
            self.state[name].copy_(rows.detach())
        return losses, parts

    def _stay(self, active: int) -> None:
        """The first `active` clients go on."""
        self.bench.net.linears.settle()
        self.active, theta_k = active, self.theta_k[:active]
        self.leaves = [v.requires_grad_() for v in split_like(theta_k.detach(), self.bench.net.shapes)]
        self.state = {name: rows[:active] for name, rows in self.memory.items()}
        self.done = self.all_done[:active]
        d, m = (None if t is None else t[:active] for t in (self.d, self.m))
        self.descent = Descent(self.bench, self.leaves, theta_k, self.start[:active], d, m)

    def after_step(self, step: int) -> None:
        if self.state:
            self.bench.method.objective.after_step(self.state, self.descent.theta_k, self.done + step)

    def load(self, i: int) -> None:
        """The network at the i-th client's model."""
        self.bench.net.load(self.theta_k[i], self.server_buffers)

    def buffers(self) -> Tensor:
        """(n, B): networks that keep statistics are not stacked."""
        return self.server_buffers.expand(len(self.theta_k), -1)


def _losses(
    bench: Bench, rows: list[Tensor], batch: Batch, state: State, done: Tensor
) -> tuple[Tensor, list[Tensor], State]:
    """Each client's loss, its parts and its adapted memory: torch.vmap over everything's first dimension.

    Without torch.vmap's own search for the tensors in nested inputs: small clients are done sooner.
    """
    lazy_load_decompositions()
    clients, objective = len(done), bench.method.objective
    with vmap_increment_nesting(clients, "error") as level:

        def one(rows: Tensor) -> Tensor:
            return functorch._add_batch_dim(rows, 0, level)

        def each(value: Tensor) -> Tensor:
            return functorch._remove_batch_dim(value, level, clients, 0)

        net, batch, memory = StackedNet(bench.net, rows, one), batch.map(one), {k: one(v) for k, v in state.items()}
        bench.net.masks.begin_step(batch.noise.get("masks"))
        with objective.at_step(batch.noise, batch.x.dtype):
            adapted = objective.adapt(net, batch, memory, one(done)) if objective.adapts else {}
            loss, parts = own_terms(objective, *objective.loss(net, batch, memory | adapted), batch)
        return each(loss), [each(part) for part in parts.values()], {name: each(v) for name, v in adapted.items()}


def seed_network(seed: int, device: torch.device) -> None:
    """For layers that draw from torch's generator. torch.manual_seed takes a stack trace for each absent device."""
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)
