"""The example of docs/extending.md, taken from the page and run."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ROOT, SMALL

import fedshvr.algorithms.objectives

BLOCK = re.compile(r"```(?:python|yaml)\n# (\S+)\n(.*?)```", re.DOTALL)


def test_the_example_runs(train: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = BLOCK.findall((ROOT / "docs" / "extending.md").read_text())
    assert sum(len(text.splitlines()) for _, text in files) <= 40
    for path, text in files:
        assert not (ROOT / path).exists()
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    more = str(tmp_path / "src" / "fedshvr" / "algorithms" / "objectives")
    monkeypatch.setattr(fedshvr.algorithms.objectives, "__path__", [*fedshvr.algorithms.objectives.__path__, more])
    search = f"hydra.searchpath=[file://{tmp_path / 'configs'}]"
    run = train("algorithm=fed_entropy", search, "ramp.epochs=1", *SMALL)
    assert run.summary["status"] == "finished"
    assert float(run.rows[-1]["train_unlabeled"]) > 0
    other = train("algorithm=fed_shvr", "algorithm/objective=entropy", search, *SMALL, folder="other")
    assert other.summary["status"] == "finished"
