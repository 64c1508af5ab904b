"""The orchestrator: one training_step is one communication round."""

import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from fedshvr.compute.compiled import compile_loss
from fedshvr.compute.engine import Clients, pick_engine
from fedshvr.compute.vector import FlatNet, flatten, wide
from fedshvr.data.augment import Augment
from fedshvr.data.holdings import Federation
from fedshvr.errors import check
from fedshvr.federation.cohort import Cohorts, owners
from fedshvr.rounds.attack import lie
from fedshvr.rounds.bench import Place, set_up
from fedshvr.rounds.checkpoint import check_same, client_tensors, fingerprint, flat_names, module_names, restore_clients
from fedshvr.rounds.client import Client, after_round, together
from fedshvr.rounds.helpers import exchange
from fedshvr.rounds.labels import relabel
from fedshvr.rounds.measures import over_clients, sum_omega_d, weighted_gradient, weighted_loss
from fedshvr.rounds.messages import Labeled, Update
from fedshvr.rounds.options import Compute, Measures, Method, ServerRule
from fedshvr.rounds.reduce import over_ranks, stop_if_diverged, sum_over_ranks
from fedshvr.rounds.server import Server
from fedshvr.rounds.skipping import Guard
from fedshvr.rounds.terms import check_placement
from fedshvr.rounds.tutor import Tutor

CHUNK = 2048  # test images in one forward pass
CLIENT_ACCURACY = ("client_acc_mean", "client_acc_worst10", "client_acc_std")


class Federated(LightningModule):
    """Draws the cohort, lets the server broadcast and the engine run the clients, folds their Updates, and logs."""

    network: nn.Module

    def __init__(
        self,
        network: nn.Module,
        federation: Federation,
        method: Method,
        augments: dict[str, Augment],
        cohorts: Cohorts,
        server: ServerRule,
        compute: Compute,
        measures: Measures,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.federation, self.plan, self.method, self.augments = federation, federation.plan, method, augments
        self.cohorts, self.compute, self.measures = cohorts, compute, measures
        check_placement(method, self.plan, len(federation.server))
        check(
            not (measures.optimality_gap and server.on_client_error == "skip"),
            "optimality_gap=true: is the gradient of all clients; use on_client_error=fail",
        )
        self.class_ratios = federation.class_ratios() if measures.client_accuracy else None
        self.liars = cohorts.liars(self.plan.clients)
        self.clients = [Client([k], [float(omega)]) for k, omega in enumerate(self.plan.omega)]
        network = method.objective.wrap(network)
        self.__dict__["network"] = network  # borrowed by the clients; theta is the only registered parameter
        theta = flatten(list(network.parameters()))
        buffers = flatten([b for b in network.buffers() if b.is_floating_point()])
        self.server = Server(theta, buffers, method, self.plan, server, cohorts)
        self.row: dict[str, float] = {}  # the metrics of the round
        self.state_folder: Path | None = None  # where client_state=disk puts its files
        self.resumed_clients: dict[str, Tensor] | None = None  # from a checkpoint, until the tables are there

    @property
    def theta(self) -> nn.Parameter:
        return self.server.theta

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.server.rule.optimizer([self.theta])

    def on_fit_start(self) -> None:
        """Device and precision are settled: lay out the network, the data and this rank's client tables."""
        device, dtype, ranks = self.theta.device, self.theta.dtype, self.trainer.world_size
        self.server.done = self.server.done.cpu()  # the host decides by it: it must not have to wait for the device
        self.owner = owners(self.plan.tau, ranks)
        self.own = [k for k, rank in enumerate(self.owner) if rank == self.global_rank]
        check(bool(self.own), f"trainer.devices: {ranks} processes for {self.plan.clients} clients: too many")
        net = FlatNet(self.network, device, dtype)
        place = Place(device, dtype, self.own, self.compute.client_state, self.state_folder)
        local_buffers = self.server.rule.buffers == "local"
        parts = (self.federation, self.method, self.augments, self.cohorts.seed)
        self.bench = set_up(net, *parts, place, local_buffers)
        sets = ((self.federation.x_test, self.federation.y_test), self.federation.validation_set)
        self.test_set, self.val_set = ((x.to(device, dtype), y.to(device)) for x, y in sets)
        compile_with = self.compute.compile
        engine = "sequential" if compile_with else self.compute.engine
        self.run_clients = pick_engine(engine, net, self.cohorts.size(len(self.own)))
        if compile_with:
            compile_loss(self.method.objective, compile_with, device)
        samples, epochs = self.federation.server, self.server.rule.server_epochs
        self.tutor = Tutor(self.bench, samples, epochs) if len(samples) else None
        self.guard = Guard(self.bench, self.server) if self.server.rule.on_client_error == "skip" else None
        if self.resumed_clients is not None:
            restore_clients(self.bench, self.resumed_clients)
            self.resumed_clients = None

    # ---- one round ---------------------------------------------------------------------------------------------------

    def cohort(self, round: int) -> list[int]:
        """The clients of this round, the same on every rank."""
        return self.cohorts.draw(self.server.able(round), round)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        started, round, server, objective = time.perf_counter(), self.current_epoch, self.server, self.method.objective
        cohort = self.cohort(round)
        own = [k for k in cohort if self.owner[k] == self.global_rank]
        server.begin(round, cohort)
        if self.guard:
            self.guard.begin()
        if objective.exchanges(round):
            exchange(self.bench, server, self.owner, self.trainer)
        labeled = self._label(own) if objective.pseudo_labels and objective.labels_now else []
        gradient = self.theta.new_empty(0)
        if self.measures.optimality_gap:
            gradient = weighted_gradient(self.bench, server.broadcast, own, server.weight)
        row = self.theta.numel() * self.theta.element_size()
        work = partial(self.guard.work, self.work) if self.guard else self.work
        for update in self.run_clients(work, Clients(own, server.tau, row)):
            if update.clients:
                server.fold(update)
        for said in labeled:
            if not self.guard or said.client not in self.guard.bad:
                server.fold_labels(said)
        sum_over_ranks([*server.sums(), gradient], self.trainer)
        sent = server.close(self.optimizers().step)  # type: ignore[union-attr]
        if self.method.correction.needs_global_move:
            took_part = [k for k in own if k in server.weight]
            after_round(self.bench, took_part, server.tau, sent - self.theta.detach())
        learned = self.tutor.teach(server, self.trainer) if self.tutor else None
        server.average_theta()
        self._log_round(gradient, learned, started)

    def _to_label(self, own: list[int]) -> list[int]:
        """Of this rank's clients those that make pseudo-labels now; `own` are at work."""
        samples = self.plan.unlabeled.size.tolist()
        return [k for k in (self.own if self.method.objective.label_everyone else own) if samples[k]]

    def _label(self, own: list[int]) -> list[Labeled]:
        """New pseudo-labels; those at work get one Broadcast for both."""
        at_work, label = set(own), self.guard.relabel if self.guard else partial(relabel, self.bench)
        said: list[Labeled | None] = []
        for k in self._to_label(own):
            send = self.server.broadcast if k in at_work else self.server.send
            said.append(label(send([k])))
        return [labeled for labeled in said if labeled]

    def work(self, clients: list[int], stacked: bool) -> Update:
        """One client's round, or that of a stack of them: a Broadcast goes there and an Update comes back."""
        client = together([self.clients[k] for k in clients]) if stacked else self.clients[clients[0]]
        broadcast = self.server.send(clients)
        update = client.work(self.bench, broadcast, stacked)
        if self.liars:
            lie(update, broadcast, self.cohorts.attack, self.liars, self.cohorts.seed)
        return update

    def _server_loss(self) -> Tensor:
        """F(theta^t, v^t) of the new model on all clients' clean data."""
        if self.guard:
            return self.guard.server_loss(self.server.broadcast, self.own, self.plan.omega, self.trainer)
        return over_ranks(weighted_loss(self.bench, self.server.broadcast, self.own, self.plan.omega), self.trainer)

    def _log_round(self, gradient: Tensor, learned: Tensor | None, started: float) -> None:
        """Everything that is logged comes from the device in one tensor: nothing else of the round is read."""
        server, every, objective = self.server, self.measures.server_loss_every, self.method.objective
        extra = {"sum_omega_d": sum_omega_d(self.bench, server.c, self.trainer), "sound": server.sound}
        if learned is not None:
            extra["train_server"] = learned
        if self.measures.optimality_gap:
            extra["gap"] = gradient.to(server.means.dtype).square().sum() + server.labels[3]
        if every and (server.round == 0 or (server.round + 1) % every == 0):
            extra["server_loss"] = self._server_loss()
        logged = [server.means, server.labels, server.traffic]
        logged.append(torch.stack([value.to(server.means) for value in extra.values()]))
        read = torch.cat(logged).cpu().split([len(t) for t in logged])
        (loss, *parts, drift), (correct, count, label_cost, _), (up, down), more = (t.tolist() for t in read)
        measured = dict(zip(extra, more, strict=True))
        means = [measured.get("train_server", 0.0), *([loss, *parts, drift] if server.clients else [])]
        sound = measured.pop("sound") == 1
        stop_if_diverged(means, sound, server.made, server.round, self.method.local.eta)
        self.row = {
            "round": server.round + 1,
            "train_loss": loss + label_cost,
            **{f"train_{name}": value for name, value in zip(objective.parts, parts, strict=True)},
            "alpha0": objective.alpha0,
            "pseudo_label_acc": correct / count if count else float("nan"),
            "sum_omega_d": measured["sum_omega_d"],
            "drift": drift,
            "bytes_up": int(up),
            "bytes_down": int(down),
            "skipped": server.skipped,
            "seconds": time.perf_counter() - started,
            **({"train_label_cost": label_cost, "pseudo_labels": count} if objective.pseudo_labels else {}),
            **({"epsilon": server.release.epsilon(server.round)} if server.release else {}),
        } | measured

    # ---- evaluation, loaders, checkpoints ----------------------------------------------------------------------------

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Accuracy and loss of theta, or of its average with the current buffers, on the test and held-out samples."""
        net, server = self.bench.net, self.server
        net.load(self.theta.detach() if server.ema is None else server.ema, server.buffers_)
        net.module.eval()
        *values, right = self._evaluate(*self.test_set)
        values += self._evaluate(*self.val_set)[:-1] if len(self.val_set[0]) else []
        values += over_clients(self.class_ratios @ right) if self.class_ratios is not None else []
        row = dict(zip(self.evaluated(), values, strict=True))
        self.row |= row
        self.log_dict(row, batch_size=1, logger=False)  # for users' callbacks

    def evaluated(self) -> list[str]:
        """The names of what an evaluation measures."""
        sets = ("test", "val") if len(self.federation.held_out) else ("test",)
        names = [f"{name}_{what}" for name in sets for what in ("acc", "loss")]
        return [*names, *CLIENT_ACCURACY] if self.measures.client_accuracy else names

    def _evaluate(self, x: Tensor, y: Tensor) -> tuple[float, float, Tensor]:
        """Accuracy, mean loss and each class's part of the accuracy; the samples are shared out over the ranks."""
        classes = len(self.federation.images.classes)
        net, sums = self.bench.net, torch.zeros(2 + classes, dtype=wide(self.device), device=self.device)
        for index in torch.arange(self.global_rank, len(x), self.trainer.world_size).split(CHUNK):
            logits, target = net(x[index]), y[index]
            right = logits.argmax(-1) == target
            sums[0] += right.sum()
            sums[1] += cross_entropy(logits, target, reduction="sum")
            sums[2:].index_add_(0, target, right.to(sums.dtype))
        means = (over_ranks(sums, self.trainer) / len(x)).cpu()
        return means[0].item(), means[1].item(), means[2:].double()

    def on_train_epoch_end(self) -> None:
        """The round's row goes to the loggers as it is: self.log would cost more than a round of small clients."""
        for logger in self.trainer.loggers:
            logger.log_metrics(self.row, step=self.current_epoch + 1)

    def train_dataloader(self) -> DataLoader:
        return DataLoader([0])  # type: ignore[arg-type]  # one element: one training_step a round

    def val_dataloader(self) -> DataLoader:
        return DataLoader([0])  # type: ignore[arg-type]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["state_dict"] = flat_names(checkpoint["state_dict"])
        checkpoint["clients"] = client_tensors(self.bench, self.owner, self.trainer)
        checkpoint["left_out"] = (self.server.skips, self.server.lost)
        checkpoint["federation"] = fingerprint(self.server, self.federation, self.compute.client_state)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        check_same(checkpoint, fingerprint(self.server, self.federation, self.compute.client_state), self.server)
        self.server.cast(checkpoint["state_dict"]["theta"].dtype)  # Lightning sets the precision later: lose no bit
        checkpoint["state_dict"] = module_names(checkpoint["state_dict"])
        self.server.skips, self.server.lost = checkpoint.get("left_out", (self.server.skips, 0))  # none before 0.3.0
        self.resumed_clients = checkpoint["clients"]
