"""What a file of others names is not called unless it is a network or data of known packages."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import SMALL, Run, run_here

from fedshvr import UserError, evaluate, load
from fedshvr.running.trust import NETWORKS, check_targets


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_here(tmp_path_factory.mktemp("trust") / "run", *SMALL, "rounds=1")


@pytest.fixture
def altered(made: Run, tmp_path: Path) -> Callable[[Callable[[dict], None]], Path]:
    """The run folder with another model.json."""

    def alter(change: Callable[[dict], None]) -> Path:
        shutil.copytree(made.folder, tmp_path / "run")
        path = tmp_path / "run" / "model.json"
        card = json.loads(path.read_text())
        change(card)
        path.write_text(json.dumps(card))
        return tmp_path / "run"

    return alter


def system(command: str) -> dict:
    return {"_target_": "os.system", "command": command}


@pytest.mark.fault("a hostile or altered file")
def test_a_model_that_names_a_command_is_refused_and_the_command_not_run(altered: Callable, tmp_path: Path) -> None:
    folder = altered(lambda card: card.update(target="os.system", arguments={"command": f"touch {tmp_path}/mark"}))
    refusal = r"model.json names os.system, which is not of fedshvr.models, torchvision.models, timm: it is not called"
    with pytest.raises(UserError, match=refusal):
        load(folder)
    assert not (tmp_path / "mark").exists()


@pytest.mark.fault("a hostile or altered file")
def test_nor_deeper_in_the_arguments_or_in_the_data(altered: Callable, tmp_path: Path) -> None:
    def change(card: dict) -> None:
        card["data"]["config"]["root"] = [{"a": system(f"touch {tmp_path}/mark")}]

    folder = altered(change)
    load(folder)
    with pytest.raises(UserError, match=r"model.json names os.system, which is not of fedshvr.data.sources"):
        evaluate(folder)
    path = folder / "model.json"
    card = json.loads(path.read_text())
    card["arguments"]["hidden"] = [system(f"touch {tmp_path}/mark")]
    path.write_text(json.dumps(card))
    with pytest.raises(UserError, match=r"model.json names os.system"):
        load(folder)
    assert not (tmp_path / "mark").exists()


@pytest.mark.fault("a hostile or altered file")
@pytest.mark.parametrize("name", ["fedshvr.models.zoo.nn.Linear", "fedshvr.models.zoo.difflib.get_close_matches"])
def test_a_name_that_leads_out_of_a_package_again_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"names {name}, which is not of"):
        check_targets("model.json", {"_target_": name}, NETWORKS)


def test_with_trust_it_is_made(altered: Callable, made: Run) -> None:
    """A network of one's own, here torch's: its tensors do not fit, but it was called."""

    def change(card: dict) -> None:
        card["target"] = "test_trust.own"

    folder = altered(change)
    with pytest.raises(UserError, match=r"names test_trust.own"):
        load(folder)
    images = torch.zeros(2, 1, 8, 8)
    assert torch.equal(load(folder, trust=True)(images), load(made.folder)(images))
    assert evaluate(folder, trust=True).accuracy == made.summary["test_acc"]


def own(**options: object) -> torch.nn.Module:
    from fedshvr.models.mlp import MLP

    return MLP(**options)  # type: ignore[arg-type]
