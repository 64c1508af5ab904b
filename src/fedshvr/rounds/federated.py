"""The orchestrator: one training_step is one communication round."""

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from math import floor
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from fedshvr.algorithms.aggregation import Average, effective_steps
from fedshvr.algorithms.corrections import Correction
from fedshvr.algorithms.objectives.base import MODEL, Objective
from fedshvr.compute.compiled import compile_loss
from fedshvr.compute.engine import pick_engine
from fedshvr.compute.memory import PLACES, make_table
from fedshvr.compute.streams import stream
from fedshvr.compute.vector import FlatNet, flatten, wide
from fedshvr.data.augment import Augment
from fedshvr.data.batches import Batcher
from fedshvr.data.holdings import Federation
from fedshvr.errors import check
from fedshvr.federation.plan import LocalSGD, owners
from fedshvr.rounds.checkpoint import client_tensors, restore_clients
from fedshvr.rounds.client import Bench, Client, Round, full_gradient
from fedshvr.rounds.collect import Sums, Weights, over_ranks, stop_if_diverged
from fedshvr.rounds.helpers import exchange
from fedshvr.rounds.labels import relabel, weighted_gradient, weighted_loss

OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
BUFFERS = ("average", "local")
EVALUATE = ("theta", "ema")
CHUNK = 2048  # test images in one forward pass


class Federated(LightningModule):
    """The server. Its only parameter is theta, stepped once a round by the server optimiser (SGD, lr 1: the paper)."""

    network: nn.Module
    buffers_: Tensor  # batch-norm statistics
    c: Tensor | None  # the server's control variate
    ema: Tensor | None  # the moving average of theta, if that is evaluated
    done: Tensor  # (K,) local steps of each client so far; in main memory
    group_models: Tensor  # (S, P), empty unless the aggregation keeps groups

    def __init__(
        self,
        network: nn.Module,
        federation: Federation,
        objective: Objective,
        correction: Correction,
        aggregation: Average,
        local: LocalSGD,
        server: OptimizerFactory,
        augments: dict[str, Augment],
        seed: int,
        participation: float = 1.0,
        buffers: str = "average",
        evaluate: str = "theta",
        ema_decay: float = 0.999,
        engine: str = "auto",
        client_state: str = "device",
        optimality_gap: bool = False,
        server_loss_every: int = 0,
        compile: str | None = None,
    ) -> None:
        super().__init__()
        check(0 < participation <= 1, f"participation={participation}: must be above 0 and at most 1")
        check(server_loss_every >= 0, f"server_loss_every={server_loss_every}: must be at least 0 (0: never)")
        check(buffers in BUFFERS, f"buffers={buffers}: must be one of {', '.join(BUFFERS)}")
        check(evaluate in EVALUATE, f"evaluate={evaluate}: must be one of {', '.join(EVALUATE)}")
        check(0 <= ema_decay < 1, f"ema_decay={ema_decay}: must be at least 0 and below 1")
        check(client_state in PLACES, f"client_state={client_state}: must be one of {', '.join(PLACES)}")
        check(
            compile is None or engine in ("auto", "sequential"),
            f"compile={compile}: works with engine=sequential, not with engine={engine}",
        )
        check(
            not (local.momentum and correction.plain_sgd),
            f"client.momentum={local.momentum}: must be 0, because {type(correction).__name__} assumes plain SGD",
        )
        check(
            not (aggregation.groups and correction.memory),
            f"algorithm/aggregation: grouping starts clients from different models, but {type(correction).__name__} "
            "compares their moves from one; use algorithm/correction=none or proximal",
        )
        self.automatic_optimization = False
        self.federation, self.plan, self.local, self.server = federation, federation.plan, local, server
        self.objective, self.correction, self.aggregation = objective, correction, aggregation
        self.augments, self.seed, self.participation = augments, seed, participation
        self.buffer_policy, self.engine, self.client_state = buffers, "sequential" if compile else engine, client_state
        self.optimality_gap, self.server_loss_every, self.compile_with = optimality_gap, server_loss_every, compile
        self.clients = [Client(k, self.plan.tau[k], float(self.plan.omega[k])) for k in range(self.plan.clients)]

        network = objective.wrap(network)
        self.__dict__["network"] = network  # borrowed by the clients; theta is the only registered parameter
        self.theta = nn.Parameter(flatten(list(network.parameters())))
        self.register_buffer("buffers_", flatten([b for b in network.buffers() if b.is_floating_point()]))
        self.register_buffer("c", torch.zeros_like(self.theta.detach()) if correction.server_memory else None)
        self.register_buffer("ema", self.theta.detach().clone() if evaluate == "ema" else None)
        self.ema_decay = ema_decay

        self.register_buffer("done", torch.zeros(self.plan.clients, dtype=torch.long))
        self.register_buffer("group_models", self.theta.detach().repeat(aggregation.groups, 1))
        self._set_steps(self.plan.tau)
        self.row: dict[str, float] = {}  # the metrics of the round
        self.state_folder: Path | None = None  # where client_state=disk puts its files
        self.resumed_clients: dict[str, Tensor] | None = None  # from a checkpoint, until the tables are there

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.server([self.theta])

    def on_fit_start(self) -> None:
        """Device and precision are settled: lay out the network, the data and this rank's client tables."""
        device, dtype = self.theta.device, self.theta.dtype
        net = FlatNet(self.network, device, dtype)
        self.done = self.done.cpu()  # the host decides by it: it must not have to wait for the device
        self.owner = owners(self.plan.tau, self.trainer.world_size)
        self.own = own = [k for k, rank in enumerate(self.owner) if rank == self.global_rank]
        check(
            bool(own), f"trainer.devices: {self.trainer.world_size} processes for {self.plan.clients} clients: too many"
        )
        widths = self.objective.widths(len(self.theta), len(self.federation.images.classes))
        if self.correction.memory:
            widths[self.correction.memory] = len(self.theta)
        if self.buffer_policy == "local" and len(self.buffers_):
            widths["buffers"] = len(self.buffers_)
        tables = {
            name: make_table(self.client_state, name, own, self.plan.clients, width, device, dtype, self.state_folder)
            for name, width in widths.items()
        }

        pool = self.federation.pool(device, dtype, self.objective.pseudo_labels)
        net.probe(pool.x[:2])
        check(
            not (net.random and self.objective.repeats),
            f"model: {type(self.objective).__name__} compares passes that must drop the same units, but this network "
            "has random layers other than nn.Dropout",
        )
        batcher = Batcher(self.plan, self.local, self.objective, self.augments, dropout=bool(net.masks.layers))
        unlabeled = [self.plan.unlabeled[k].to(device) for k in range(self.plan.clients)]
        hidden = self.federation.y.to(device)
        parts = (self.objective, self.correction, self.local)
        self.bench = Bench(net, pool, self.plan, batcher, *parts, self.seed, tables, unlabeled, hidden)

        self.test_set, self.val_set = (
            (x.to(device, dtype), y.to(device))
            for x, y in ((self.federation.x_test, self.federation.y_test), self.federation.validation_set)
        )
        self.run_clients = pick_engine(self.engine, net, max(1, floor(self.participation * len(own) + 0.5)))
        if self.compile_with:
            compile_loss(self.objective, self.compile_with, device)
        if self.resumed_clients is not None:
            restore_clients(self.bench, self.resumed_clients)
            self.resumed_clients = None

    # ---- one round ---------------------------------------------------------------------------------------------------

    def cohort(self, round: int) -> list[int]:
        """The clients of this round, the same on every rank."""
        size = max(1, floor(self.participation * self.plan.clients + 0.5))
        if size == self.plan.clients:
            return list(range(size))
        order = torch.randperm(self.plan.clients, generator=stream(self.seed, "cohort", round))
        return order[:size].sort().values.tolist()

    def training_step(self, batch: Any, batch_idx: int) -> None:
        started, index = time.perf_counter(), self.current_epoch
        cohort = self.cohort(index)
        own = [k for k in cohort if self.owner[k] == self.global_rank]
        groups = self.aggregation.assign(self.plan.clients, self.seed, index)
        self.objective.begin_round(index * self.local.epochs)
        tau = self.plan.tau if self.objective.counts_unlabeled else self.plan.tau_labeled
        if tau is not self.tau:
            self._set_steps(tau)
        weights = Weights(cohort, self.plan.omega, self.effective, torch.tensor(self.tau), self.aggregation, groups)
        round = self._broadcast(index)

        if self.objective.exchanges(index):
            exchange(self.bench, round, self.owner, self.trainer)
        sums = self._collect(round, own, weights, groups).over_ranks(self.trainer)

        direction = sums.direction if self.aggregation.linear else self.aggregation.combine(sums.moves)
        self.theta.grad = direction.to(self.theta.dtype)
        self.optimizers().step()  # type: ignore[union-attr]
        if self.ema is not None:
            self._average_theta(self.ema, sum(w * self.tau[k] for k, w in weights.weight.items()))
        if self.c is not None:
            self.c += sums.change
        if len(self.buffers_):
            self.buffers_.copy_(sums.buffers)
        for g in {groups[k] for k in cohort} if groups else ():
            self.group_models[g] = sums.groups[g]
        self.done[cohort] += torch.tensor([self.tau[k] for k in cohort])
        if self.correction.needs_global_move:
            self._after_round(own, round.theta - self.theta.detach())
        self._log_round(sums, index, started)

    def _set_steps(self, tau: list[int]) -> None:
        """tau_k and a_k from this round on."""
        self.tau = tau
        for client, steps in zip(self.clients, tau, strict=True):
            client.tau = steps
        solver = self.local.eta, self.local.momentum, self.correction.mu
        self.effective = torch.tensor([effective_steps(steps, *solver) for steps in tau], dtype=torch.float64)

    def _average_theta(self, ema: Tensor, tau_bar: float) -> None:
        """ema <- a ema + (1 - a) theta once a round, a = min(1 - 1/t, ema_decay^tau_bar) after t rounds.

        The published decay is that of a step, and a round is tau_bar steps. At first this is the plain mean of theta
        after rounds 1 .. t, so the first model does not linger (the warm-up of the published mean teacher).
        """
        a = min(1 - 1 / (self.current_epoch + 1), self.ema_decay**tau_bar)
        ema.lerp_(self.theta.detach(), 1 - a)

    def _broadcast(self, index: int) -> Round:
        """What the clients are given: theta, or after the first round of a grouped aggregation their group's model."""
        theta = self.theta.detach().clone()
        c = theta[:0] if self.c is None else self.c
        group_of = self.aggregation.assign(self.plan.clients, self.seed, index - 1)
        models = self.group_models if index else self.group_models[:0]
        return Round(index, theta, self.buffers_, c, self.done, models, group_of)

    def _collect(self, round: Round, own: list[int], weights: Weights, groups: list[int]) -> Sums:
        """Let this rank's clients work, and sum up what they report."""
        theta, size = round.theta, len(round.theta)
        zeros = partial(torch.zeros, dtype=theta.dtype, device=self.device)
        sums = Sums(
            direction=zeros(size if self.aggregation.linear else 0),
            change=zeros(0 if self.c is None else size),
            buffers=zeros(len(self.buffers_)),
            means=zeros(2 + len(self.objective.parts), dtype=wide(self.device)),
            labels=zeros(4, dtype=wide(self.device)),
            gradient=zeros(0),
            groups=zeros(self.aggregation.groups, size),
            moves=zeros(0 if self.aggregation.linear else len(weights.weight), size),
        )
        relabel(self.bench, round, self.own if self.objective.label_everyone else own, weights.weight, sums.labels)
        if self.optimality_gap:
            sums.gradient = weighted_gradient(self.bench, round, own, weights.weight)
        self.traces: list[tuple[list[int], Tensor]] = []
        for result in self.run_clients(self.bench, self.clients, round, own):
            move = theta - result.theta
            tau = torch.tensor([self.tau[k] for k in result.clients], dtype=theta.dtype, device=self.device)
            w = torch.tensor([weights.weight[k] for k in result.clients], dtype=sums.means.dtype, device=self.device)
            sums.means[:-1] += w @ (result.trace.sum(0, dtype=w.dtype) / tau[:, None])
            sums.means[-1] += w @ torch.linalg.vector_norm(move, dim=1).to(w.dtype)
            self.traces.append((result.clients, result.trace))
            if MODEL in self.bench.tables:
                self.bench.tables[MODEL].put(result.clients, result.theta)
            if len(self.buffers_):
                sums.buffers += (w @ result.buffers.to(w.dtype)).to(sums.buffers.dtype)
            if self.aggregation.linear:
                coefficients = [weights.coefficient[k] for k in result.clients]
                sums.direction += torch.tensor(coefficients, dtype=theta.dtype, device=self.device) @ move
            else:
                sums.moves[[weights.position[k] for k in result.clients]] = move
            for i, k in enumerate(result.clients if groups else ()):
                sums.groups[groups[k]].add_(result.theta[i], alpha=weights.share[k])
            if self.correction.memory:
                self._remember(round, result.clients, move.div_(self.local.eta * tau[:, None]), sums.change)
        return sums

    def _remember(self, round: Round, clients: list[int], delta: Tensor, change: Tensor) -> None:
        table = self.bench.tables[self.correction.memory]
        memory = table.get(clients)

        def gradient() -> Tensor:  # of what a local step descends, so with its weight decay
            whole = torch.stack([full_gradient(self.bench, round, k) for k in clients])
            return whole.add_(round.start(clients), alpha=self.local.weight_decay)

        reported = self.correction.after_client(memory, round.c, delta, gradient)
        table.put(clients, memory)
        if reported is not None:
            omega = [self.clients[k].omega for k in clients]
            change += torch.tensor(omega, dtype=change.dtype, device=change.device) @ reported

    def _after_round(self, own: list[int], global_move: Tensor) -> None:
        table = self.bench.tables[self.correction.memory]
        for k in own:
            memory = table.get([k])
            self.correction.after_round(memory, global_move, self.local.eta, self.tau[k])
            table.put([k], memory)

    def _sum_omega_d(self) -> Tensor:
        """|sum_k omega_k d_k|; d_k is affine in client k's memory and the omega_k sum to 1."""
        name = self.correction.memory
        if not name or self.client_state == "disk":
            return torch.tensor(float("nan") if name else 0.0)
        table = self.bench.tables[name]
        omega = torch.tensor([self.clients[k].omega for k in table.row_of], dtype=table.dtype, device=table.rows.device)
        weighted = over_ranks((omega @ table.rows).to(self.device), self.trainer)
        d = self.correction.offset(weighted, weighted if self.c is None else self.c)
        return torch.tensor(0.0) if d is None else torch.linalg.vector_norm(d)

    def _server_loss(self, index: int) -> Tensor:
        """F(theta^t, v^t) of the new model on all clients' clean data."""
        now = replace(self._broadcast(index), group_models=self.group_models[:0])
        return over_ranks(weighted_loss(self.bench, now, self.own, self.plan.omega), self.trainer)

    def _log_round(self, sums: Sums, index: int, started: float) -> None:
        """Everything that is logged comes from the device in one tensor: nothing else of the round is read."""
        every, extra = self.server_loss_every, {"sum_omega_d": self._sum_omega_d()}
        if self.optimality_gap:
            extra["gap"] = sums.gradient.to(sums.means.dtype).square().sum() + sums.labels[3]
        if every and (index == 0 or (index + 1) % every == 0):
            extra["server_loss"] = self._server_loss(index)
        logged = [sums.means, sums.labels, torch.stack([value.to(sums.means) for value in extra.values()])]
        read = torch.cat(logged).cpu().split([len(t) for t in logged])
        (loss, *parts, drift), (correct, count, label_cost, _), more = (t.tolist() for t in read)
        stop_if_diverged([loss, *parts, drift], self.traces, index, self.local.eta)
        self.row = {
            "round": index + 1,
            "train_loss": loss + label_cost,
            **{f"train_{name}": value for name, value in zip(self.objective.parts, parts, strict=True)},
            "alpha0": self.objective.alpha0,
            "pseudo_label_acc": correct / count if count else float("nan"),
            "sum_omega_d": more[0],
            "drift": drift,
            "seconds": time.perf_counter() - started,
            **({"train_label_cost": label_cost} if self.objective.pseudo_labels else {}),
        } | dict(zip(extra, more, strict=True))

    # ---- evaluation, loaders, checkpoints ----------------------------------------------------------------------------

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Accuracy and loss of theta, or of its average with the current buffers, on the test and held-out samples."""
        net = self.bench.net
        net.load(self.theta.detach() if self.ema is None else self.ema, self.buffers_)
        net.module.eval()
        values = [*self._evaluate(*self.test_set), *(self._evaluate(*self.val_set) if len(self.val_set[0]) else ())]
        row = dict(zip(self.evaluated(), values, strict=True))
        self.row |= row
        self.log_dict(row, batch_size=1, logger=False)  # for users' callbacks

    def evaluated(self) -> list[str]:
        """The names of what an evaluation measures."""
        sets = ("test", "val") if len(self.federation.held_out) else ("test",)
        return [f"{name}_{what}" for name in sets for what in ("acc", "loss")]

    def _evaluate(self, x: Tensor, y: Tensor) -> list[float]:
        """Accuracy and mean loss of the network as it is loaded, the samples shared out over the ranks."""
        net, sums = self.bench.net, torch.zeros(2, dtype=wide(self.device), device=self.device)
        for index in torch.arange(self.global_rank, len(x), self.trainer.world_size).split(CHUNK):
            logits, target = net(x[index]), y[index]
            sums[0] += (logits.argmax(-1) == target).sum()
            sums[1] += cross_entropy(logits, target, reduction="sum")
        return (over_ranks(sums, self.trainer) / len(x)).tolist()

    def on_train_epoch_end(self) -> None:
        """The round's row goes to the loggers as it is: self.log would cost more than a round of small clients."""
        for logger in self.trainer.loggers:
            logger.log_metrics(self.row, step=self.current_epoch + 1)

    def train_dataloader(self) -> DataLoader:
        return DataLoader([0])  # type: ignore[arg-type]  # one element: one training_step a round

    def val_dataloader(self) -> DataLoader:
        return DataLoader([0])  # type: ignore[arg-type]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["clients"] = client_tensors(self.bench, self.owner, self.trainer)
        checkpoint["federation"] = self.fingerprint()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        for name, value in self.fingerprint().items():
            found = checkpoint["federation"].get(name)
            check(found == value, f"ckpt_path: the checkpoint has {name}={found}, this run has {name}={value}")
        found, own = ("theta" if ema is None else "ema" for ema in (checkpoint["state_dict"].get("ema"), self.ema))
        check(found == own, f"ckpt_path: the checkpoint has evaluate={found}, this run has evaluate={own}")
        dtype = checkpoint["state_dict"]["theta"].dtype  # Lightning loads before it sets the precision: lose no bit
        self.theta.data, self.buffers_ = self.theta.data.to(dtype), self.buffers_.to(dtype)
        self.group_models = self.group_models.to(dtype)
        self.c = self.c if self.c is None else self.c.to(dtype)
        self.ema = self.ema if self.ema is None else self.ema.to(dtype)
        self.resumed_clients = checkpoint["clients"]

    def fingerprint(self) -> dict[str, Any]:
        """What must agree for a checkpoint to be this run's."""
        parts = {"objective": self.objective, "correction": self.correction, "aggregation": self.aggregation}
        return {
            "seed": self.seed,
            "parameters": len(self.theta),
            "partition_sha256": self.federation.sha256,
            "client_state": "disk" if self.client_state == "disk" else "memory",
            **{name: type(part).__name__ for name, part in parts.items()},
        }
