from math import log

import pytest
import torch
from hand import CE, CE_SLOPE, ZERO, Line, column
from tiny import fit, images, network
from torch import Tensor

from fedshvr.algorithms.objectives.batch import Batch
from fedshvr.algorithms.objectives.fedmatch import FedMatch
from fedshvr.algorithms.objectives.halves import Halves
from fedshvr.compute.vector import FlatNet
from fedshvr.errors import UserError
from fedshvr.rounds.helpers import nearest

SIGMA, PSI = log(3) / 1.2, log(3) / 6  # psi = 0.2 sigma, sigma + psi = ln 3
OPTIONS = {
    "lambda_s": 10.0,
    "lambda_iccs": 0.5,
    "lambda_l2": 2.0,
    "lambda_l1": 0.25,
    "threshold": 0.7,
    "helpers": 2,
    "helpers_every": 10,
    "zero_below": 5e-6,
}


def fedmatch(**options: float) -> FedMatch:
    objective = FedMatch(**OPTIONS | options)
    objective.begin_round(0)
    return objective


def halves(total: float) -> Tensor:
    return torch.tensor([total, 0.0], dtype=torch.float64)


STATE = {"helper0": halves(-log(3)), "helper1": halves(-2 * log(3))}  # p(1) = (1, 3)/4 and (1, 9)/10
BATCH = Batch(column(1), ZERO, (column(1, 0), column(2, 5)))


def test_by_hand() -> None:
    """Of the weak views 1 and 0 only the first is sure (.75 >= .7); two helpers outvote the client: class 1.

    CE of its strong view 2 is -ln .1, slope .9 * 2. On view 0 all agree; the slope of KL(h || p) at 1 is p_0 - h_0.
    """
    objective = fedmatch()
    net = FlatNet(objective.wrap(Line()), torch.device("cpu"), torch.float64)
    assert net.theta.tolist() == pytest.approx([SIGMA, PSI], abs=1e-15)
    loss, parts = objective.loss(net, BATCH, STATE)
    divergence = [log(3) / 2, 0.1 * log(0.1 / 0.75) + 0.9 * log(0.9 / 0.25)]
    unlabeled = -log(0.1) / 2 + sum(divergence) / 4
    penalty = 2 * (SIGMA - PSI) ** 2 + 0.25 * PSI
    assert parts["unlabeled"].item() == pytest.approx(unlabeled, abs=1e-14)
    assert parts["penalty"].item() == pytest.approx(penalty, abs=1e-14)
    assert loss.item() == pytest.approx(CE + (0.5 * unlabeled + penalty) / 10, abs=1e-14)
    sigma_slope, psi_slope = torch.autograd.grad(loss, net.params)
    assert sigma_slope.item() == pytest.approx(CE_SLOPE, abs=1e-15)
    slope = 1.8 / 2 + (0.5 + 0.65) / 4
    assert psi_slope.item() == pytest.approx((0.5 * slope + 4 * (PSI - SIGMA) + 0.25) / 10, abs=1e-14)


@pytest.mark.parametrize("part", FedMatch.parts)
def test_each_term_trains_one_half(part: str) -> None:
    """The labelled term has a gradient in sigma alone, the others have one in psi alone."""
    objective = fedmatch()
    net = FlatNet(objective.wrap(network()), torch.device("cpu"), torch.float64)
    state = {name: torch.randn_like(net.theta) for name in objective.memory}
    data = images()
    batch = Batch(data.x[:4], data.y[:4], (data.x[4:9], data.x[9:14]))
    term = objective.loss(net, batch, state)[1][part]
    grads = torch.autograd.grad(term, net.params, materialize_grads=True)
    assert [bool(g.any()) for g in grads] == [part == "labeled", part != "labeled"] * 4


def test_the_start_is_that_of_every_other_method() -> None:
    x = images().x
    torch.testing.assert_close(fedmatch().wrap(network())(x), network()(x), rtol=0, atol=1e-12)


def test_small_entries_of_psi_do_not_count_in_evaluation() -> None:
    both = torch.ones(3), torch.tensor([0.1, -0.1, -0.2])
    module = Halves(zero_below=0.1)
    torch.testing.assert_close(module(*both), torch.tensor([1.1, 0.9, 0.8]))
    torch.testing.assert_close(module.eval()(*both), torch.tensor([1.0, 1.0, 0.8]))


def test_nearest_by_hand() -> None:
    """Client 3 has not trained yet: it neither helps nor is helped."""
    said = torch.tensor([[0.0, 1.0], [0.9, 0.1], [0.3, 0.7], [0.0, 1.0], [1.0, 0.0]])
    assert nearest(said, [0, 1, 2, 4], 2) == {0: [2, 1], 1: [4, 2], 2: [0, 1], 4: [1, 2]}
    assert nearest(said, [0, 4], 2) == {0: [4], 4: [0]}
    assert nearest(said, [0], 2) == {0: []}


def test_helpers_are_the_others_last_models_and_stay_until_the_next_exchange() -> None:
    """Exchanges come before rounds 2 and 5; before them, a helper is the model with which the client began."""
    options = {"lambda_l2": 0.5, "helpers_every": 3}
    start = fit(fedmatch(**options), rounds=1)
    first = start.bench.tables["helper0"].rows
    assert torch.equal(first, first[:1].expand(3, -1))
    models = {rounds: fit(fedmatch(**options), rounds=rounds).bench.tables["model"].rows for rounds in (1, 4)}
    for rounds, source in ((2, 1), (4, 1), (5, 4)):
        tables = fit(fedmatch(**options), rounds=rounds).bench.tables
        for k in range(3):
            others = {tuple(models[source][j].tolist()) for j in range(3) if j != k}
            assert {tuple(tables[f"helper{j}"].rows[k].tolist()) for j in range(2)} == others


def test_one_client_keeps_its_own_first_model() -> None:
    """With part of the clients in a round there may be nobody else yet: the slot stays as it was."""
    module = fit(fedmatch(lambda_l2=0.5), rounds=3, participation=0.34)
    trained = module.server.done.nonzero().flatten().tolist()
    assert all(module.bench.tables["helper1"].rows[k].any() for k in trained)


@pytest.mark.parametrize(
    ("option", "value", "valid"),
    [
        ("lambda_s", 0, "positive"),
        ("lambda_iccs", -1, "at least 0"),
        ("zero_below", -1, "at least 0"),
        ("helpers", 0, "at least 1"),
        ("helpers_every", 0, "at least 1"),
        ("threshold", 1, "at least 0 and below 1"),
    ],
)
def test_bad_options_are_refused(option: str, value: float, valid: str) -> None:
    with pytest.raises(UserError, match=rf"algorithm\.objective\.{option}={value}: must be {valid}"):
        fedmatch(**{option: value})
