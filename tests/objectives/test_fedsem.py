from math import log

import pytest
import torch
from hand import CE, ZERO, column, line
from tiny import fit, hidden, network

from fedshvr.objectives.base import Batch
from fedshvr.objectives.fedsem import FedSem
from fedshvr.vector import FlatNet


def test_phases() -> None:
    objective = FedSem(labeled_rounds=2, epochs_per_round=0.3)
    phases = []
    for index in range(5):
        objective.begin_round(index * 0.3)
        phases.append((objective.alpha0, objective.labels_now))
    assert phases == [(0, False), (0, False), (1, True), (1, False), (1, False)]


def test_by_hand() -> None:
    """Phase 1 is CE alone, whatever v is; in phase 2 the batch of 1 + 3 images has one mean."""
    net, objective = line(), FedSem(1, 1)
    v = torch.tensor([[1.0, 0], [1, 0], [0, 1]], dtype=torch.float64)
    batch = Batch(column(1), ZERO, (column(1, 2, 2),), v)
    objective.begin_round(0)
    loss, _ = objective.loss(net, batch._replace(v=v * torch.nan), {})
    assert loss.item() == pytest.approx(CE, abs=1e-15)
    objective.begin_round(1)
    loss, _ = objective.loss(net, batch, {})
    assert loss.item() == pytest.approx((CE - log(0.75) - log(0.9) - log(0.1)) / 4, abs=1e-14)


def test_the_labels_are_those_of_the_model_that_ends_phase_1_and_stay() -> None:
    first = fit(FedSem(2, 1), rounds=2)
    net = FlatNet(network(), torch.device("cpu"), torch.float64)
    net.theta.copy_(first.theta.detach())
    expected = net(first.bench.pool.x[hidden()]).argmax(-1)
    for rounds in (3, 5):
        assert torch.equal(fit(FedSem(2, 1), rounds=rounds).bench.pool.v[hidden()].argmax(-1), expected)
