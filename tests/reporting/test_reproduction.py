"""docs/reproduction.md: every number comes from results/, the page is current, and a cell can be run again."""

import csv
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import fmean, pstdev

import numpy as np
import pytest
from fabricate import make_run, make_sweep
from omegaconf import OmegaConf

from fedshvr.places import TREE
from fedshvr.reporting.archive import archive, read
from fedshvr.reporting.collect import collect, identity
from fedshvr.reporting.quotes import overridden
from fedshvr.reporting.reproduction import PAGES, Results, anchor, filled, headline, item_block, overview, write_pages
from fedshvr.reporting.sweeps import CONFIGS, find, grid

LANDSCAPE = {"points": 25, "samples": 100}
BLOCK = re.compile(r"<!-- (\w+) -->\n(.*?)<!-- /\1 -->", re.DOTALL)


def blocks(text: str) -> dict[str, str]:
    return dict(BLOCK.findall(text))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone whose archive has made-up runs."""
    root = tmp_path_factory.mktemp("clone")
    for name in ("table1", "fig2b", "theorem1"):
        make_sweep(root / "logs", name, seeds=3)
        archive(name, collect(root / "logs").runs, root / "results")
    for name in ("digits", "label_view", "cost"):
        shutil.copy(TREE / "results" / f"{name}.csv", root / "results")
    (root / "docs" / "img").mkdir(parents=True)
    for page in PAGES:
        shutil.copy(TREE / page, root / page)
    cfg = OmegaConf.load(CONFIGS / "report.yaml")
    write_pages(OmegaConf.merge(cfg, {"results": str(root / "results")}), root)  # type: ignore[arg-type]
    return root


@pytest.mark.parametrize("page", PAGES)
def test_the_committed_page_is_current(page: str) -> None:
    text = (TREE / page).read_text()
    assert blocks(text)
    assert filled(text, Results(TREE / "results", LANDSCAPE)) == text, "run python src/report.py docs=true"


def test_runs_with_further_options_have_a_table_of_their_own(tmp_path: Path) -> None:
    results = Results(tmp_path / "results", LANDSCAPE)
    make_sweep(tmp_path / "plain", "table1", seeds=1)
    archive("table1", collect(tmp_path / "plain").runs, results.folder)
    assert overridden("table1", results) == "None so far."
    run = make_run(tmp_path / "more" / "run", {"algorithm.objective.alpha0": 3.0}, 0, sweep="table1")
    archive("table1", collect(tmp_path / "more").runs, results.folder)
    del results.runs
    head, _, *rows = overridden("table1", results).splitlines()[2:]
    accuracy = 100 * json.loads((run / "summary.json").read_text())["test_acc"]
    assert head.startswith("| method | IID T=1, paper | IID T=1, ours | IID T=100, paper | IID T=100, ours |")
    (row,) = rows
    assert row.startswith("| Fed-SHVR, α1 = 0.75, α2 = 0.1 (alpha0=3.0) | 83.6 | ")
    assert f" | 96.6 | {accuracy:.1f} (1) | 82.2 | — | 95.5 | — |" in row


def test_the_headline_says_that_its_setting_was_chosen_by_its_cells(made: Path, tmp_path: Path) -> None:
    make_run(tmp_path / "run", {"setting": "closest"}, 0, sweep="table1")
    archive("table1", collect(tmp_path).runs, tmp_path / "results")
    assert "setting=closest (what the text leaves open is chosen" in headline(Results(tmp_path / "results", LANDSCAPE))
    assert "closest" not in headline(Results(made / "results", LANDSCAPE))


def cells_of(results: Path) -> set[str]:
    """Mean ± std of every configuration at every round, computed from the files alone."""
    values: dict[tuple[str, str], list[float]] = {}
    for path in (results / "runs").glob("*.csv"):
        for row in csv.DictReader(line for line in path.open() if not line.startswith("#")):
            for name in ("test_acc", "server_loss"):
                for file in ("", path.stem) if row[name] else ():  # a cell's runs may be of one sweep or of several
                    key = (file + row["run"].split("-")[0] + name, row["round"])
                    values.setdefault(key, []).append(float(row[name]) * (100 if name == "test_acc" else 1))
        for run, facts in re.findall(r"^# run (\w+)-\d+ (.*)", path.read_text(), re.MULTILINE):
            if "val_acc" in (told := json.loads(facts)):
                values.setdefault((run + "val_acc", "last"), []).append(100 * told["val_acc"])
    pairs = [(fmean(v), pstdev(v)) for v in values.values()]
    return {f"{mean:.{digits}f} ± {std:.{digits}f}" for mean, std in pairs for digits in (0, 1, 4)}


def means_of_tables(results: Path) -> set[str]:
    return {cell for path in results.glob("*.csv") for cell in re.findall(r"[\d.]+ ± [\d.]+", path.read_text())}


@pytest.mark.parametrize("which", ["committed", "made up"])
def test_every_mean_on_the_page_is_that_of_runs_in_results(which: str, made: Path) -> None:
    root = made if which == "made up" else TREE
    known = cells_of(root / "results") | means_of_tables(root / "results")
    for page in PAGES:
        text = (root / page).read_text()
        printed = set(re.findall(r"\d[\d.]* ± [\d.]+", "".join(blocks(text).values())))
        rounds = {
            cell for cell in printed if re.search(re.escape(cell) + r" (against .*)?for \d+ %", text)
        }  # of Fig. 6b
        assert printed - rounds <= known
        assert not re.search(r"\d ± \d", BLOCK.sub("", text)), "a measured number is typed"
    assert which == "committed" or len(printed) > 10


def test_the_page_of_made_up_runs(made: Path) -> None:
    found = blocks((made / "docs" / "reproduction.md").read_text())
    rows = [line for line in found["overview"].splitlines() if "laptop" in line]
    assert [re.findall(r"\[(.*?)\]", row)[0] for row in rows] == [
        "Table I",
        "Fig. 2a",
        "Fig. 2b",
        "Fig. 3a",
        "Fig. 4",
        "Fig. 5",
        "Theorem 1",
    ]
    assert "| 3 |" in rows[0]
    assert "of 24 cells" in rows[0]
    assert "| Fed-SHVR ends above Fed-MT |" in found["fig2b"]
    assert "`python src/train.py -m sweep=fig2b scale=laptop`" in found["fig2b"]
    assert "seed=3,4" in found["fig2b"]  # what is still missing
    assert "not measured yet" in found["fig3b"]
    for name in re.findall(r"img/(\w+\.png)", found["fig2b"] + found["theorem1"]):
        assert (made / "docs" / "img" / name).stat().st_size > 10_000
    assert "Fed-SHVR, α1 = 0.75, α2 = 0.1" in blocks((made / "README.md").read_text())["headline"]


def pages_of(tmp_path: Path, name: str) -> Results:
    archive(name, collect(tmp_path / "logs").runs, tmp_path / "results")
    return Results(tmp_path / "results", LANDSCAPE)


def test_a_figure_shows_the_scales_at_which_something_can_be_compared(tmp_path: Path) -> None:
    """One line alone has nothing beside it; where that is all there is, it is shown."""
    make_run(tmp_path / "logs" / "a", {"algorithm": "fed_mt"}, seed=0, scale="paper", sweep="fig2a")
    assert "img/fig2a_paper.png" in item_block("fig2a", pages_of(tmp_path, "fig2a"))
    make_sweep(tmp_path / "logs", "fig2a", seeds=1)
    text = item_block("fig2a", pages_of(tmp_path, "fig2a"))
    assert re.findall(r"img/(\w+)\.png", text) == ["fig2a_laptop"]


def test_what_lacks_is_said_of_the_settings_that_are_shown(tmp_path: Path) -> None:
    make_run(tmp_path / "logs" / "a", {"setting": "closest"}, seed=0, sweep="fig2a")
    text = item_block("fig2a", pages_of(tmp_path, "fig2a"))
    assert "(4 cells lack seeds; this fills the first)" in text
    assert "1 seed, setting=closest: " in text
    assert all("setting=closest" in line for line in re.findall(r"`python src/train.py .*?`", text))


def test_one_setting_hides_and_lacks_nothing_of_another(tmp_path: Path) -> None:
    """The text's runs are whole; of setting=closest there is one, and Fig. 5's surface of it is not there."""
    for name in ("fig2a", "fig5"):
        make_sweep(tmp_path / "logs", name)
        where = {"setting": "closest", "experiment": grid(name).fixed["experiment"]}
        folder = make_run(tmp_path / "logs" / f"{name}_closest", where, seed=0, sweep=name)
        summary = json.loads((folder / "summary.json").read_text()) | {"theta_sha256": "f" * 64}
        (folder / "summary.json").write_text(json.dumps(summary))
        results = pages_of(tmp_path, name)
    assert len(find("fig5", collect(tmp_path / "logs").runs).groups) == 3
    (results.folder / "landscape").mkdir()
    surface = np.vstack([np.linspace(-1, 1, 25), np.ones((25, 25))])
    np.savetxt(results.folder / "landscape" / f"landscape_{'0' * 16}_25_100.csv", surface, delimiter=",")
    told = [row for row in overview(results).splitlines() if "laptop" in row]
    verdicts = {tuple(cells[1:4]): cells[5] for row in told if (cells := [c.strip() for c in row.split("|")])}
    figure = {name: f"[Fig. {name}](#fig-{name})" for name in ("2a", "5")}
    assert not any("lack" in verdicts[figure[name], "laptop", "text"] for name in figure)
    assert verdicts[figure["2a"], "laptop", "closest"] == "not measured yet (4 cells lack seeds)"
    assert verdicts[figure["5"], "laptop", "text"] == "not reproduced"  # as smooth is not smoother


def test_the_headline_shows_the_scale_with_most_cells(tmp_path: Path) -> None:
    for name in ("table1", "fig2b"):
        make_run(tmp_path / "logs" / name, {"experiment": "mnist_noniid"}, seed=0, scale="paper", sweep=name)
        assert find(name, collect(tmp_path / "logs").runs).groups
        pages_of(tmp_path, name)
    assert "fig2b_paper.png" in headline(Results(tmp_path / "results", LANDSCAPE))
    for name in ("table1", "fig2b"):
        make_sweep(tmp_path / "logs", name, seeds=1)
        results = pages_of(tmp_path, name)
    assert "scale laptop" in headline(results)
    assert "fig2b_laptop.png" in headline(results)


def test_the_links_of_the_overview_have_their_headings() -> None:
    text = (TREE / "docs" / "reproduction.md").read_text()
    headings = {anchor(line.lstrip("# ")) for line in text.splitlines() if line.startswith("#")}
    assert set(re.findall(r"\]\(#([\w-]+)\)", text)) <= headings


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("setting", ["text", "closest"])
def test_a_cell_run_again_by_its_command_gives_the_same_numbers(setting: str, tmp_path: Path) -> None:
    """FedAvg with 600 labels, IID, seed 0: seconds."""
    archived = read(TREE / "results" / "runs" / "table1_laptop.csv")
    wanted = {"algorithm": "fedavg", "experiment": "mnist_iid", "setting": setting}
    (old,) = (run for run in archived if run.seed == 0 and wanted.items() <= run.choices.items())
    _, script, *options = shlex.split(old.summary["command"])
    own = ["logger=csv", "trainer.devices=1", "threads=1", f"hydra.sweep.dir={tmp_path}"]
    subprocess.run([sys.executable, script, *options, *own], cwd=TREE, check=True, capture_output=True)
    (new,) = collect(tmp_path).runs
    assert identity(new.config) == identity(old.config)
    assert new.curves["test_acc"].tolist() == old.curves["test_acc"].tolist()
