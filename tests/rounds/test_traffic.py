"""Bytes up and down a round: the tensors of the Updates and Broadcasts, to the byte, and their totals."""

from collections.abc import Callable

import pytest
import tiny
from conftest import SMALL
from methods import MADE

from fedshvr.algorithms.corrections import ControlVariates, Correction

NUMBER = 8  # bytes in float64; counts are as long


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize(("correction", "vectors"), [(Correction(), 1), (ControlVariates(), 2)])
def test_a_round_is_known_to_the_byte(correction: Correction, vectors: int, engine: str) -> None:
    """P numbers each way, twice that with control variates; the steps so far down; 4 metrics and 1 count up."""
    for participation, clients in ((1.0, 3), (0.67, 2)):
        module = tiny.fit(MADE["soft"](), correction, engine=engine, rounds=2, participation=participation)
        parameters = len(module.theta)
        assert module.row["bytes_down"] == clients * NUMBER * (vectors * parameters + 1)
        assert module.row["bytes_up"] == clients * NUMBER * (vectors * parameters + 4 + 1)


def test_batch_norm_statistics_travel_both_ways() -> None:
    module = tiny.fit(MADE["supervised"](), model=tiny.BatchNormed().double(), rounds=1)
    numbers = len(module.theta) + 12  # running mean and variance of 6 channels
    assert module.row["bytes_down"] == 3 * NUMBER * (numbers + 1)
    assert module.row["bytes_up"] == 3 * NUMBER * (numbers + 1 + 1)


def test_helpers_come_down() -> None:
    """FedMatch: before round 2 each of three clients is given the models of its two helpers."""
    first, second = (tiny.fit(MADE["fedmatch"](), rounds=t) for t in (1, 2))
    assert second.row["bytes_up"] == first.row["bytes_up"]
    assert second.row["bytes_down"] - first.row["bytes_down"] == 3 * 2 * NUMBER * len(first.theta)


def test_those_who_only_make_labels_are_sent_the_model() -> None:
    """FedSem labels everyone's samples once, after its first phase: two of three clients also work."""
    first, second = (tiny.fit(MADE["fedsem"](), rounds=t, participation=0.67) for t in (1, 2))
    assert first.row["bytes_down"] * 3 == second.row["bytes_down"] * 2
    assert first.row["bytes_up"] == second.row["bytes_up"]


def test_totals_are_in_the_summary_also_of_a_resumed_run(train: Callable) -> None:
    train(*SMALL, "rounds=2", "client_dropout=0.3")
    run = train(*SMALL, "rounds=4", "client_dropout=0.3", "ckpt_path=last")
    for name in ("bytes_up", "bytes_down"):
        assert run.summary[name] == sum(int(row[name]) for row in run.rows) > 0
