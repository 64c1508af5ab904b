"""Names that come from data and run folders are text wherever they are shown."""

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import SMALL, run_here
from fabricate import make_run
from omegaconf import OmegaConf

from fedshvr import evaluate
from fedshvr.reporting.build import report
from fedshvr.reporting.sweeps import CONFIGS
from fedshvr.reporting.tables import latex_row

SCRIPT, PERCENT = "<script>alert(1)</script>", "a_b% $x^"


def made(folder: Path) -> Path:
    """The report's folder."""
    cfg = OmegaConf.load(CONFIGS / "report.yaml")
    options = {"logs": str(folder / "logs"), "out": str(folder / "out"), "results": str(folder), "wandb": False}
    report(OmegaConf.merge(cfg, options))  # type: ignore[arg-type]
    return folder / "out"


@pytest.mark.slow
def test_classes_and_data_with_signs_of_html_and_latex(tmp_path: Path) -> None:
    y = np.arange(60) % 2
    x = np.random.default_rng(0).random((60, 5)) + y[:, None]
    np.savez(tmp_path / "two.npz", x=x, y=y, x_test=x, y_test=y, classes=[SCRIPT, PERCENT])
    data = ["data=npz", f"data.name='{SCRIPT}{PERCENT}'", f"data.file={tmp_path}/two.npz", "augment=none"]
    small = [*SMALL, "partition.clients=2", "partition.unlabeled=20", "partition.labeled_per_client=10"]
    for seed in (0, 1):
        run = run_here(tmp_path / "logs" / f"{SCRIPT.replace('/', '')} {seed}", *data, *small, f"seed={seed}")
    assert (run.folder / "partition.png").is_file()
    assert evaluate(run.folder).classes == (SCRIPT, PERCENT)
    out = made(tmp_path)
    html = (out / "index.html").read_text()
    assert "<script>alert" not in html
    assert "&lt;script&gt;alert(1)" in html
    for path in out.glob("*.tex"):
        for line in path.read_text().splitlines():
            assert line.startswith("%") or "_b%" not in line


def test_an_experiment_of_any_name_is_a_file_in_the_report_and_no_markup(tmp_path: Path) -> None:
    run = make_run(tmp_path / "logs" / "a", {"experiment": "digits"}, seed=0)
    path = run / "summary.json"
    summary = json.loads(path.read_text())
    summary["config"]["choices"]["experiment"] = '../../"><img src=x>'
    path.write_text(json.dumps(summary))
    out = made(tmp_path)
    names = [file.name for file in out.glob("runs_*.csv")]
    assert len(names) == 1
    assert names[0].startswith("runs__img_src_x_")
    assert "<img src=x>" not in (out / "index.html").read_text()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["logs", "out"]


def test_a_cell_of_latex_is_text() -> None:
    row = latex_row(["a_b%", "<x>", r"\input{y}", "~^$#&"])
    assert row == r"a\_b\% & $<$x$>$ & $\backslash$input\{y\} & \~{}\^{}\$\#\& \\"
