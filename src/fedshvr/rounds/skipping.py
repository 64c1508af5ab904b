"""on_client_error=skip: a client that raises, or whose numbers are not finite, is left out of the round.

The server decides by the Update. Until it has, what the client remembered before the round is kept, so that a client
that is left out is as if it had not been drawn.
"""

import sys
from itertools import chain
from typing import Any

import torch
from lightning import Trainer
from torch import Tensor

from fedshvr.compute.engine import Work
from fedshvr.rounds.bench import Bench
from fedshvr.rounds.labels import relabel
from fedshvr.rounds.measures import Send, full_loss
from fedshvr.rounds.messages import Broadcast, Labeled, Update
from fedshvr.rounds.reduce import over_ranks
from fedshvr.rounds.server import Server


class Kept:
    """What these clients remember, to be put back."""

    def __init__(self, bench: Bench, clients: list[int]) -> None:
        self.bench, self.clients = bench, clients
        self.rows = {name: table.get(clients).clone() for name, table in bench.tables.items()}
        self.v = {k: bench.pool.v[bench.samples.unlabeled[k]] for k in clients} if len(bench.pool.v) else {}

    def put_back(self, clients: list[int]) -> None:
        for k in clients:
            i = self.clients.index(k)
            for name, rows in self.rows.items():
                self.bench.tables[name].put([k], rows[i : i + 1])
            if k in self.v:
                self.bench.pool.v[self.bench.samples.unlabeled[k]] = self.v[k]


class Guard:
    """Stands between the clients of this process and the server."""

    def __init__(self, bench: Bench, server: Server) -> None:
        self.bench, self.server = bench, server
        self.told: set[int] = set()  # clients of which the user has been told

    def begin(self) -> None:
        """A new round; the pseudo-labels of the last one are kept."""
        self.v, self.bad = self.bench.pool.v.clone(), set[int]()

    def leave_out(self, k: int, why: str) -> None:
        """Client k takes no part in this round, and its labels are those of the last."""
        self.bad.add(k)
        if len(self.v):
            samples = self.bench.samples.unlabeled[k]
            self.bench.pool.v[samples] = self.v[samples]
        if k in self.server.weight:  # some label without being at work
            self.server.left_out[k] = 1
        if k not in self.told:
            self.told.add(k)
            place = f"round {self.server.round + 1}, client {k}"
            print(f"{place}: left out: {why} (told once; metrics.csv counts all)", file=sys.stderr, flush=True)

    def relabel(self, broadcast: Broadcast) -> Labeled | None:
        """What a client says of its new pseudo-labels, or nothing if it cannot make them."""
        (k,) = broadcast.clients
        try:
            labeled = relabel(self.bench, broadcast)
        except Exception as error:  # whatever a client's own data may cause
            self.leave_out(k, one_line(error))
            return None
        if torch.cat([labeled.cost, labeled.moved]).isfinite().all():
            return labeled
        self.leave_out(k, "its pseudo-labels are not finite")
        return None

    def work(self, work: Work, clients: list[int], stacked: bool) -> Update:
        """The Update of those of these clients that take part. Of a stack that raises, one after another is tried."""
        clients = [k for k in clients if k not in self.bad]
        if not clients:
            return nothing(self.server)
        before = Kept(self.bench, clients)
        try:
            update = work(clients, stacked)
        except Exception as error:  # whatever a client's own data may cause
            self.bench.net.linears.forget()
            before.put_back(clients)
            if len(clients) > 1:
                return joined([self.work(work, [k], False).only() for k in clients]) or nothing(self.server)
            self.leave_out(clients[0], one_line(error))
            return nothing(self.server)
        faults = {k: fault for k, fault in zip(clients, faults_of(update, self.server.sent), strict=True) if fault}
        before.put_back(list(faults))
        for k, fault in faults.items():
            self.leave_out(k, fault)
        return update.only([i for i, k in enumerate(clients) if k not in faults]) if faults else update

    def server_loss(self, send: Send, own: list[int], omega: Tensor, trainer: Trainer) -> Tensor:
        """F(theta, v) over the clients whose F_k can be had and is finite."""
        sums = torch.zeros(2, dtype=self.server.means.dtype, device=self.server.means.device)
        found = {k: self._loss(send, k) for k in own if omega[k]}
        if good := {k: loss for k, loss in found.items() if loss is not None}:
            losses = torch.stack(list(good.values()))
            sums[0] = losses @ omega[list(good)].to(losses)
        sums[1] = omega[[k for k in found if k not in good]].sum()
        total, missing = over_ranks(sums, trainer)
        return total / (1 - missing)

    def _loss(self, send: Send, k: int) -> Tensor | None:
        try:
            loss = full_loss(self.bench, send([k]))
        except Exception:  # its work says why, where it takes part
            return None
        return loss if loss.isfinite() else None


def faults_of(update: Update, sent: Tensor) -> list[str]:
    """What is wrong with each client's part of an Update, by one read; "" if nothing is."""
    parts = [torch.linalg.vector_norm(sent - update.theta, dim=1)[:, None], update.buffers, update.metrics]
    parts += [update.change] if len(update.change) else []
    finite = torch.stack([part.isfinite().all(1) for part in parts]).all(0)
    read = torch.stack([finite.long(), update.finite]).tolist()
    return [
        f"the loss of local step {steps + 1} is not finite" if steps < tau else "" if sound else "it is not finite"
        for sound, steps, tau in zip(*read, update.tau, strict=True)
    ]


def nothing(server: Server) -> Update:
    """An Update of nobody."""
    empty = server.sent.new_empty(0)
    return Update([], [], [], empty, empty, empty, empty, empty)


def joined(updates: list[Update]) -> Update | None:
    """Updates of single clients as one."""
    parts = [update for update in updates if update.clients]
    if not parts:
        return None
    fields: dict[str, Any] = {}
    for name in vars(parts[0]):
        values = [getattr(part, name) for part in parts]
        fields[name] = torch.cat(values) if isinstance(values[0], Tensor) else list(chain(*values))
    return Update(**fields)


def one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
