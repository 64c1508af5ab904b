"""The server side of Algorithm 1: it broadcasts theta, folds Updates one by one in any order, and makes one step.

    Delta = sum_k omega_k Delta_k, as they come        Server.fold
    theta' = theta - eta tau_bar Delta                 Server.close
    c' = c + sum_k omega_k (c_k' - c_k)                Server.close

It holds O(P) numbers, or what a robust aggregation needs, and never sees data.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from fedshvr.algorithms.aggregation import Cohort, effective_steps
from fedshvr.compute.vector import wide
from fedshvr.errors import Diverged
from fedshvr.federation.cohort import Cohorts
from fedshvr.federation.plan import Plan
from fedshvr.rounds.messages import Broadcast, Labeled, Update, nbytes
from fedshvr.rounds.options import Method, ServerRule
from fedshvr.rounds.private import Release, check_private
from fedshvr.rounds.reduce import Steps

LOST = 3  # rounds on end without one sound client after which a run stops


class Server(nn.Module):
    """Its only parameter is theta, stepped once a round by the server optimiser."""

    buffers_: Tensor  # batch-norm statistics
    c: Tensor | None  # the server's control variate
    ema: Tensor | None  # the moving average of theta, if that is evaluated
    done: Tensor  # (K,) local steps of each client so far; in main memory
    group_models: Tensor  # (S, P), empty unless the aggregation keeps groups

    def __init__(
        self, theta: Tensor, buffers: Tensor, method: Method, plan: Plan, rule: ServerRule, cohorts: Cohorts
    ) -> None:
        super().__init__()
        self.method, self.plan, self.rule, self.cohorts, self.seed = method, plan, rule, cohorts, cohorts.seed
        self.theta = nn.Parameter(theta)
        self.register_buffer("buffers_", buffers)
        self.register_buffer("c", torch.zeros_like(theta) if method.correction.server_memory else None)
        self.register_buffer("ema", theta.clone() if rule.evaluate == "ema" else None)
        self.register_buffer("done", torch.zeros(plan.clients, dtype=torch.long))
        self.register_buffer("group_models", theta.repeat(method.aggregation.groups, 1))
        self.skips = [0] * plan.clients  # rounds that each client was left out of
        self.lost = 0  # rounds on end of which every client was left out
        self.set_steps(plan.tau)
        self.release: Release | None = None
        if method.privacy.private:
            check_private(method, plan, cohorts, rule, len(buffers))
            self.release = Release(method, plan, cohorts, self.able)

    def able(self, round: int) -> list[int]:
        """The clients of whom this round's are drawn."""
        learns = self.method.objective.learns_unlabeled(round * self.method.local.epochs)
        return self.plan.able if learns else self.plan.with_labels

    def set_steps(self, tau: list[int]) -> None:
        """tau_k and a_k from this round on."""
        self.tau, local = tau, self.method.local
        solver = local.eta, local.momentum, self.method.correction.mu
        self.effective = torch.tensor([effective_steps(steps, *solver) for steps in tau], dtype=torch.float64)

    def begin(self, round: int, clients: list[int]) -> None:
        """A new round with these clients: all sums are 0."""
        objective, plan = self.method.objective, self.plan
        self.method.begin_round(round)
        tau = plan.tau if objective.counts_unlabeled else plan.tau_labeled
        tau = self.cohorts.steps(tau, clients, round)
        if tau is not self.tau:
            self.set_steps(tau)
        self.round, self.sent, assign = round, self.theta.detach().clone(), self.method.aggregation.assign
        self.method.aggregation.begin(self._cohort(clients), self.sent)
        if self.release:
            self.release.begin(self.method.aggregation, self._weighed(self.able(round), []))
        # from the second round on clients start from their group's model
        self.group_of = assign(plan.clients, self.seed, round - 1) if round else []

        zeros = partial(torch.zeros, device=self.theta.device)
        self.change = zeros(0 if self.c is None else len(self.sent), dtype=self.sent.dtype)
        self.new_buffers = zeros(len(self.buffers_), dtype=self.sent.dtype)
        self.means = zeros(2 + len(objective.parts), dtype=wide(self.theta.device))  # loss, its parts, drift
        self.labels = zeros(4, dtype=wide(self.theta.device))  # right labels, all of them, their cost, their movement
        self.traffic = zeros(2, dtype=wide(self.theta.device))  # bytes from the clients, bytes to them
        skips = self.rule.on_client_error == "skip"
        self.left_out = zeros(plan.clients if skips else 0, dtype=self.means.dtype)  # 1: this client
        self.skipped = 0  # how many these are
        self.made: list[Steps] = []

    def _cohort(self, clients: list[int]) -> Cohort:
        """These are the clients of the round: their weights sum to 1."""
        cohort = self._weighed(clients, self.method.aggregation.assign(self.plan.clients, self.seed, self.round))
        self.clients, self.weight = clients, dict(zip(clients, cohort.weights.tolist(), strict=True))
        return cohort

    def _weighed(self, clients: list[int], group_of: list[int]) -> Cohort:
        """These clients with the weights that they have among themselves."""
        omega = self.plan.omega[clients]
        tau = torch.tensor(self.tau)[clients]
        return Cohort(clients, omega / omega.sum(), self.effective[clients], tau, group_of)

    def broadcast(self, clients: list[int]) -> Broadcast:
        """What these clients are given: theta, or their group's model."""
        group_of, n = self.group_of, len(clients)
        theta = self.group_models[[group_of[k] for k in clients]] if group_of else self.sent.expand(n, -1)
        c, tau = self.sent[:0] if self.c is None else self.c, [self.tau[k] for k in clients]
        return Broadcast(self.round, clients, tau, theta, self.buffers_, c, self.done[clients])

    def send(self, clients: list[int]) -> Broadcast:
        """The same, with its size counted: each client gets its own row of it and all that they share."""
        broadcast = self.broadcast(clients)
        self.traffic[1] += len(clients) * nbytes(broadcast.of(0))
        return broadcast

    def fold_labels(self, labeled: Labeled) -> None:
        """Count what a client says of its new pseudo-labels."""
        weight = self.weight.get(labeled.client, 0.0)
        self.labels[0] += labeled.right.sum()
        self.labels[1] += labeled.given.sum()
        for cost in weight / labeled.samples * labeled.cost:
            self.labels[2] += cost
        for moved in weight * labeled.moved:
            self.labels[3] += moved

    def fold(self, update: Update) -> None:
        """Add what these clients came to. Its change of c_k is spent: the moves, as large, take its place."""
        self.traffic[0] += nbytes(update)
        if len(update.change):
            omega = torch.tensor(update.omega, dtype=self.change.dtype, device=self.change.device)
            self.change += omega @ update.change
            update.change = update.change.new_empty(0)
        w = torch.tensor([self.weight[k] for k in update.clients], dtype=self.means.dtype, device=self.means.device)
        move = self.sent - update.theta
        self.means[:-1] += w @ update.metrics
        self.means[-1] += w @ torch.linalg.vector_norm(move, dim=1).to(w.dtype)
        if len(self.buffers_):
            self.new_buffers += (w @ update.buffers.to(w.dtype)).to(self.new_buffers.dtype)
        self.method.aggregation.add(update.clients, move, update.theta)
        self.made.append((update.clients, update.tau, update.finite))

    def sums(self) -> list[Tensor]:
        """What is to be summed over the processes that share the clients."""
        sums = [*self.method.aggregation.sums(), self.change, self.new_buffers, self.means, self.labels, self.traffic]
        return [*sums, self.left_out]

    def close(self, step: Callable[[], object]) -> Tensor:
        """theta' = theta - direction by the server optimiser, c' = c + change. Returns the theta that was sent."""
        if len(self.left_out):
            self._leave_out()
        if self.clients:
            self.method.aggregation.renew(self.group_models)
            direction = self.method.aggregation.finish()
            if self.release:
                self.release.add_noise(direction, self.change, self.round)
            self.theta.grad = direction.to(self.theta.dtype)
            step()
        self._take_if_finite()
        self.done[self.clients] += torch.tensor([self.tau[k] for k in self.clients], dtype=torch.long)
        sent, self.sent, self.group_of = self.sent, self.theta.detach(), []  # what is sent from now on
        return sent

    def _take_if_finite(self) -> None:
        """The new theta, c and statistics if all of their numbers are finite, else the old; nothing is read here."""
        found = (self.theta.detach(), self.change, self.new_buffers)
        self.sound = torch.stack([t.isfinite().all() for t in found]).all()
        self.theta.data.copy_(torch.where(self.sound, self.theta.detach(), self.sent))
        if self.c is not None:
            self.c += torch.where(self.sound, self.change, 0)
        if len(self.buffers_):
            self.buffers_.copy_(torch.where(self.sound, self.new_buffers, self.buffers_))

    def _leave_out(self) -> None:
        """The round becomes that of a cohort without those left out; without anybody theta stays as it is."""
        bad = self.left_out.tolist()
        left = [k for k in self.clients if not bad[k]]
        self.skipped = len(self.clients) - len(left)
        self.skips = [n + int(b) for n, b in zip(self.skips, bad, strict=True)]
        self.lost = 0 if left else self.lost + 1
        if self.lost >= LOST:
            rounds = f"rounds {self.round + 2 - LOST} to {self.round + 1}"
            raise Diverged(f"{rounds}: every client of each was left out (on_client_error=skip)")
        if not left:
            self.clients, self.weight = [], {}
            self.new_buffers.copy_(self.buffers_)
            self.means.fill_(torch.nan)  # of nobody
        elif len(left) < len(self.clients):
            share = sum(self.weight[k] for k in left)
            for total in (self.means, self.new_buffers, self.labels[2:]):
                total /= share
            self.method.aggregation.keep(self._cohort(left))

    def average_theta(self) -> None:
        """evaluate=ema: ema <- a ema + (1 - a) theta once a round, a = min(1 - 1/t, ema_decay^tau_bar) after t rounds.

        The published decay is that of a step, and a round is tau_bar steps. At first this is the plain mean of theta
        after rounds 1 .. t, so the first model does not linger (the warm-up of the published mean teacher).
        """
        if self.ema is not None and self.weight:
            tau_bar = sum(w * self.tau[k] for k, w in self.weight.items())
            a = min(1 - 1 / (self.round + 1), self.rule.ema_decay**tau_bar)
            self.ema.lerp_(self.theta.detach(), 1 - a)

    def cast(self, dtype: torch.dtype) -> None:
        """Everything of the size of theta in this type."""
        self.theta.data = self.theta.data.to(dtype)
        for name in ("buffers_", "c", "ema", "group_models"):
            if (value := getattr(self, name)) is not None:
                setattr(self, name, value.to(dtype))
