"""The search by the T=1 column of Table I: its ranking and effects against numbers worked by hand."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fabricate import make_config, make_sweep, write_run
from omegaconf import OmegaConf

from fedshvr.reporting.build import report
from fedshvr.reporting.collect import collect
from fedshvr.reporting.identify import READING, Ranked, measured, ranking, search
from fedshvr.reporting.items import Item
from fedshvr.reporting.sweeps import CONFIGS, row

IID, NONIID = "mnist_iid", "mnist_noniid"
RELABEL, EXPONENT = "algorithm.objective.relabel", "algorithm.objective.exponent"
BASE = {"augment": "none", "client.rounding": "ceil", "rounds": 2, "server_loss_every": 0}


def run(logs: Path, place: tuple[str, str], accuracy: list[float], seed: int = 0, **options: Any) -> None:
    """A finished run of a row and an experiment with these accuracies; `options` has choices and flat keys."""
    own = {"experiment": place[1], "sweep": "identify", "scale": "paper"} | row(place[0]) | BASE | options
    config = make_config(own, seed, own.pop("scale"), own.pop("sweep"))
    t = np.arange(1.0, len(accuracy) + 1)
    columns = {"round": t, "test_acc": np.array(accuracy), "train_loss": t}
    write_run(logs / str(len(list(logs.iterdir()))), config, columns)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """FedAvg IID (58.5 in the paper) with two roundings, r1 Non-IID (74.4) with two ways to renew labels."""
    folder = tmp_path / "logs"
    folder.mkdir()
    floor = {"client.rounding": "floor", "sweep": "identify_fedavg"}
    run(folder, ("fedavg", IID), [0.50, 0.70], 0, **floor)
    run(folder, ("fedavg", IID), [0.60, 0.70], 1, **floor)
    run(folder, ("fedavg", IID), [0.585, 0.70])
    run(folder, ("r1", NONIID), [0.70, 0.80])
    run(folder, ("r1", NONIID), [0.75, 0.90], **{RELABEL: "step", "sweep": "identify_labels"})
    return folder


def items(logs: Path) -> dict[str, Item]:
    cfg = OmegaConf.load(CONFIGS / "report.yaml")
    own = {
        "logs": str(logs),
        "out": str(logs.parent / "out"),
        "results": str(logs.parent / "results"),
        "wandb": False,
        "items": ["identify", "identify_factors"],
    }
    return {item.key: item for item in report(OmegaConf.merge(cfg, own))}  # type: ignore[arg-type]


def ranked(logs: Path) -> list[Ranked]:
    return ranking(measured(search(collect(logs).runs, None)))


def test_settings_are_ranked_by_their_distance_to_the_paper(logs: Path) -> None:
    """FedAvg's run with ceil counts for both ways to renew labels, which it does not have."""
    got = [(dict(r.setting), len(r.cells), round(r.distance, 6)) for r in ranked(logs)]
    ceil, step, once = {"client.rounding": "ceil"}, {RELABEL: "step"}, {RELABEL: "round"}
    assert got == [
        (ceil | step | {READING: 1}, 2, 0.3),  # (0 + |75 - 74.4|) / 2
        (ceil | once | {READING: 1}, 2, 2.2),  # (0 + |70 - 74.4|) / 2
        (ceil | once | {READING: 2}, 2, 8.55),  # (|70 - 58.5| + |80 - 74.4|) / 2
        (ceil | step | {READING: 2}, 2, 13.55),  # (|70 - 58.5| + |90 - 74.4|) / 2
        ({"client.rounding": "floor", READING: 1}, 1, 3.5),  # the mean of the seeds is 55
        ({"client.rounding": "floor", READING: 2}, 1, 11.5),
    ]


def test_the_files_have_the_papers_row_the_best_ten_and_all_settings(logs: Path) -> None:
    item = items(logs)["identify"]
    assert item.table.columns == ["rank", "setting", "cells", "distance", "fedavg, IID", "r1, Non-IID"]
    assert item.table.rows[0] == ["", "the paper", "12", "0.00", "58.5", "74.4"]
    best = "T=1 is round=1, relabel=step, client.rounding=ceil"
    assert item.table.rows[1] == ["1", best, "2", "0.30", "58.5", "75.0"]
    with (logs.parent / "out" / "identify.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["distance"] for row in rows] == ["0.30", "2.20", "8.55", "13.55", "3.50", "11.50"]
    assert [row["client.rounding"] for row in rows] == ["ceil"] * 4 + ["floor"] * 2
    assert [row[RELABEL] for row in rows] == ["step", "round", "round", "step", "", ""]
    assert {len(item.runs), len(item.table.rows) - 2} == {5}


def test_a_factors_effect_is_over_otherwise_equal_settings(logs: Path) -> None:
    rows = {(r[0], r[1]): r[2:] for r in items(logs)["identify_factors"].table.rows}
    assert rows == {
        ("client.rounding", "ceil to floor"): ["1", "+3.50", "-3.5", "—"],
        (RELABEL, "round to step"): ["1", "-3.80", "—", "+5.0"],  # from 4.4 away to 0.6
        # FedAvg: +15 and +11.5, +8 and +11.5 away; r1: +10 and +15, +1.2 and +15 away
        (READING, "1 to 2"): ["4", "+8.92", "+13.2", "+12.5"],
    }


def test_hard_labels_have_no_exponent(logs: Path) -> None:
    """So a row without r1 counts for both."""
    run(logs, ("r1", NONIID), [0.744, 0.8], **{EXPONENT: "current"})
    run(logs, ("plain", NONIID), [0.347, 0.8])
    best = ranked(logs)[0]
    assert dict(best.setting)[EXPONENT] == "current"
    assert best.cells[("plain", NONIID)] == pytest.approx(34.7)
    assert (len(best.cells), best.distance) == (3, pytest.approx(0))


def test_jobs_that_have_not_run_are_counted_with_the_command_that_goes_on(logs: Path) -> None:
    missing = {m.what: m.command for m in items(logs)["identify"].missing}
    assert missing["identify: 2 of 12 jobs"] == "python src/train.py -m sweep=identify scale=paper"
    assert "identify_fedavg: 2 of 288 jobs" in missing
    assert len(missing) == 9


def test_other_runs_and_other_scales_do_not_count(logs: Path) -> None:
    before = [(r.setting, r.distance) for r in ranked(logs)]
    run(logs, ("fedavg", IID), [0.1, 0.1], sweep="table1")
    run(logs, ("fedavg", IID), [0.1, 0.1], scale="laptop")
    assert [(r.setting, r.distance) for r in ranked(logs)] == before


def test_an_option_of_the_command_line_is_a_factor_too(logs: Path) -> None:
    run(logs, ("fedavg", IID), [0.58, 0.7], **{"client.eta": 0.02})
    assert {dict(r.setting)["client.eta"] for r in ranked(logs)} == {0.01, 0.02}


def test_the_augmentation_and_the_ramp_are_one_factor_each(logs: Path) -> None:
    """Their values lie at several places of the configuration, and FedAvg, which has a ramp there, does not use it."""
    ramp = {"ramp.start": 0.1, "algorithm.objective.ramp.start": 0.1}
    run(logs, ("r1", NONIID), [0.744, 0.8], augment="translate2", **ramp)
    run(logs, ("r1", NONIID), [0.744, 0.8], augment="none", **ramp)
    names = {"client.rounding", RELABEL, READING, "augment", "augment of labelled", "algorithm.objective.ramp.start"}
    assert set().union(*(dict(r.setting) for r in ranked(logs))) == names
    best = ranked(logs)[0]
    assert (dict(best.setting)["algorithm.objective.ramp.start"], len(best.cells)) == (0.1, 2)


def test_who_augments_unlabelled_samples_alone_goes_with_a_fedavg_that_augments_nothing(logs: Path) -> None:
    view = "algorithm.objective.label_view"
    for name, accuracy in (("weak", 0.8), ("own", 0.744)):
        run(logs, ("r1", NONIID), [accuracy, 0.8], augment="translate2", **{"augment_labeled": False, view: name})
    best = ranked(logs)[0]
    assert {("augment", "translate2"), (view, "own")} <= best.setting
    assert best.cells == {("fedavg", IID): pytest.approx(58.5), ("r1", NONIID): pytest.approx(74.4)}
    assert not any(view in dict(r.setting) for r in ranked(logs) if ("augment", "none") in r.setting)


def test_a_whole_search_lacks_nothing(logs: Path) -> None:
    make_sweep(logs, "identify_full", "paper")
    assert not [m for m in items(logs)["identify"].missing if m.what.startswith("identify_full")]
