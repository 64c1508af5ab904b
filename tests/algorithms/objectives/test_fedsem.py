from functools import partial
from math import log

import pytest
import torch
from hand import CE, ZERO, column, line
from tiny import fit, hidden, network

from fedshvr.algorithms.aggregation import Average, Normalized
from fedshvr.algorithms.corrections import VRLSGD, ControlVariates, Correction, Proximal
from fedshvr.algorithms.objectives.batch import Batch
from fedshvr.algorithms.objectives.fedsem import FedSem
from fedshvr.algorithms.objectives.supervised import Supervised
from fedshvr.compute.vector import FlatNet
from fedshvr.errors import UserError


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
    made = partial(FedSem, 2, 1, label_view="clean")
    first = fit(made(), rounds=2)
    net = FlatNet(network(), torch.device("cpu"), torch.float64)
    net.theta.copy_(first.theta.detach())
    expected = net(first.bench.pool.x[hidden()]).argmax(-1)
    for rounds in (3, 5):
        assert torch.equal(fit(made(), rounds=rounds).bench.pool.v[hidden()].argmax(-1), expected)


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("correction", [Correction(), Proximal(0.5), ControlVariates(), VRLSGD()])
@pytest.mark.parametrize("aggregation", [Average(), Normalized(), Normalized("steps")])
def test_phase_1_with_labelled_steps_is_fedavg_bit_for_bit(
    engine: str, correction: Correction, aggregation: Average
) -> None:
    """... and what clients remember too: Delta_k is over the steps that were made."""
    fedavg = fit(Supervised(), correction, aggregation, rounds=2, engine=engine)
    fedsem = fit(FedSem(2, 1, "labeled"), correction, aggregation, rounds=2, engine=engine)
    assert torch.equal(fedsem.theta, fedavg.theta)
    for name, table in fedavg.bench.tables.items():
        assert torch.equal(fedsem.bench.tables[name].rows, table.rows)


def test_steps_of_the_phases() -> None:
    """(4, 6, 5) labelled by threes and (12, 18, 24) unlabelled by sixes: 1, 2, 1 and 2, 3, 4 steps a round."""
    for rounds, done in ((1, [1, 2, 1]), (2, [2, 4, 2]), (3, [4, 7, 6])):
        assert fit(FedSem(2, 1, "labeled"), rounds=rounds).server.done.tolist() == done
    assert fit(FedSem(2, 1), rounds=2).server.done.tolist() == [4, 6, 8]


def test_phase_2_makes_all_steps_of_a_normalised_round() -> None:
    """With a memory of Delta_k over the wrong steps, sum_k omega_k d_k would not stay 0."""
    one, many = (
        fit(FedSem(1, 1, "labeled"), ControlVariates(), Normalized(), rounds=4, engine=engine)
        for engine in ("sequential", "vectorized")
    )
    assert one.row["sum_omega_d"] < 1e-14
    torch.testing.assert_close(many.theta, one.theta, rtol=0, atol=1e-12)


def test_unknown_steps_are_refused() -> None:
    with pytest.raises(UserError, match="labeled_steps=few: must be one of all, labeled"):
        FedSem(1, 1, "few")
