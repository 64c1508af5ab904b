"""The model out: what a run leaves as model.safetensors and model.json, and that it loads as what was tested."""

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import SMALL, Run, enlarge_digits, run_here
from safetensors.torch import load_file, save_file
from torch import nn

from fedshvr import UserError, evaluate, load
from fedshvr.algorithms.objectives.ladder_net import LadderNet
from fedshvr.data import sources
from fedshvr.errors import Diverged, Stopped
from fedshvr.models.mlp import MLP
from fedshvr.rounds.federated import Federated
from fedshvr.running.loading import make_network

Train = Callable[..., Run]
CNN13 = ["model=cnn13", "model.width=0.0625", "algorithm=fedavg", "client.epochs=2", "client.eta=0.05", "rounds=2"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A small run of Fed-SHVR on digits that no test changes."""
    return run_here(tmp_path_factory.mktemp("export") / "run", *SMALL)


def card(run: Run) -> dict:
    return json.loads((run.folder / "model.json").read_text())


def test_a_run_leaves_its_model(run: Run) -> None:
    tensors = load_file(run.folder / "model.safetensors")
    assert {name: list(t.shape) for name, t in tensors.items()} == {
        "layers.0.weight": [16, 64], "layers.0.bias": [16], "layers.2.weight": [10, 16], "layers.2.bias": [10],
    }  # fmt: skip
    theta = torch.load(run.folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]["theta"]
    order = ("layers.0.weight", "layers.0.bias", "layers.2.weight", "layers.2.bias")
    assert torch.equal(torch.cat([tensors[name].flatten() for name in order]), theta)
    said = card(run)
    assert said["target"] == "fedshvr.models.mlp.MLP"
    assert said["arguments"]["input_shape"] == [1, 8, 8]
    assert said["arguments"]["classes"] == 10
    assert said["classes"] == list("0123456789")
    assert said["preprocessing"]["peak"] == 16
    assert {name: said[name] for name in ("test_acc", "theta_sha256", "rounds", "status")} == {
        name: run.summary[name] for name in ("test_acc", "theta_sha256", "rounds", "status")
    }
    assert not [path for path in run.folder.iterdir() if path.name.startswith(".model")]


@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm=fed_shvr"],
        ["algorithm=fed_shvr", "evaluate=ema", "ema_decay=0.9"],
        ["algorithm=fedmatch"],
        ["algorithm=fed_ladder"],
        pytest.param(["algorithm=fedavg", "trainer.precision=64-true"], marks=pytest.mark.slow),
        pytest.param(["algorithm=fedavg", "trainer.precision=bf16-true"], marks=pytest.mark.slow),
        ["algorithm=fedavg", "trainer.precision=bf16-mixed"],
    ],
    ids=lambda overrides: " ".join(overrides),
)
def test_the_model_is_what_was_tested(train: Train, overrides: list[str]) -> None:
    run = train(*SMALL, *overrides)
    model = load(run.folder)
    assert type(model.network) is MLP
    assert not model.training
    assert evaluate(run.folder).accuracy == run.summary["test_acc"]


def test_batch_norm_keeps_its_statistics(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    enlarge_digits(monkeypatch)
    run = train(*CNN13)
    model = load(run.folder)
    state = torch.load(run.folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    kept = [b.flatten() for b in model.network.buffers() if b.is_floating_point()]
    assert torch.equal(torch.cat(kept), state["buffers_"])
    assert (
        evaluate(run.folder, trust=True).accuracy == run.summary["test_acc"]
    )  # the enlarged digits are the test's own


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("algorithm", ["fed_shvr", "fed_ladder"])
def test_cnn13_on_real_images(train: Train, algorithm: str) -> None:
    run = train("experiment=cifar_mismatch1", "scale=smoke", f"algorithm={algorithm}", "rounds=1")
    assert evaluate(run.folder).accuracy == run.summary["test_acc"]


def test_raw_images_give_the_logits_of_scaled_ones(run: Run) -> None:
    model = load(run.folder)
    raw, scaled = sources.digits().x_test, sources.load("digits", "").x_test
    images = torch.from_numpy(raw).permute(0, 3, 1, 2)
    expected = model.network(scaled)
    assert images.dtype == torch.uint8
    assert torch.equal(model(images), expected)
    assert torch.equal(model(images.float() / 16), expected)
    assert torch.equal(model.preprocess(images), scaled)
    with pytest.raises(UserError, match=r"samples of shape \(1, 9, 9\): the model takes \(1, 8, 8\)"):
        model(torch.zeros(2, 1, 9, 9))


def test_loading_leaves_the_generator_alone(run: Run) -> None:
    before = torch.get_rng_state()
    load(run.folder)
    assert torch.equal(torch.get_rng_state(), before)


def linear(input_shape: tuple[int, ...], classes: int, weights: str | None) -> nn.Module:
    assert weights is None
    return nn.Linear(*input_shape, classes)


def test_pretrained_values_are_not_fetched_again() -> None:
    arguments = {"input_shape": [3], "classes": 2, "weights": "DEFAULT"}
    network = make_network({"target": "test_export.linear", "arguments": arguments})
    assert network.weight.shape == (2, 3)


def test_tensors_of_another_network_are_refused_by_name(run: Run, tmp_path: Path) -> None:
    tensors = load_file(run.folder / "model.safetensors")
    other = tmp_path / "other.safetensors"
    save_file(
        {"layers.0.weight": torch.zeros(16, 3), "layers.0.bias": tensors["layers.0.bias"], "fc": torch.zeros(1)}, other
    )
    with pytest.raises(UserError) as refused:
        load(run.folder, weights=other)
    assert str(refused.value) == (
        f"weights={other}: is of another network: layers.2.weight is missing; layers.2.bias is missing; "
        "fc is not of this network; layers.0.weight is [16, 3] instead of [16, 64]"
    )
    with pytest.raises(UserError, match="there is no such file"):
        load(run.folder, weights=tmp_path / "none.safetensors")
    with pytest.raises(UserError, match=f"run={tmp_path}: has no model.json"):
        load(tmp_path)


def test_a_stopped_run_leaves_the_model_of_its_last_whole_round(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, original = train(*SMALL, "rounds=1", folder="whole"), Federated.training_step

    def stopped(module: Federated, batch: object, batch_idx: int) -> None:
        if module.current_epoch == 1:
            module.server.begin(1, [0])
            module.work([0], False)  # the network holds a client's model now
            raise Stopped(signal.SIGTERM)
        original(module, batch, batch_idx)

    monkeypatch.setattr(Federated, "training_step", stopped)
    with pytest.raises(Stopped):
        train(*SMALL)
    folder = whole.folder.parent / "run"
    assert json.loads((folder / "model.json").read_text())["status"] == "stopped"
    a, b = (load_file(f / "model.safetensors") for f in (whole.folder, folder))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert evaluate(folder).accuracy == Run(folder).summary["test_acc"]


def test_a_failed_run_leaves_none(train: Train, tmp_path: Path) -> None:
    with pytest.raises(Diverged):
        train(*SMALL, "client.eta=1e30")
    assert not list((tmp_path / "run").glob("model.*"))


def test_a_model_that_was_not_tested_says_so(train: Train) -> None:
    run = train(*SMALL, "trainer.check_val_every_n_epoch=2")
    assert run.summary["test_acc"] is not None  # of round 2
    assert card(run)["test_acc"] is None  # the model is that of round 3


def test_a_folded_ladder_computes_the_clean_pass() -> None:
    """One unit a layer, by hand: z = (w x + b - mean) / std, then ReLU(z + beta); on top gamma (z + beta)."""
    network = MLP((1, 1, 1), 1, hidden=[1]).double()
    ladder = LadderNet(network, 0.3, 0.3).double()
    values = {
        "stages.0.0.weight": 3.0, "stages.0.0.bias": 1.0, "stages.1.2.weight": -2.0, "stages.1.2.bias": 0.5,
        "norms.0.running_mean": 2.0, "norms.0.running_var": 4.0 - 1e-5, "beta.0": 0.25,
        "norms.1.running_mean": -1.0, "norms.1.running_var": 0.25 - 1e-5, "beta.1": 0.5, "gamma": 3.0,
    }  # fmt: skip
    for name, value in values.items():
        ladder.state_dict()[name].fill_(value)
    folded = ladder.folded(ladder.state_dict())
    by_hand = {"layers.0.weight": 1.5, "layers.0.bias": -0.25, "layers.2.weight": -12.0, "layers.2.bias": 10.5}
    assert folded.keys() == by_hand.keys()
    for name, value in by_hand.items():
        torch.testing.assert_close(folded[name].item(), value, rtol=0, atol=1e-12)
    ladder.eval()
    torch.testing.assert_close(ladder(torch.full((1, 1, 1, 1), 2.0).double()).item(), -22.5, rtol=0, atol=1e-12)


def test_a_folded_ladder_around_any_network_computes_the_clean_pass() -> None:
    torch.manual_seed(0)
    make = lambda: nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(27, 4))  # noqa: E731
    network = make().double()
    ladder = LadderNet(network, 0.3, 0.3).double()
    x = torch.randn(20, 1, 5, 5).double()
    with torch.no_grad():
        ladder.gamma.uniform_(1, 2)
        ladder.beta[0].uniform_(1, 2)
        ladder(x)  # moves the statistics
    plain = make().double()
    plain.load_state_dict(ladder.folded(ladder.state_dict()))
    torch.testing.assert_close(plain.eval()(x), ladder.eval()(x), rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [SMALL, CNN13], ids=["mlp", "cnn13"])
def test_onnx_computes_the_same(
    train: Train, overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnxruntime

    if overrides is CNN13:
        enlarge_digits(monkeypatch)
    model = load(train(*overrides).folder)
    model.to_onnx(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    for n in (1, 5):
        images = torch.randint(0, 17, (n, *model.shape), dtype=torch.uint8)
        (logits,) = session.run(["logits"], {"images": images.numpy()})
        torch.testing.assert_close(torch.from_numpy(logits), model(images).detach(), rtol=1e-4, atol=1e-4)
