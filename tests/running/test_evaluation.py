"""The model of a run, tested: counts, tables by class and client, and the command as it is typed."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import SMALL, Run, run_here
from omegaconf import OmegaConf

from fedshvr import UserError, evaluate
from fedshvr.data import sources
from fedshvr.running.evaluation import Evaluation, client_scores, evaluate_command, percent

COUNTS = torch.tensor([[3, 1, 0], [0, 6, 0], [5, 0, 5]])  # accuracies 3/4, 1, 1/2


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_here(tmp_path_factory.mktemp("evaluation") / "run", *SMALL)


def test_by_hand() -> None:
    found = Evaluation("three", ("a", "b", "c"), COUNTS)
    assert found.accuracy == 14 / 20
    assert found.of_class == [0.75, 1.0, 0.5]
    assert str(found).splitlines() == [
        "accuracy 70.00 % of 20 samples of three",
        "",
        "class  samples  accuracy  precision",
        "a            4   75.00 %    37.50 %",
        "b            6  100.00 %    85.71 %",
        "c           10   50.00 %   100.00 %",
        "",
        "true \\ predicted",
        "   a  b  c",
        "a  3  1  0",
        "b  0  6  0",
        "c  5  0  5",
    ]


def test_a_client_is_scored_on_its_own_classes(tmp_path: Path) -> None:
    """Client 0 has one sample of a and three of c: 1/4 x 3/4 + 3/4 x 1/2; labels of a and b: 9 of 10 right."""
    clients = [
        {"labeled": [0], "unlabeled": [1, 2, 3], "labeled_classes": [0, 1]},
        {"labeled": [], "unlabeled": [4, 5], "labeled_classes": []},
    ]
    (tmp_path / "partition.json").write_text(json.dumps({"clients": clients}))
    y = torch.tensor([0, 2, 2, 2, 1, 2])
    first, second = client_scores(tmp_path, COUNTS, y)
    assert (first.samples, first.own, first.labeled) == (4, 0.5625, 0.9)
    assert (second.samples, second.own, percent(second.labeled)) == (2, 0.75, "-")
    assert [score.own for score in client_scores(tmp_path, COUNTS, None)] == [None, None]
    assert client_scores(tmp_path / "none", COUNTS, y) == []


def test_counts_are_those_of_the_network(run: Run) -> None:
    found, data = evaluate(run.folder), sources.load("digits", "")
    assert found.counts.sum(1).tolist() == data.y_test.bincount().tolist()
    assert len(found.clients) == 4
    weights = [client["omega"] for client in json.loads((run.folder / "partition.json").read_text())["clients"]]
    assert sum(score.samples for score in found.clients) == round(found.clients[0].samples / weights[0])


def test_other_scaling_of_the_same_images_is_undone(run: Run) -> None:
    again = evaluate(run.folder, {"name": "digits", "root": "", "scaling": "unit"})
    assert torch.equal(again.counts, evaluate(run.folder).counts)


def test_other_classes_are_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sources.CLASSES, "digits", tuple("abcdefghij"))
    with pytest.raises(UserError, match=r"data=digits: has the classes a, b, .*, but the model 0, 1, "):
        evaluate(run.folder)


def test_the_command_repeats_the_accuracy_of_two_processes(cli: Callable, tmp_path: Path) -> None:
    options = ["logger=csv", "rounds=2", "trainer=cpu", "trainer.devices=2", "hydra.run.dir=a", *SMALL]
    assert cli(*options).returncode == 0
    done: subprocess.CompletedProcess = cli("run=a", script="src/evaluate.py")
    assert done.returncode == 0, done.stderr
    accuracy = Run(tmp_path / "a").summary["test_acc"]
    assert done.stdout.startswith(f"accuracy {100 * accuracy:.2f} % of 360 samples of digits\n\nclass ")
    assert "The run itself found" not in done.stdout
    assert "own classes" in done.stdout


def test_a_run_must_be_named() -> None:
    with pytest.raises(UserError, match="run=null: must be the folder of a run that has finished or was stopped"):
        evaluate_command(OmegaConf.create({"run": None}))
