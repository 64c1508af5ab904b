"""Runs condensed to text: what the archive keeps, how it grows, and that a report of it is the report of the runs."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from fabricate import make_run, make_sweep

from fedshvr.errors import UserError
from fedshvr.reporting.archive import add_archived, archive, read
from fedshvr.reporting.collect import Collection, collect, identity
from fedshvr.reporting.paper import ITEMS
from fedshvr.reporting.sweeps import find
from fedshvr.reporting.tables import csv_text


def archived(results: Path) -> Collection:
    return add_archived(Collection(), results)


@pytest.mark.parametrize("name", ["table1", "fig3a", "fig4", "fig6b_features", "theorem1"])
def test_an_item_of_archived_runs_is_that_of_the_run_folders(tmp_path: Path, name: str) -> None:
    make_sweep(tmp_path / "logs", name, seeds=2)
    runs = collect(tmp_path / "logs").runs
    archive(name, runs, tmp_path)
    a, b = (ITEMS[name](find(name, some)) for some in (runs, archived(tmp_path).runs))
    assert csv_text(a) == csv_text(b)
    assert (a.table, a.missing, len(a.runs)) == (b.table, b.missing, len(b.runs))
    assert (a.origin, b.origin) == ("your own runs", "committed results")


def test_a_run_keeps_its_configuration_curves_and_the_command_that_makes_it_again(tmp_path: Path) -> None:
    where = {"experiment": "mnist_noniid", "algorithm.objective.alpha2": 0.0, "client.momentum": 0.9}
    make_run(tmp_path / "logs" / "a", where, seed=3, sweep="table1")
    (run,) = collect(tmp_path / "logs").runs
    archive("table1", [run], tmp_path)
    (kept,) = read(tmp_path / "runs" / "table1_laptop.csv")
    assert identity(kept.config) == identity(run.config)
    for name in ("test_acc", "server_loss", "gap"):
        np.testing.assert_array_equal(kept.curves[name], run.curves[name])
    assert kept.summary["versions"] == run.summary["versions"]
    assert kept.summary["command"] == (
        "python src/train.py -m sweep=table1 scale=laptop experiment=mnist_noniid row=r1 client.momentum=0.9 seed=3"
    )


def test_it_grows_by_lines_and_what_is_there_stays(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "fig4_laptop.csv"
    first, again = (make_run(tmp_path / name, {"experiment": "mnist_noniid"}, 0, sweep="fig4") for name in ("a", "b/0"))
    archive("fig4", collect(tmp_path / "a").runs, tmp_path)
    before = path.read_text().splitlines()
    summary = json.loads((again / "summary.json").read_text())
    (again / "summary.json").write_text(json.dumps(summary | {"theta_sha256": "another machine's"}))
    make_run(tmp_path / "b" / "1", {"experiment": "mnist_noniid"}, 1, sweep="fig4")
    make_run(tmp_path / "b" / "2", {"experiment": "mnist_noniid", "algorithm": "fed_sh"}, 0, sweep="fig4")
    (line,) = archive("fig4", collect(tmp_path / "b").runs, tmp_path)
    assert line.endswith("1 runs were there, 2 are new")
    after = path.read_text().splitlines()
    assert [text for text in after if text in set(before)] == before
    assert len(after) == len(before) + 1 + 2 * 101  # one configuration, two runs of 100 rounds
    shutil.rmtree(first)
    archive("fig4", collect(tmp_path / "b").runs, tmp_path)
    assert path.read_text().splitlines() == after


def test_runs_of_another_sweep_are_left_to_it(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {}, seed=0, sweep="table1")
    make_run(tmp_path / "b", {}, seed=1)
    runs = collect(tmp_path).runs
    archive("fig2a", runs, tmp_path)
    assert [run.seed for run in read(tmp_path / "runs" / "fig2a_laptop.csv")] == [1]
    assert archive("fig6a", runs, tmp_path) == ["no finished run of sweep=fig6a to archive"]
    with pytest.raises(UserError, match="archive=fig9: must be one of attacks, fig2a,"):
        archive("fig9", runs, tmp_path)


def test_the_users_own_run_replaces_the_committed_one_and_its_line_is_marked(tmp_path: Path) -> None:
    make_sweep(tmp_path / "old", "fig2a", seeds=2)
    archive("fig2a", collect(tmp_path / "old").runs, tmp_path)
    own = make_run(tmp_path / "logs" / "a", {"algorithm": "fed_mt"}, seed=0)
    summary = json.loads((own / "summary.json").read_text())
    (own / "summary.json").write_text(json.dumps(summary | {"finished_at": "1999-01-01T00:00:00+0000"}))
    item = ITEMS["fig2a"](find("fig2a", add_archived(collect(tmp_path / "logs"), tmp_path).runs))
    assert [run.folder for run in item.runs if run.own] == [own]
    assert len(item.runs) == 8
    assert [row[0] for row in item.table.rows] == ["Fed-SHVR", "Fed-MT*", "Fed-Pseudo", "FedAvg"]
    assert item.origin == "of your own: 1 (lines with *), committed: 7"


def test_the_setting_is_part_of_what_a_run_is(tmp_path: Path) -> None:
    for name in ("text", "closest"):
        make_run(tmp_path / name, {"setting": name}, seed=0)
    archive("table1", collect(tmp_path).runs, tmp_path)
    found = find("table1", archived(tmp_path).runs)
    assert [group.setting for group in found.groups] == ["text", "closest"]
    names = [row[0] for row in ITEMS["table1"](found).table.rows]
    assert names[5:] == ["Fed-SHVR, α1 = 0.75, α2 = 0.1", "Fed-SHVR, α1 = 0.75, α2 = 0.1 (setting=closest)"]
    assert sum("setting=closest" in missing.command for missing in found.missing) == 12


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("# run ", "# rum ", "rum"),
        ('"client.eta": 0.01', '"client.eta": 0.02', "its config line was changed"),
        ('"rounds": 100, "seconds"', '"rounds": 99, "seconds"', "100 rows, but 99 rounds"),
        (",0.", ",x", "could not convert"),
    ],
)
def test_a_damaged_archive_is_named(tmp_path: Path, old: str, new: str, reason: str) -> None:
    make_run(tmp_path / "a", {}, seed=0, sweep="fig2a")
    archive("fig2a", collect(tmp_path).runs, tmp_path)
    path = tmp_path / "runs" / "fig2a_laptop.csv"
    path.write_text(path.read_text().replace(old, new, 1))
    found = archived(tmp_path)
    assert not found.runs
    ((folder, why),) = found.damaged
    assert folder == path
    assert reason in why
