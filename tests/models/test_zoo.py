"""Networks of torchvision and timm: fitted to the data, refused where they cannot be, trained as any other."""

import sys
from collections.abc import Callable
from pathlib import Path

import pictures
import pytest
import tiny
import torch
from torch import nn
from torchvision import models

from fedshvr.algorithms.objectives.supervised import Supervised
from fedshvr.errors import UserError
from fedshvr.models.logits import check_logits
from fedshvr.models.zoo import timm, torchvision

PETS = ["data=image_folder", "partition.clients=2", "partition.labeled_per_client=6", "client.epochs=1"]
RESNET = ["model=torchvision", "model.name=resnet18", "model.small_stem=true", "algorithm=fedavg", "client.eta=0.02"]


@pytest.mark.parametrize(
    ("name", "shape", "options"),
    [
        ("resnet18", (1, 32, 32), None),
        ("densenet121", (1, 32, 32), None),
        ("squeezenet1_1", (2, 32, 32), None),
        ("mobilenet_v3_small", (3, 32, 32), None),
        ("googlenet", (1, 32, 32), None),
        ("squeezenet1_0", (1, 32, 32), {"dropout": 0.1}),
    ],
)
def test_channels_and_classes_are_those_of_the_data(name: str, shape: tuple[int, ...], options: dict | None) -> None:
    network = torchvision(name, shape, 5, options=options)
    check_logits(network, torch.zeros(2, *shape), 5)
    assert network.training
    assert network(torch.randn(4, *shape)).shape == (4, 5)  # one output, also in training


def test_the_small_stem_keeps_the_resolution() -> None:
    network = torchvision("resnet18", (1, 8, 8), 3, small_stem=True)
    seen: list[torch.Size] = []
    network.get_submodule("layer1").register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].shape))
    network(torch.zeros(2, 1, 8, 8))
    assert seen == [(2, 64, 8, 8)]


def test_the_head_of_trained_weights_is_never_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a file where torchvision keeps what it has fetched, with weights of 1000 classes that the test draws."""
    torch.manual_seed(0)
    trained = models.resnet18()
    url = models.ResNet18_Weights.DEFAULT.url
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    torch.save(trained.state_dict(), tmp_path / "hub" / "checkpoints" / url.rpartition("/")[2])
    for classes in (3, 1000):
        network = torchvision("resnet18", (3, 32, 32), classes, weights="DEFAULT")
        state, before = network.state_dict(), trained.state_dict()
        assert torch.equal(state["layer4.1.conv2.weight"], before["layer4.1.conv2.weight"])
        assert state["fc.weight"].shape == (classes, 512)
        assert not torch.equal(state["fc.weight"][:3], before["fc.weight"][:3])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"name": "resnet19"}, "model.name=resnet19: must be a classifier of torchvision.models, such as resnet1"),
        ({"name": "fasterrcnn_resnet50_fpn"}, "must be a classifier of torchvision.models, such as"),
        ({"input_shape": (12,)}, "model.name=resnet18: needs images, not samples of shape (12,)"),
        ({"weights": "BEST"}, "model.weights=BEST: must be null or one of IMAGENET1K_V1, DEFAULT"),
        ({"input_shape": (1, 8, 8), "weights": "DEFAULT"}, "need data.channels=3, these images have 1"),
        ({"name": "vgg11", "small_stem": True}, "model.small_stem=true: is for ResNets; must be false with"),
        ({"options": {"depth": 3}}, "model.name=resnet18: torchvision does not make it ("),
    ],
)
def test_what_cannot_be_made_is_refused(options: dict, sentence: str) -> None:
    with pytest.raises(UserError) as error:
        torchvision(**{"name": "resnet18", "input_shape": (3, 8, 8), "classes": 3} | options)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_images_that_are_too_small_are_refused() -> None:
    network = torchvision("alexnet", (3, 8, 8), 3)
    with pytest.raises(UserError, match=r"model: AlexNet does not take samples of shape \(3, 8, 8\) \("):
        check_logits(network, torch.zeros(2, 3, 8, 8), 3)


def test_stacked_clients_are_clients_one_after_another() -> None:
    """SqueezeNet has no batch norm: its clients can be stacked. Its dropout draws the same masks in both engines."""
    thetas = []
    for engine in ("sequential", "vectorized"):
        torch.manual_seed(3)
        network = torchvision("squeezenet1_1", (1, 32, 32), tiny.CLASSES)
        network = nn.Sequential(nn.Upsample(scale_factor=4), network).double()
        thetas.append(tiny.fit(Supervised(), model=network, engine=engine, rounds=2).theta.detach())
    torch.testing.assert_close(thetas[1], thetas[0], rtol=0, atol=1e-10)
    assert not torch.equal(thetas[0], torch.zeros_like(thetas[0]))


def test_a_resnet_learns_and_picks_its_engine(train: Callable, tmp_path: Path) -> None:
    root = pictures.write_parts(tmp_path / "pets", train=12, test=4)
    run = train(*PETS, f"data.root={root}", *RESNET, "rounds=3", "client.batch_labeled=6", "client.epochs=4")
    assert run.summary["status"] == "finished"
    assert run.summary["test_acc"] > 0.9
    with pytest.raises(UserError, match="engine=vectorized: this network has batch norm"):
        train(*PETS, f"data.root={root}", *RESNET, "engine=vectorized", folder="refused")


# --- timm ---


def test_a_network_of_timm() -> None:
    pytest.importorskip("timm")
    network = timm("test_resnet", (1, 32, 32), 5)
    check_logits(network, torch.zeros(2, 1, 32, 32), 5)
    with pytest.raises(UserError, match=r"model.name=resnet19: must be a classifier of timm, such as resnet1"):
        timm("resnet19", (1, 32, 32), 5)
    with pytest.raises(UserError, match=r"model.name=test_resnet: timm does not make it \("):
        timm("test_resnet", (1, 32, 32), 5, options={"depth": 3})


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(UserError, match=r"model=timm: needs the package timm: pip install 'fedshvr\[timm\]'"):
        timm("resnet18", (1, 32, 32), 5)


# --- several processes ---


@pytest.mark.slow
def test_two_processes_resume_exactly_on_a_folder_with_a_validation_set(cli: Callable, tmp_path: Path) -> None:
    from conftest import QUICK, Run

    root = pictures.write_parts(tmp_path / "pets", train=12, test=4)
    options = [*QUICK, *PETS, f"data.root={root}", "validation=0.2", *RESNET, "algorithm=fed_shvr", "trainer.devices=2"]
    options += ["callbacks=early_stopping", "callbacks.early_stopping.patience=2"]

    def go(folder: str, *more: str) -> Run:
        done = cli(*options, f"hydra.run.dir={folder}", *more)
        assert done.returncode == 0, done.stderr
        return Run(tmp_path / folder)

    whole = go("whole", "rounds=12")
    go("parts", "rounds=2")
    parts = go("parts", "rounds=12", "ckpt_path=last")
    assert 2 < len(whole.rows) < 12  # stopped early
    assert whole.summary["status"] == "finished"
    assert whole.summary["processes"] == parts.summary["processes"] == 2
    assert "val_acc" in whole.summary
    assert parts.theta == whole.theta
    assert parts.timeless == whole.timeless
    a, b = (torch.load(r.folder / "checkpoints" / "last.ckpt", weights_only=True) for r in (whole, parts))
    assert torch.equal(a["state_dict"]["buffers_"], b["state_dict"]["buffers_"])
    assert all(torch.equal(a["clients"][name], b["clients"][name]) for name in a["clients"])
