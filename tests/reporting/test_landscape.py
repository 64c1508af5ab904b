"""Fig. 5's surface against F computed the long way."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from torch.nn.functional import cross_entropy

from fedshvr.reporting.surface import directions, surface
from fedshvr.running.run import build


def test_directions_have_each_filters_norm_and_leave_biases_alone() -> None:
    shapes = [torch.Size((3, 2, 2)), torch.Size((3,)), torch.Size((2, 3))]
    theta = torch.randn(12 + 3 + 6)
    for d in directions(theta, shapes):
        torch.testing.assert_close(d[:12].view(3, 4).norm(dim=1), theta[:12].view(3, 4).norm(dim=1))
        torch.testing.assert_close(d[15:].view(2, 3).norm(dim=1), theta[15:].view(2, 3).norm(dim=1))
        assert not d[12:15].any()
    one, two = directions(theta, shapes)
    assert not torch.equal(one, two)


def test_the_centre_is_f_at_the_last_theta(train: Callable[..., Any]) -> None:
    folder: Path = train("algorithm.objective.alpha2=0.3", "ramp=none").folder
    beta, values = surface(folder, points=3, samples=10_000)
    assert beta.tolist() == [-1, 0, 1]

    cfg = OmegaConf.load(folder / "config.yaml")
    federation, module = build(cfg)  # type: ignore[arg-type]
    theta = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]["theta"]
    torch.nn.utils.vector_to_parameters(theta, module.network.parameters())
    x, y, plan = federation.images.x.float(), federation.y, federation.plan
    total = 0.0
    for k in range(plan.clients):
        f = module.network(x[plan.unlabeled[k]]).softmax(-1)
        power = f ** (1 / 0.75)
        v = power / power.sum(1, keepdim=True)  # Lemma 1
        kl = [(p * (10 * p).log()).sum(1).mean() for p in (v, f)]
        labeled = cross_entropy(module.network(x[plan.labeled[k]]), y[plan.labeled[k]])
        loss = labeled - (v * f.log()).sum(1).mean() + 0.75 * kl[0] + 0.3 * kl[1]
        total += plan.omega[k].item() * loss.item()
    assert abs(values[1, 1] - total) < 1e-5
    assert values[1, 1] < values[0, 0]
