"""Attackers: who they are, what they send, and that a robust aggregation does not follow them."""

from typing import Any

import pytest
import tiny
import torch
from methods import MADE
from test_messages import begun

from fedshvr.algorithms.aggregation import Average
from fedshvr.algorithms.corrections import ControlVariates
from fedshvr.algorithms.robust import GeometricMedian, Median, TrimmedMean
from fedshvr.errors import UserError
from fedshvr.federation.cohort import Cohorts
from fedshvr.rounds.federated import Federated
from fedshvr.rounds.messages import Update

ENGINES = ("sequential", "vectorized")


def test_the_attackers_follow_from_the_seed() -> None:
    liars = [Cohorts(seed=s, attack="scale", attackers=3).liars(10) for s in range(30)]
    assert {len(found) for found in liars} == {3}
    assert set().union(*liars) == set(range(10))
    assert liars == [Cohorts(seed=s, attack="garbage", attackers=3).liars(10) for s in range(30)]
    assert Cohorts(seed=0).liars(10) == set()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"attack": "evil"}, "attack=evil: must be one of none, garbage, sign_flip, scale"),
        ({"attack": "scale", "attackers": 10}, "attackers=10: must be above 0 and below partition.clients=10"),
    ],
)
def test_bad_values_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Cohorts(seed=0, **options).liars(10)


def updates(engine: str, **options: Any) -> dict[int, Update]:
    """What each client sends in the second round; the first had no attack."""
    module = begun(Average(), ControlVariates())
    module.cohorts = Cohorts(seed=0, **options)
    module.liars = module.cohorts.liars(3)
    order = sorted(range(3), key=lambda k: -module.server.tau[k])
    parts = (
        module.work(order, True).split() if engine == "vectorized" else [module.work([k], False).only() for k in order]
    )
    return {part.clients[0]: part for part in parts}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("attack", "factor"), [("sign_flip", -1.0), ("scale", 100.0)])
def test_the_move_and_the_change_of_the_control_variate_are_multiplied(attack: str, factor: float, engine: str) -> None:
    theta = begun(Average(), ControlVariates()).theta.detach()
    honest, sent = updates(engine), updates(engine, attack=attack, attackers=1)
    (liar,) = Cohorts(seed=0, attack=attack, attackers=1).liars(3)
    for k in range(3):
        f = factor if k == liar else 1.0
        torch.testing.assert_close(sent[k].theta - theta, f * (honest[k].theta - theta), rtol=0, atol=1e-12)
        torch.testing.assert_close(sent[k].change, f * honest[k].change, rtol=0, atol=1e-12)


def test_garbage_is_the_same_on_both_engines_and_has_unit_variance() -> None:
    options: dict[str, Any] = {"attack": "garbage", "attackers": 1}
    one, many = (updates(engine, **options) for engine in ENGINES)
    (liar,) = Cohorts(seed=0, **options).liars(3)
    theta = begun(Average(), ControlVariates()).theta.detach()
    noise = one[liar].theta[0] - theta
    torch.testing.assert_close(many[liar].theta, one[liar].theta, rtol=0, atol=1e-12)
    assert noise.std().item() == pytest.approx(1, abs=0.1)
    assert one[liar].change.std().item() == pytest.approx(1, abs=0.1)
    assert abs(float(torch.corrcoef(torch.stack([noise, one[liar].change[0]]))[0, 1])) < 0.15


def test_what_an_attacker_remembers_is_what_it_has_computed() -> None:
    honest, lying = (
        tiny.fit(MADE["teacher_client"](), ControlVariates(), rounds=1, **options)
        for options in ({}, {"attack": "garbage", "attackers": 1})
    )
    for name, table in honest.bench.tables.items():
        assert torch.equal(table.rows, lying.bench.tables[name].rows), name


def moved(aggregation: Average, **options: Any) -> torch.Tensor:
    module: Federated = tiny.fit(MADE["supervised"](), None, aggregation, rounds=1, **options)
    return module.theta.detach() - tiny.fit(MADE["supervised"](), rounds=0).theta.detach()


@pytest.mark.parametrize("attack", ["garbage", "scale"])
def test_robust_aggregations_do_not_follow_one_of_three(attack: str) -> None:
    honest = moved(Average()).norm()
    for aggregation in (Median(), TrimmedMean(0.34), GeometricMedian(16)):
        assert moved(aggregation, attack=attack, attackers=1).norm() < 3 * honest
    assert moved(Average(), attack=attack, attackers=1).norm() > 10 * honest
