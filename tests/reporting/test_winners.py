"""The paired test by hand, and the table that has it."""

from pathlib import Path

import pytest
from fabricate import make_run, make_sweep

from fedshvr.reporting.collect import collect
from fedshvr.reporting.items import final
from fedshvr.reporting.sweeps import find
from fedshvr.reporting.winners import WINNERS, holm, p_value


def test_the_paired_t_test_by_hand() -> None:
    # differences 1, 2, 3: t = 2 sqrt(3) with 2 degrees of freedom; then p = 1 - t / sqrt(2 + t^2)
    t = 2 * 3**0.5
    assert p_value([1.0, 2.0, 3.0], [0.0, 0.0, 0.0]) == pytest.approx(1 - t / (2 + t * t) ** 0.5, abs=1e-12)
    assert p_value([1.0, 1.0], [1.0, 1.0]) == 1
    assert p_value([2.0, 2.0], [1.0, 1.0]) == 0


def test_holms_correction_by_hand() -> None:
    p = {"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.5}
    # 4 x 0.01, 3 x 0.03, then 2 x 0.04 = 0.08 is lifted to 0.09, and 0.5
    assert holm(p) == pytest.approx({"a": 0.04, "c": 0.09, "b": 0.09, "d": 0.5})
    assert holm({"a": 0.9, "b": 0.8}) == {"b": 1.0, "a": 1.0}


def test_each_method_stands_beside_fed_shvr(tmp_path: Path) -> None:
    make_sweep(tmp_path, "who_wins_mnist", seeds=3)
    make_run(tmp_path / "unmatched", {"experiment": "mnist_noniid", "algorithm": "fedavg"}, seed=0)
    found = find("who_wins_mnist", collect(tmp_path).runs)
    item = WINNERS["who_wins_mnist"](found)
    table = dict(item.table.rows)
    assert len(table) == 16
    ends = {group.algorithm: final(group) for group in found.groups}
    differences = [ends["fedavg"][s] - ends["fed_shvr"][s] for s in range(3)]
    assert f", {sum(differences) / 3:+.1f} (p " in table["FedAvg"]
    assert "(p" not in table["Fed-SHVR"]
    assert all(run.config["client.steps"] == "step_matched" for run in item.runs)


def test_cifar_has_a_column_for_each_mismatch_ratio(tmp_path: Path) -> None:
    make_sweep(tmp_path, "who_wins_cifar", seeds=2)
    item = WINNERS["who_wins_cifar"](find("who_wins_cifar", collect(tmp_path).runs))
    assert item.table.columns == ["method", "mismatch 0", "mismatch 0.5", "mismatch 1"]
    assert "Not the paper's network" in item.note
