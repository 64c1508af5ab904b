"""The examples of docs/extending.md, taken from the page and run."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ROOT, SMALL

import fedshvr.algorithms.objectives

BLOCK = re.compile(r"```(?:python|yaml)\n# (\S+)\n(.*?)```", re.DOTALL)


def files_of(*titles: str) -> dict[str, str]:
    """path -> text of the files in these chapters of the page."""
    chapters = re.split(r"\n\n# (?=[A-Z])", (ROOT / "docs" / "extending.md").read_text())
    chosen = [text for text in chapters if text.removeprefix("# ").startswith(titles)]
    assert len(chosen) == len(titles)
    return dict(BLOCK.findall("\n".join(chosen)))


def write(files: dict[str, str], folder: Path) -> str:
    """Writes the files and gives the option that lets Hydra find their configurations."""
    for path, text in files.items():
        assert not (ROOT / path).exists()
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return f"hydra.searchpath=[file://{folder / 'configs'}]"


def test_the_example_runs(train: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = files_of("Add a method")
    assert sum(len(text.splitlines()) for text in files.values()) <= 40
    search = write(files, tmp_path)
    more = str(tmp_path / "src" / "fedshvr" / "algorithms" / "objectives")
    monkeypatch.setattr(fedshvr.algorithms.objectives, "__path__", [*fedshvr.algorithms.objectives.__path__, more])
    run = train("algorithm=fed_entropy", search, "ramp.epochs=1", *SMALL)
    assert run.summary["status"] == "finished"
    assert float(run.rows[-1]["train_unlabeled"]) > 0
    other = train("algorithm=fed_shvr", "algorithm/objective=entropy", search, *SMALL, folder="other")
    assert other.summary["status"] == "finished"


def test_own_data_and_an_own_network_run(train: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search = write(files_of("Use your own data", "Use your own network"), tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    options = ["data=waves", "model=recurrent", "augment=none", "augment_strong=none", "partition.clients=4"]
    run = train(search, *options, "data.samples=240", "client.eta=0.5", "rounds=4")
    assert run.summary["status"] == "finished"
    assert run.summary["test_acc"] > 0.6
    given = {"_target_": "my_waves.waves", "name": "waves", "samples": 240, "noise": 0.1}
    assert run.summary["config"]["data"] == given
