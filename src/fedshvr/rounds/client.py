"""The client side of Algorithm 1: a function of (Broadcast, the client's own data, its own memory), and nothing else.

v_k <- Lemma 1 at theta                                                   labels.relabel
theta_k <- theta                                                          seats.Alone, seats.Stack
tau_k times: theta_k <- theta_k - eta (g_k(theta_k, v_k) + d_k)           Client.training_step
Delta_k = (theta - theta_k) / (eta tau_k), and d_k for the next round     Client.remember
"""

import torch
from lightning import LightningModule
from torch import Tensor

from fedshvr.algorithms.objectives.batch import MODEL, Batch
from fedshvr.compute.streams import Draws
from fedshvr.compute.vector import wide
from fedshvr.errors import placed
from fedshvr.rounds.bench import Bench
from fedshvr.rounds.labels import label_epochs, renew_labels
from fedshvr.rounds.measures import full_gradient
from fedshvr.rounds.messages import Broadcast, Update
from fedshvr.rounds.seats import Alone, Stack


class Client(LightningModule):
    """Client k, or several clients whose steps are made as one stack.

    It owns its index and its weight; everything heavy is borrowed for the round.
    """

    bench: Bench
    seat: Alone | Stack

    def __init__(self, index: list[int], omega: list[float]) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.index, self.omega = index, omega

    @property
    def name(self) -> str:
        k, *others = sorted(self.index)
        return f"one of clients {', '.join(map(str, [k, *others]))}" if others else f"client {k}"

    def work(self, bench: Bench, broadcast: Broadcast, stacked: bool = False) -> Update:
        """A round of this client. Without a stack theta_k is the network's own vector, until it is lent again."""
        bench.method.begin_round(broadcast.round)
        self.bench, self.seat = bench, (Stack if stacked else Alone)(bench, broadcast)
        trace = self.local_steps(broadcast)
        theta_k, buffers, memory = self.seat.theta_k, self.seat.buffers(), self.seat.memory
        del self.seat  # handed back: d_k and the momentum make room for Delta_k
        for name, rows in memory.items():
            bench.tables[name].put(self.index, rows)
        if MODEL in bench.tables:
            bench.tables[MODEL].put(self.index, theta_k)
        tau = torch.tensor(broadcast.tau, dtype=theta_k.dtype, device=theta_k.device)[:, None]
        metrics = trace.sum(0, dtype=wide(theta_k.device)) / tau
        finite = trace[:, :, 0].isfinite().long().cumprod(0).sum(0)
        bench.method.privacy.clip_(theta_k, broadcast.theta)
        change = self.remember(broadcast, theta_k, tau)
        del self.bench
        return Update(self.index, broadcast.tau, self.omega, theta_k, buffers, change, metrics, finite)

    def local_steps(self, broadcast: Broadcast) -> Tensor:
        """tau_k local steps. Returns loss and parts of each, (steps, n, 1 + parts); 0 where a client is done."""
        bench, seat, tau = self.bench, self.seat, broadcast.tau
        choices = bench.batcher.choose(Draws(bench.seed, broadcast.round, torch.tensor(self.index)), tau[0])
        epochs = [label_epochs(bench, k, t) for k, t in zip(self.index, tau, strict=True)]
        uses = bench.batcher.recurring(choices, bench.pool) if bench.net.linears.huge else None
        trace: list[Tensor] = []
        step = 0
        with placed(lambda: f"round {broadcast.round + 1}, {self.name}, local step {step + 1}"), seat.at_work(uses):
            for block in bench.batcher.blocks(choices, bench.pool, set().union(*epochs)):
                bench.progress(self.index[0], step)
                for batch in seat.batches(block):
                    trace += self.training_step(batch, step)
                    step += 1
                if any(step in starts for starts in epochs):
                    bench.net.linears.settle()
                for i, k in enumerate(self.index):
                    if step in epochs[i]:
                        seat.load(i)
                        renew_labels(bench, broadcast.round, k, epochs[i][step], choices.at(i, step).noise)
        bench.net.linears.settle()
        n = len(self.index)
        rows = torch.stack([t if t.numel() == n else torch.nn.functional.pad(t, (0, n - len(t))) for t in trace])
        return rows.view(step, -1, n).transpose(1, 2).contiguous()

    def training_step(self, batch: Batch, step: int) -> list[Tensor]:  # type: ignore[override]
        """One corrected step: theta_k <- theta_k - eta (g_k(theta_k, v_k) + d_k)."""
        loss, parts = self.seat.loss(batch, step)
        self.seat.descent.step(loss)
        self.seat.after_step(step)
        return [loss.detach(), *(part.detach() for part in parts)]

    def remember(self, broadcast: Broadcast, theta_k: Tensor, tau: Tensor) -> Tensor:
        """Delta_k, and what the correction keeps of it; returns the change of c_k that the server is told."""
        correction, local, nothing = self.bench.method.correction, self.bench.method.local, theta_k.new_empty(0)
        if not correction.memory:
            return nothing
        delta = (broadcast.theta - theta_k).div_(local.eta * tau)
        table = self.bench.tables[correction.memory]
        memory = table.get(self.index)
        change = correction.after_client(memory, broadcast.c, delta, lambda: self.gradient(broadcast))
        table.put(self.index, memory)
        return nothing if change is None else change

    def gradient(self, broadcast: Broadcast) -> Tensor:
        """Of F_k at the server's model, of what a local step descends, so with its weight decay: (n, P)."""
        net = self.bench.net
        theta_k = net.theta.clone()  # a client alone has its model there
        whole = torch.stack([full_gradient(self.bench, broadcast.of(i)) for i in range(len(self.index))])
        net.theta.copy_(theta_k)
        return whole.add_(broadcast.theta, alpha=self.bench.method.local.weight_decay)


def together(clients: list[Client]) -> Client:
    """These clients as one stack."""
    return Client([k for client in clients for k in client.index], [w for client in clients for w in client.omega])


def receive(bench: Bench, broadcast: Broadcast) -> None:
    """Put what a client is given of others into its memory."""
    for name, rows in broadcast.exchanged.items():
        bench.tables[name].put(broadcast.clients, rows)


def after_round(bench: Bench, clients: list[int], tau: list[int], global_move: Tensor) -> None:
    """What a client's memory makes of theta - theta', once the server has made its step."""
    table, correction = bench.tables[bench.method.correction.memory], bench.method.correction
    for k in clients:
        memory = table.get([k])
        correction.after_round(memory, global_move, bench.method.local.eta, tau[k])
        table.put([k], memory)
