"""The loss around a trained model, from its run folder: F(theta + b1 d1 + b2 d2, v) on a grid."""

from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from omegaconf import OmegaConf
from torch import Tensor

from fedshvr.algorithms.objectives.batch import Batch
from fedshvr.compute.vector import FlatNet, split_like
from fedshvr.data.holdings import Federation
from fedshvr.rounds.federated import Federated
from fedshvr.running.moved import root_of_today
from fedshvr.running.run import build
from fedshvr.running.trust import PARTS, check_targets

DIRECTIONS_SEED = 5
MADE = ("data", "client", "algorithm", "augment", "augment_strong", "partition", "model", "server")  # by build


@torch.no_grad()
def surface(folder: Path, points: int, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Q on a grid over [-1, 1]^2, from the run's config.yaml and last checkpoint."""
    written = cast(dict[str, Any], OmegaConf.to_container(OmegaConf.load(folder / "config.yaml")))
    cfg = OmegaConf.create(root_of_today(written))
    for name in MADE:
        check_targets(f"{folder / 'config.yaml'}: {name}", OmegaConf.to_container(cfg[name]), PARTS)
    federation, module = build(cfg)
    state = torch.load(folder / "checkpoints" / "last.ckpt", map_location="cpu", weights_only=True)["state_dict"]
    net = FlatNet(module.network, torch.device("cpu"), torch.float32)
    theta, buffers = state["theta"].float(), state["buffers_"].float()
    net.load(theta, buffers)
    net.module.eval()
    module.method.objective.begin_round(cfg.rounds * cfg.client.epochs)
    batches, label_cost = client_batches(module, federation, net, samples)
    d1, d2 = directions(theta, net.shapes)
    beta = np.linspace(-1, 1, points)
    values = np.empty((points, points))
    for i, b2 in enumerate(beta):
        for j, b1 in enumerate(beta):
            net.theta.copy_(theta + b1 * d1 + b2 * d2)
            losses = [float(module.method.objective.loss(net, batch, {})[0]) for batch in batches]
            values[i, j] = np.dot(federation.plan.omega, losses) + label_cost
    return beta, values


def client_batches(module: Federated, federation: Federation, net: FlatNet, samples: int) -> tuple[list[Batch], float]:
    """Each client's first samples with v from Lemma 1 at theta, and the part of F that depends on v alone."""
    plan, x, objective = federation.plan, federation.images.x.float(), module.method.objective
    batches, cost = [], 0.0
    for k in range(plan.clients):
        labeled, unlabeled = plan.labeled[k][:samples], plan.unlabeled[k][:samples]
        v = objective.label(net(x[unlabeled]))
        cost += float(plan.omega[k] * objective.label_cost(v).mean())
        batches.append(Batch(x[labeled], federation.y[labeled], (x[unlabeled],) * len(objective.views), v))
    return batches, cost


def directions(theta: Tensor, shapes: list[torch.Size]) -> tuple[Tensor, Tensor]:
    """Two random directions; each output filter's part has that filter's norm, biases and batch norm stay."""
    generator = torch.Generator().manual_seed(DIRECTIONS_SEED)
    pair = []
    for _ in range(2):
        d = torch.randn(theta.shape, generator=generator)
        for part, weight in zip(split_like(d, shapes), split_like(theta, shapes), strict=True):
            if weight.dim() <= 1:
                part.zero_()
            else:
                flat_d, flat_w = part.flatten(1), weight.flatten(1)
                part.mul_((flat_w.norm(dim=1) / (flat_d.norm(dim=1) + 1e-10)).view(-1, *[1] * (part.dim() - 1)))
        pair.append(d)
    return pair[0], pair[1]
