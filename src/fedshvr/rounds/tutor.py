"""Labels at the server: supervised steps on its own samples, after the aggregation and before the next broadcast."""

from dataclasses import replace

import numpy as np
import torch
from lightning import Trainer
from torch import Tensor

from fedshvr.algorithms.aggregation import Average
from fedshvr.algorithms.corrections import Correction
from fedshvr.algorithms.objectives.base import Objective
from fedshvr.algorithms.objectives.batch import Batch, Network, Parts, State
from fedshvr.compute.streams import stream_seed
from fedshvr.data.batches import Batcher
from fedshvr.federation.partition import Split
from fedshvr.federation.plan import make_plan
from fedshvr.rounds.bench import Bench
from fedshvr.rounds.client import Client
from fedshvr.rounds.messages import Broadcast
from fedshvr.rounds.options import Method
from fedshvr.rounds.reduce import from_rank
from fedshvr.rounds.server import Server


class LabeledTerm(Objective):
    """The labelled term of an objective."""

    uses_unlabeled = False
    views = ()

    def __init__(self, objective: Objective) -> None:
        super().__init__()
        self.objective = objective

    def loss(self, net: Network, batch: Batch, state: State) -> tuple[Tensor, Parts]:
        return self.objective.labeled_loss(net, batch), {}


class Tutor:
    """The server as a client that has labelled samples alone: `epochs` passes of the local solver after each round."""

    def __init__(self, bench: Bench, samples: np.ndarray, epochs: float) -> None:
        local = replace(bench.method.local, epochs=epochs)
        plan = make_plan([Split(samples, samples[:0], ())], local, uses_unlabeled=False)
        method = Method(LabeledTerm(bench.method.objective), Correction(), Average(), local)
        batcher = Batcher(plan, local, method.objective, bench.batcher.augments, bench.batcher.dropout)
        seed = stream_seed(bench.seed, "server")
        self.bench = Bench(bench.net, bench.pool, batcher, method, {}, bench.samples, seed)

    def teach(self, server: Server, trainer: Trainer) -> Tensor:
        """Make the steps from the server's new model; returns their mean loss. The first process makes them for all."""
        theta = server.theta.detach()
        sizes = [len(theta), len(server.buffers_), 1]
        learned = theta.new_zeros(sum(sizes))
        if trainer.is_global_zero:
            tau, none = self.bench.batcher.plan.tau, torch.zeros(1, dtype=torch.long)
            broadcast = Broadcast(server.round, [0], tau, theta[None], server.buffers_, theta[:0], none)
            update = Client([0], [1.0]).work(self.bench, broadcast)
            learned = torch.cat([update.theta[0], update.buffers[0], update.metrics[0].to(theta.dtype)])
        learned = from_rank(learned, 0, trainer)
        sound = learned.isfinite().all()  # if not, the model stays and the round's check stops the run
        new, buffers, loss = learned.split(sizes)
        server.theta.data.copy_(torch.where(sound, new, theta))
        server.buffers_.copy_(torch.where(sound, buffers, server.buffers_))
        return torch.where(sound, loss[0], torch.nan)
