"""The sweeps' grids, and which runs fill their cells."""

import json
from pathlib import Path

import pytest
from fabricate import make_run, make_sweep
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from fedshvr.reporting.build import PAPER, SWEEPS
from fedshvr.reporting.collect import Run, collect
from fedshvr.reporting.paper import ITEMS
from fedshvr.reporting.sweeps import CONFIGS, find, grid, wanted

CELLS = {"table1": 12, "fig2a": 4, "fig2b": 4, "fig3a": 20, "fig3b": 20, "fig4": 3, "fig5": 2, "fig6a": 20, "fig6b": 4}

JOBS = {"identify": 12, "identify_fedavg": 288, "identify_full": 24, "identify_labels": 72, "identify_exponent": 16}
JOBS |= {"identify_network": 48, "identify_views": 48, "identify_split": 8, "identify_ramp": 24}


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_grid_with_five_seeds_but_for_fig3(name: str) -> None:
    plan = grid(name)
    assert plan.seeds == list(range(3 if name.startswith("fig3") else 5))
    assert len(plan.cells()) == (CELLS | {"theorem1": 2})[name]


def test_the_grids_with_features_are_those_of_fig6_with_three_seeds() -> None:
    for name in ("fig6a", "fig6b"):
        plan = grid(f"{name}_features")
        assert plan.seeds == [0, 1, 2]
        assert str(plan.cells()).replace("_features", "") == str(grid(name).cells())


@pytest.mark.parametrize("name", JOBS)
def test_the_searches_say_how_many_jobs_they_are(name: str) -> None:
    plan = grid(name)
    assert len(plan.cells()) * len(plan.seeds) == JOBS[name]
    assert f" {JOBS[name]} jobs" in (CONFIGS / "sweep" / f"{name}.yaml").read_text()
    assert plan.fixed["rounds"] == (2 if name in ("identify", "identify_fedavg", "identify_full") else 1)


@pytest.mark.parametrize("name", [*SWEEPS, *JOBS, "smoke"])
def test_a_sweep_composes_and_gives_what_its_cells_ask_for(name: str) -> None:
    plan = grid(name)
    cell = plan.cells()[-1]
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        overrides = [f"sweep={name}", "scale=laptop", *(f"{k}={v}" for k, v in cell.items())]
        cfg = compose("train", overrides=overrides, return_hydra_config=True)
    usual = {"mnist": 100, "cifar10": 200, "cifar10_features": 100, "digits": 40}[cfg.data.name]
    assert cfg.rounds == plan.fixed.get("rounds", usual)
    choices = cfg.hydra.runtime.choices
    for key, value in wanted(plan, cell).items():
        got = choices[key] if key in choices else eval(f"cfg.{key}", {"cfg": cfg})
        assert got == value, key


def found(logs: Path, name: str, scale: str | None = None) -> list[tuple[str, tuple[object, ...], list[int]]]:
    groups = find(name, collect(logs).runs, scale).groups
    return [(group.algorithm, group.variant, sorted(group.runs)) for group in groups]


def test_a_full_sweep_fills_every_cell(tmp_path: Path) -> None:
    make_sweep(tmp_path, "table1")
    result = find("table1", collect(tmp_path).runs)
    assert len(result.groups) == 12
    assert all(sorted(group.runs) == [0, 1, 2, 3, 4] for group in result.groups)
    assert not result.missing


def test_table1s_runs_fill_fig2a_only_where_they_are_the_same_runs(tmp_path: Path) -> None:
    make_sweep(tmp_path, "table1", seeds=1)
    assert found(tmp_path, "fig2a") == [("fed_shvr", (), [0]), ("fedavg", (), [0])]


def test_overrides_make_a_variant_of_the_sweep_they_were_given_to(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {}, seed=0, sweep="fig2a")
    make_run(tmp_path / "b", {"client.eta": 0.1}, seed=0, sweep="fig2a")
    make_run(tmp_path / "c", {"model.hidden": [16, 8]}, seed=0, sweep="fig2a")
    assert found(tmp_path, "fig2a") == [
        ("fed_shvr", (), [0]),
        ("fed_shvr", (("client.eta", 0.1),), [0]),
        ("fed_shvr", (("model.hidden", "[16, 8]"),), [0]),
    ]
    assert found(tmp_path, "table1") == [("fed_shvr", (), [0])]


def test_scales_are_never_mixed_and_the_largest_is_shown(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {}, seed=0, scale="smoke")
    make_run(tmp_path / "b", {}, seed=1, scale="laptop")
    assert found(tmp_path, "fig2a") == [("fed_shvr", (), [1])]
    assert found(tmp_path, "fig2a", "smoke") == [("fed_shvr", (), [0])]
    assert found(tmp_path, "fig2a", "paper") == []
    make_run(tmp_path / "c", {}, seed=2, scale="paper")
    assert found(tmp_path, "fig2a") == [("fed_shvr", (), [2])]


def test_of_two_runs_of_one_seed_the_later_counts(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {}, seed=0)
    late = make_run(tmp_path / "0", {}, seed=0)
    text = (late / "summary.json").read_text()
    (late / "summary.json").write_text(text.replace("2030-", "2031-"))
    runs: list[Run] = find("fig2a", collect(tmp_path).runs).runs
    assert [run.folder for run in runs] == [late]


def test_missing_cells_come_with_the_command_that_fills_them(tmp_path: Path) -> None:
    everything = find("fig2a", [], None).missing
    assert [(m.what, m.command) for m in everything] == [
        ("every cell", "python src/train.py -m sweep=fig2a scale=laptop")
    ]
    make_sweep(tmp_path, "fig4", seeds=5)
    for seed in (1, 3):
        (tmp_path / "multiruns" / "fig4" / f"1_{seed}" / "metrics.csv").unlink()
    (missing,) = find("fig4", collect(tmp_path).runs).missing
    assert missing.what == "algorithm=fed_sh: 3 of 5 seeds"
    assert missing.command == "python src/train.py -m sweep=fig4 scale=laptop algorithm=fed_sh seed=1,3"


def test_settings_are_never_mixed_and_named(tmp_path: Path) -> None:
    closest = {"setting": "closest"}
    make_run(tmp_path / "a", {}, seed=0, sweep="fig2a")
    make_run(tmp_path / "b", closest, seed=0, sweep="table1")
    make_run(tmp_path / "c", closest | {"client.eta": 0.1}, seed=0, sweep="fig2a")
    make_run(tmp_path / "d", closest | {"client.eta": 0.1}, seed=0, sweep="table1")  # of table1 alone
    groups = find("fig2a", collect(tmp_path).runs).groups
    assert [(g.setting, g.variant, list(g.runs)) for g in groups] == [
        ("text", (), [0]),
        ("closest", (), [0]),
        ("closest", (("client.eta", 0.1),), [0]),
    ]


def test_options_are_chosen_by_held_out_samples_and_the_test_set_is_not_shown(tmp_path: Path) -> None:
    make_sweep(tmp_path, "tune_mt")
    for path in tmp_path.rglob("summary.json"):
        summary = json.loads(path.read_text())
        objective = summary["config"]["algorithm"]["objective"]
        iid = summary["config"]["choices"]["experiment"] == "mnist_iid"
        summary["val_acc"] = 0.9 + 0.001 * objective["decay"] - 0.01 * (objective["weight"] == 100) + 0.004 * iid
        path.write_text(json.dumps(summary))
    found = find("tune_mt", collect(tmp_path).runs, "laptop")
    table = ITEMS["tune_mt"](found).table
    assert not found.missing
    assert table.columns == ["options", "IID, held out (%)", "Non-IID, held out (%)", "mean"]
    assert [row[0] for row in table.rows[::5]] == ["weight=1.0, decay=0.999", "weight=100.0, decay=0.99"]
    assert table.rows[0][1:] == ["90.5 (1)", "90.1 (1)", "90.30"]


def test_the_commands_name_the_settings_that_have_runs(tmp_path: Path) -> None:
    assert find("fig2a", [], "laptop").commands == ["python src/train.py -m sweep=fig2a scale=laptop"]
    closest = "python src/train.py -m sweep=fig2a scale=laptop setting=closest"
    make_run(tmp_path / "a", {"setting": "closest"}, seed=0, sweep="fig2a")
    result = find("fig2a", collect(tmp_path).runs)
    assert (result.settings, result.commands) == (["closest"], [closest])
    assert {m.setting for m in result.missing} == {"text", "closest"}
    assert all(("setting=closest" in m.command) == (m.setting == "closest") for m in result.missing)
    make_run(tmp_path / "b", {"client.eta": 0.1}, seed=0, sweep="fig2a")  # a variant is of no setting
    make_run(tmp_path / "c", {}, seed=0, sweep="fig2a")
    result = find("fig2a", collect(tmp_path).runs)
    assert result.settings == ["text", "closest"]
    assert result.commands == ["python src/train.py -m sweep=fig2a scale=laptop", closest]
