"""Clients that have no labelled, or no unlabelled sample: which terms of the loss are theirs, and who allows it."""

import torch
from torch import Tensor

from fedshvr.algorithms.objectives.base import Objective
from fedshvr.algorithms.objectives.batch import Batch, Parts
from fedshvr.data.batches import HELD
from fedshvr.errors import check
from fedshvr.federation.plan import Plan
from fedshvr.rounds.options import Method


def own_terms(objective: Objective, loss: Tensor, parts: Parts, batch: Batch) -> tuple[Tensor, Parts]:
    """The loss without the terms for which the client has no sample; other samples of its own stood in for them there.

    A term that is left out has the weight 1 - 1 = 0 in the gradient too, exactly. So clients of every kind can be one
    stack.
    """
    if HELD[0] not in batch.noise:
        return loss, parts
    has_labels, has_others = (batch.noise[name] for name in HELD)
    loss = torch.where(has_labels, loss, objective.without_labels(loss, parts))
    held = {name: has_labels if name == "labeled" else has_others for name in parts}
    shown = {name: torch.where(held[name], part, torch.zeros_like(part)) for name, part in parts.items()}
    return torch.where(has_others, loss, parts["labeled"]), shown


def check_placement(method: Method, plan: Plan, at_server: int) -> None:
    """Refuse methods that need what clients lack, and labels at the server where they would be of no use."""
    objective, local = method.objective, method.local
    name = type(objective).__name__
    if objective.uses_unlabeled and plan.lacking:
        k, why = plan.lacking[0], objective.whole or ("" if "labeled" in objective.parts else "has no part `labeled`")
        lacks = "unlabelled" if plan.labeled.size[k] else "labelled"
        check(not why, f"algorithm/objective: {name} {why}, but client {k} has no {lacks} sample")
    check(
        objective.learns_unlabeled(0) or bool(plan.with_labels),
        f"algorithm/objective: {name} begins with the labels of the clients, but no client has one",
    )
    check(
        bool(at_server) or bool(plan.with_labels),
        "partition: nobody has a label; give some to clients or to the server (server_labels)",
    )
    check(
        local.sampling == "replacement" or not at_server or local.batch_labeled <= at_server,
        f"client.batch_labeled={local.batch_labeled}: client.sampling=shuffle needs at most server_labels={at_server}",
    )
    check(
        not (at_server and method.aggregation.groups),
        f"server_labels={at_server}: grouping starts clients from their groups' models, which the server's steps do "
        "not reach; use another algorithm/aggregation",
    )
