"""The library as a notebook uses it: compose, run, load, read; no Hydra job, and nothing imported before it is used."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import QUICK, ROOT, SMALL, Run, run_here

import fedshvr

OPTIONS = [*QUICK, *SMALL, "rounds=2"]


def test_a_run_is_that_of_the_command_line(tmp_path: Path) -> None:
    cfg = fedshvr.compose([*OPTIONS, "algorithm=fedavg"])
    accuracy = fedshvr.run(cfg, tmp_path / "library")
    library, command = Run(tmp_path / "library"), run_here(tmp_path / "command", *OPTIONS, "algorithm=fedavg")
    assert accuracy == library.summary["test_acc"]
    assert library.theta == command.theta
    a, b = (run.summary["config"] for run in (library, command))
    assert a.pop("paths") != b.pop("paths")
    assert a == b
    assert a["choices"]["algorithm"] == "fedavg"


def test_a_composed_configuration_can_be_changed_and_run_twice(tmp_path: Path) -> None:
    cfg = fedshvr.compose(OPTIONS)
    cfg.rounds = 1
    for name in ("a", "b"):
        fedshvr.run(cfg, tmp_path / name)
    assert Run(tmp_path / "a").theta == Run(tmp_path / "b").theta
    assert Run(tmp_path / "a").summary["rounds"] == 1


def test_a_wrong_option_raises_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(fedshvr.UserError, match=r"^participation=2: must be "):
        fedshvr.run(fedshvr.compose([*OPTIONS, "participation=2"]), tmp_path)


def test_runs_are_read_as_dictionaries(tmp_path: Path) -> None:
    for algorithm in ("fedavg", "fed_shvr"):
        fedshvr.run(fedshvr.compose([*OPTIONS, f"algorithm={algorithm}"]), tmp_path / algorithm)
    runs = {run["algorithm"]: run for run in fedshvr.read_runs(tmp_path)}
    assert runs.keys() == {"fedavg", "fed_shvr"}
    one = runs["fedavg"]
    assert one["folder"] == str(tmp_path / "fedavg")
    assert [row["round"] for row in one["metrics"]] == [1.0, 2.0]
    assert one["metrics"][-1]["test_acc"] == one["test_acc"]
    assert one["status"] == "finished"
    assert fedshvr.read_runs(tmp_path / "none") == []


def test_partitions_are_functions_of_labels() -> None:
    splits = fedshvr.partition.iid([0, 1, 2] * 20, clients=2, labeled_per_client=3, seed=0)
    assert [len(split.labeled) for split in splits] == [3, 3]


def test_the_public_names_are_those_that_are_listed() -> None:
    assert all(getattr(fedshvr, name) for name in fedshvr.__all__)
    assert set(fedshvr.__all__) <= set(dir(fedshvr))
    with pytest.raises(AttributeError, match="no attribute 'train': it has UserError, compose, "):
        fedshvr.train  # noqa: B018


@pytest.mark.parametrize(
    ("code", "light"),
    [
        ("import fedshvr", ("torch", "hydra", "numpy", "lightning", "matplotlib", "wandb")),
        ("import fedshvr; fedshvr.compose()", ("torch", "lightning", "matplotlib", "wandb")),
        ("import fedshvr; fedshvr.load", ("lightning", "matplotlib", "wandb", "torchvision")),
    ],
)
def test_nothing_is_imported_before_it_is_used(code: str, light: tuple[str, ...]) -> None:
    check = f"{code}; import sys; print(*({set(light)!r} & set(sys.modules)))"
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", check], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_the_notebook_has_no_output_in_the_tree() -> None:
    import nbformat

    notebook = nbformat.read(ROOT / "notebooks" / "quickstart.ipynb", as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells)


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    notebook = nbformat.read(ROOT / "notebooks" / "quickstart.ipynb", as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 2
    text = "".join(output.get("text", "") for output in outputs)
    assert "accuracy" in text
