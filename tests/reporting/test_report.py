"""The report's numbers against the same numbers computed by hand from metrics.csv."""

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, pstdev

import numpy as np
import pytest
from conftest import ALGORITHMS
from fabricate import make_run, make_sweep
from omegaconf import OmegaConf

from fedshvr.errors import UserError
from fedshvr.reporting.build import SWEEPS, report
from fedshvr.reporting.items import Item
from fedshvr.reporting.paper import LEVELS, first_reach
from fedshvr.reporting.style import COLORS, NAMES, color, dash, marker
from fedshvr.reporting.sweeps import CONFIGS

ROOT = CONFIGS.parent
Report = Callable[..., dict[str, Item]]


@pytest.fixture
def make(tmp_path: Path) -> Report:
    def call(**options: object) -> dict[str, Item]:
        cfg = OmegaConf.load(CONFIGS / "report.yaml")
        folders = {"logs": str(tmp_path), "out": str(tmp_path / "out"), "results": str(tmp_path / "results")}
        cfg = OmegaConf.merge(cfg, folders | {"wandb": False}, options)
        return {item.key: item for item in report(cfg)}  # type: ignore[arg-type]

    return call


def column(folder: Path, name: str) -> list[float]:
    with (folder / "metrics.csv").open(newline="") as file:
        return [float(row[name]) for row in csv.DictReader(file)]


def by_hand(values: list[float], digits: int = 1) -> str:
    return f"{fmean(values):.{digits}f} ± {pstdev(values):.{digits}f} ({len(values)})"


def test_table1_has_the_papers_numbers_beside_ours(tmp_path: Path, make: Report) -> None:
    make_sweep(tmp_path, "table1")
    item = make(items=["table1"])["table1"]
    folders = [tmp_path / "multiruns" / "table1" / f"3_{seed}" for seed in range(5)]  # IID, row r1
    curves = [column(folder, "test_acc") for folder in folders]
    row = next(row for row in item.table.rows if row[0] == "Fed-SHVR, α1 = 0.75, α2 = 0")
    assert row[1:5] == ["83.5", by_hand([100 * c[0] for c in curves]), "92.7", by_hand([100 * c[-1] for c in curves])]
    assert [row[7] for row in item.table.rows] == ["87.5", "98.4", "92.4", "92.7", "95.4", "95.5"]
    for kind in ("csv", "md", "tex", "png", "pdf"):
        assert (tmp_path / "out" / f"table1.{kind}").stat().st_size > 100


def test_a_line_says_how_many_seeds_its_points_have_and_has_more_than_one(tmp_path: Path, make: Report) -> None:
    for unlabeled, seed in ((3000, 0), (3000, 1), (12000, 0)):
        make_run(tmp_path / f"{unlabeled} {seed}", {"partition.unlabeled": unlabeled}, seed)
    make_run(tmp_path / "closest", {"setting": "closest"}, 0)  # a run of Table I
    item = make(items=["fig3a"])["fig3a"]
    (line,) = item.panels[0].series
    assert (line.label, line.x, line.n) == ("Fed-SHVR", [3000.0, 12000.0], "1 to 2")
    assert [row[0] for row in item.table.rows] == ["Fed-SHVR", "Fed-SHVR (setting=closest)"]
    assert "Fed-SHVR" in (tmp_path / "out" / "index.html").read_text()
    assert '"n": "1 to 2"' in (tmp_path / "out" / "index.html").read_text()


def test_curves_and_their_band_equal_the_files(tmp_path: Path, make: Report) -> None:
    make_sweep(tmp_path, "fig4", seeds=3)
    item = make(items=["fig4"])["fig4"]
    folders = [tmp_path / "multiruns" / "fig4" / f"1_{seed}" for seed in range(3)]  # fed_sh
    loss = np.array([column(folder, "server_loss") for folder in folders])
    accuracy = 100 * np.array([column(folder, "test_acc") for folder in folders])
    a, b = (next(s for s in panel.series if s.algorithm == "fed_sh") for panel in item.panels)
    np.testing.assert_allclose(a.mean, loss[:, [0, *range(4, 100, 5)]].sum(0) / 3, rtol=1e-12)
    np.testing.assert_allclose(b.mean, np.sqrt(((accuracy - accuracy.mean(0)) ** 2).sum(0) / 3), rtol=1e-12)
    assert a.x == [1, *range(5, 101, 5)]  # it is not measured every round
    rows = list(csv.DictReader((tmp_path / "out" / "fig4.csv").open()))
    row = next(r for r in rows if (r["panel"], r["series"], r["x"]) == ("Fig. 4a: training loss", "Fed-SH", "10"))
    assert [float(row[f"seed {s}"]) for s in range(3)] == loss[:, 9].tolist()
    assert row["seeds"] == "3"


def test_accuracy_against_a_setting(tmp_path: Path, make: Report) -> None:
    for name in ("cifar_mismatch0", "cifar_mismatch1"):
        for seed in (0, 1):
            make_run(tmp_path / f"{name}{seed}", {"experiment": name}, seed)
    item = make(items=["fig6a"])["fig6a"]
    (series,) = item.panels[0].series
    assert series.x == [0.0, 1.0]
    last = [100 * column(tmp_path / f"cifar_mismatch1{seed}", "test_acc")[-1] for seed in (0, 1)]
    assert series.mean[1] == pytest.approx(fmean(last))
    assert item.table.rows[0][2] == by_hand(last)


def test_features_and_cnn13_never_share_a_cell(tmp_path: Path, make: Report) -> None:
    for name in ("cifar_mismatch05", "cifar_features_mismatch05"):
        make_run(tmp_path / name, {"experiment": name}, seed=0)
    items = make(items=["fig6a", "fig6b", "fig6a_features", "fig6b_features"])
    shown = {key: [run.folder.name for run in item.runs] for key, item in items.items()}
    assert shown == {
        "fig6a": ["cifar_mismatch05"],
        "fig6b": ["cifar_mismatch05"],
        "fig6a_features": ["cifar_features_mismatch05"],
        "fig6b_features": ["cifar_features_mismatch05"],
    }
    assert all("fixed features" in items[key].title for key in ("fig6a_features", "fig6b_features"))
    assert "Not the paper's network" in items["fig6b_features"].note


def test_rounds_to_reach_an_accuracy() -> None:
    reached = dict(zip(LEVELS, first_reach(np.array([0.1, 0.24, 0.2, 0.41])).tolist(), strict=True))
    assert [reached[level] for level in (20, 24, 28, 40)] == [2, 2, 4, 4]
    assert np.isnan(reached[44])


def test_theorem1_has_the_least_gap_so_far_and_the_line(tmp_path: Path, make: Report) -> None:
    make_sweep(tmp_path, "theorem1", seeds=2)
    item = make(items=["theorem1"])["theorem1"]
    gap, least = item.panels
    assert [s.label for s in gap.series] == ["Fed-SHVR, IID", "Fed-SHVR, Non-IID"]
    own = column(tmp_path / "multiruns" / "theorem1" / "0_1", "gap")
    assert least.series[0].seeds[1] == [min(own[: t + 1]) for t in range(len(own))]
    assert gap.guide is not None
    _, x, y = gap.guide
    assert y[0] / y[99] == pytest.approx((x[99] / x[0]) ** 0.5)


def test_other_runs_are_grouped_by_what_they_vary(tmp_path: Path, make: Report) -> None:
    for seed in (0, 1):
        make_run(tmp_path / f"a{seed}", {"experiment": "digits"}, seed)
        make_run(tmp_path / f"b{seed}", {"experiment": "digits", "client.eta": 0.2}, seed)
    item = make(items=["runs_digits"])["runs_digits"]
    last = {k: [100 * column(tmp_path / f"{k}{seed}", "test_acc")[-1] for seed in (0, 1)] for k in "ab"}
    assert [row[0::2] for row in item.table.rows] == [
        ["Fed-SHVR", by_hand(last["a"])],
        ["Fed-SHVR (client.eta=0.2)", by_hand(last["b"])],
    ]


def test_what_runs_sent_and_measured_over_clients_has_columns(tmp_path: Path, make: Report) -> None:
    told = {"client_acc_worst10": 0.5, "bytes_up": 3_000_000, "bytes_down": 1_250_000}
    for seed in (0, 1):
        folder = make_run(tmp_path / f"a{seed}", {"experiment": "digits"}, seed)
        make_run(tmp_path / f"b{seed}", {"experiment": "digits", "client.eta": 0.2}, seed)
        path = folder / "summary.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | told | {"client_acc_worst10": 0.5 + 0.1 * seed}))
    table = make(items=["runs_digits"])["runs_digits"].table
    assert table.columns[4:] == ["worst tenth of clients (%)", "MB up", "MB down"]
    assert [row[4:] for row in table.rows] == [["55.0 ± 5.0 (2)", "3.00 ± 0.00 (2)", "1.25 ± 0.00 (2)"], ["—"] * 3]


def test_empty_logs_say_what_to_run_first(make: Report, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    items = make()
    assert tuple(items) == (*SWEEPS, "attacks", "identify", "identify_factors")
    assert "python src/train.py -m sweep=smoke" in capsys.readouterr().out
    assert "python src/train.py -m sweep=smoke" in (tmp_path / "out" / "index.html").read_text()
    assert "| — |" in (tmp_path / "out" / "table1.md").read_text()  # missing, not invented
    assert not (tmp_path / "out" / "fig2a.png").exists()


def test_a_damaged_run_is_named_on_the_page_and_on_the_terminal(
    tmp_path: Path, make: Report, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "good", {}, seed=0)
    (make_run(tmp_path / "torn", {}, seed=1) / "metrics.csv").write_text("round,test_acc,train_loss\n1,0.")
    item = make(items=["fig2a"])["fig2a"]
    assert list(item.panels[0].series[0].seeds) == [0]
    for text in (capsys.readouterr().out, (tmp_path / "out" / "index.html").read_text()):
        assert str(tmp_path / "torn") in text


def test_bad_options_get_one_sentence(make: Report, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="items=fig9: must be all, or of table1"):
        make(items=["fig9"])
    with pytest.raises(UserError, match="scale=huge: must be null or one of paper, laptop, smoke"):
        make(scale="huge")
    with pytest.raises(UserError, match=r"there is no summary\.json"):
        make(compare=[str(tmp_path / "a"), str(tmp_path / "b")])


def test_compare_prints_what_differs(tmp_path: Path) -> None:
    a = make_run(tmp_path / "a", {}, seed=0)
    b = make_run(tmp_path / "b", {"client.eta": 0.1}, seed=1)
    command = [sys.executable, "src/report.py", f"compare=[{a},{b}]"]
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    lines = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line}
    assert lines["client.eta"] == ["0.01", "0.1"]
    assert lines["seed"] == ["0", "1"]
    assert "client.epochs" not in lines
    assert len(lines["test_acc"]) == 2
    assert "versions: the same" in out


def test_the_papers_algorithms_have_a_colour_and_marker_of_their_own() -> None:
    paper = list(NAMES)[:7]
    assert len({color(name) for name in paper}) == len(COLORS) == 7
    assert len({marker(name) for name in paper}) == 7
    assert len({(color(name), marker(name)) for name in NAMES}) == len(NAMES)
    assert color("some_new_method") in COLORS


def test_every_named_algorithm_has_a_name_and_a_look_of_its_own() -> None:
    assert sorted(NAMES) == ALGORITHMS
    assert len(set(NAMES.values())) == len({(color(name), dash(name)) for name in NAMES}) == len(NAMES)
