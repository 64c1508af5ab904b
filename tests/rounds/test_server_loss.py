"""F(theta, v) of the server's model, the start of the pseudo-labels, and sums that count right."""

import json
from collections.abc import Callable

import pytest
import tiny
import torch
from quadratics import solve
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, softmax
from torch.nn.utils import vector_to_parameters

from fedshvr.algorithms.aggregation import Average, Normalized
from fedshvr.algorithms.corrections import ControlVariates, Correction
from fedshvr.algorithms.objectives.ramp import Ramp
from fedshvr.algorithms.objectives.soft_pseudo_label import SoftPseudoLabel
from fedshvr.data import sources
from fedshvr.rounds.federated import Federated

A, B, TAU = [1.0, 2.0, 0.5], [3.0, -1.0, 7.0], [2, 5, 9]


def test_on_quadratics_it_is_the_weighted_loss_at_the_new_model() -> None:
    """sum_k omega_k a_k (x - b_k)^2 / 2, while the mean along the drifting clients is lower."""
    module = solve(A, B, TAU, Correction(), Average(), 7, server_loss_every=7)
    x = module.theta.item()
    wanted = sum(t / 16 * a * (x - b) ** 2 / 2 for a, b, t in zip(A, B, TAU, strict=True))
    assert module.row["server_loss"] == pytest.approx(wanted, rel=1e-14)
    assert module.row["train_loss"] < wanted - 0.1


def objective_of_the_paper(module: Federated, net: nn.Module, alphas: tuple[float, float, float], v: Tensor) -> Tensor:
    """F with the network as it is, client by client; v by sample."""
    data, terms = tiny.images(), []
    for split, omega in zip(tiny.splits(), module.plan.omega, strict=True):
        labeled, unlabeled = torch.from_numpy(split.labeled), torch.from_numpy(split.unlabeled)
        log_f, v_k = torch.log_softmax(net(data.x[unlabeled]), -1), v[unlabeled]
        r1 = (v_k * (v_k * tiny.CLASSES).log()).sum(-1).mean()
        r2 = (log_f.exp() * (log_f.exp() * tiny.CLASSES).log()).sum(-1).mean()
        parts = (cross_entropy(net(data.x[labeled]), data.y[labeled]), -(v_k * log_f).sum(-1).mean(), r1, r2)
        terms.append(omega * sum(a * part for a, part in zip((1.0, *alphas), parts, strict=True)))
    return torch.stack(terms).sum()


@pytest.mark.parametrize("participation", [1.0, 0.67])
@pytest.mark.parametrize("relabel", ["round", "epoch", "step"])
def test_it_is_the_papers_objective_on_all_clean_data(relabel: str, participation: float) -> None:
    """alpha0 = .8, alpha1 = .5, alpha2 = .1; recomputed with an ordinary network."""
    objective = SoftPseudoLabel(0.8, 0.5, 0.1, Ramp(2), relabel=relabel, label_view="weak")
    module = tiny.fit(
        objective, ControlVariates(), Normalized(), rounds=4, server_loss_every=2, participation=participation
    )
    net = tiny.network()
    vector_to_parameters(module.theta.detach(), net.parameters())
    now = softmax(0.8 / 0.5 * torch.log_softmax(net(tiny.images().x), -1), -1)
    wanted = objective_of_the_paper(module, net, (0.8, 0.5, 0.1), module.bench.pool.v if relabel != "step" else now)
    assert module.row["server_loss"] == pytest.approx(wanted.item(), rel=1e-12)


def test_it_is_logged_in_the_first_round_and_every_nth(train: Callable) -> None:
    rows = train("rounds=5", "server_loss_every=2").rows
    assert [row["server_loss"] != "nan" for row in rows] == [True, True, False, True, False]
    assert "server_loss" not in train("rounds=1", "server_loss_every=0", folder="never").rows[0]


def test_measuring_it_changes_nothing_else(train: Callable) -> None:
    with_it, without = train("server_loss_every=1", folder="a"), train("server_loss_every=0", folder="b")
    assert with_it.theta == without.theta
    assert [{**row, "server_loss": ""} for row in with_it.timeless] == [
        {**row, "server_loss": ""} for row in without.timeless
    ]


def test_pseudo_labels_start_uniform() -> None:
    """g_1 = |grad F(theta_0, v_1)|^2 + sum_k omega_k |v_1 - 1/C|^2: the labels move from knowing nothing."""
    objective = SoftPseudoLabel(1.0, 0.75, 0.1, Ramp(0))
    module = tiny.fit(objective, rounds=1, optimality_gap=True)
    v, net = module.bench.pool.v, tiny.network()
    loss = objective_of_the_paper(module, net, (1.0, 0.0, 0.1), v)
    gradient = sum(g.square().sum().item() for g in torch.autograd.grad(loss, list(net.parameters())))
    moved = [(v[split.unlabeled] - 1 / tiny.CLASSES).square().sum() for split in tiny.splits()]
    movement = float(module.plan.omega @ torch.stack(moved))
    assert module.row["gap"] == pytest.approx(gradient + movement, rel=1e-12)


def test_counts_are_exact_at_any_precision(train: Callable) -> None:
    """bfloat16 counts to 256 and no further: the share of right labels is that of the labels themselves."""
    run = train("trainer.precision=bf16-true", "rounds=2", "algorithm.objective.label_view=clean")
    v = torch.load(run.folder / "checkpoints" / "last.ckpt", weights_only=True)["clients"]["v"]
    clients = json.loads((run.folder / "partition.json").read_text())["clients"]
    samples = torch.tensor([i for client in clients for i in client["unlabeled"]])
    y = sources.load("digits", "data").y
    right = int((v[samples].argmax(-1) == y[samples]).sum())
    assert float(run.rows[-1]["pseudo_label_acc"]) == right / len(samples)
