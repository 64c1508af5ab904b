"""A run as users make it: what it leaves behind, that it repeats exactly, and what it refuses."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import ROOT, enlarge_digits

from fedshvr.compute.cpu import cpu_name
from fedshvr.errors import Diverged, UserError

Train = Callable[..., object]
CONTRACT = {
    "status", "test_acc", "best_test_acc", "rounds", "seconds", "seconds_per_round", "peak_rss_mb", "tau", "omega",
    "partition_sha256", "theta_sha256", "config", "versions",
}  # fmt: skip
COLUMNS = {
    "round", "test_acc", "test_loss", "train_loss", "train_labeled", "train_unlabeled", "train_r2", "alpha0",
    "pseudo_label_acc", "sum_omega_d", "drift", "seconds",
}  # fmt: skip


def test_without_augmentation_of_labels_who_has_labels_alone_augments_nothing(train: Train) -> None:
    asked = ["algorithm=fedavg", "partition.clients=4", "rounds=2"]
    plain, left = train(*asked, "augment=none", folder="a"), train(*asked, "augment_labeled=false", folder="b")
    assert left.theta == plain.theta != train(*asked, folder="c").theta
    fed_shvr = ["partition.clients=4", "partition.unlabeled=120", "rounds=2"]
    assert (
        train(*fed_shvr, "augment_labeled=false", folder="d").theta
        != train(*fed_shvr, "augment=none", folder="e").theta
    )


def test_a_run_leaves_the_files_of_the_contract(train: Train) -> None:
    run = train()
    assert set(run.summary) >= CONTRACT
    assert run.summary["status"] == "finished"
    assert set(run.rows[0]) >= COLUMNS
    assert [row["round"] for row in run.rows] == ["1", "2", "3"]
    assert run.summary["test_acc"] == float(run.rows[-1]["test_acc"])
    partition = json.loads((run.folder / "partition.json").read_text())
    assert partition["seed"] == 0
    assert set(partition["clients"][0]) == {"labeled", "unlabeled", "labeled_classes", "tau", "omega", "mismatch"}
    assert (run.folder / "partition.png").read_bytes()[:4] == b"\x89PNG"
    assert "${" not in (run.folder / "config.yaml").read_text()
    assert (run.folder / "checkpoints" / "last.ckpt").is_file()
    assert run.summary["versions"]["processor"].startswith(f"{cpu_name()}, ")


def test_a_processor_has_its_name_or_that_of_its_kind(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    assert cpu_name(info) != ""
    info.write_text("processor\t: 0\nmodel name\t: A CPU @ 2 GHz\nprocessor\t: 1\nmodel name\t: Another\n")
    assert cpu_name(info) == "A CPU @ 2 GHz"


def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not(train: Train) -> None:
    first, again, other = train(folder="a"), train(folder="b"), train("seed=1", folder="c")
    assert first.theta == again.theta
    assert first.timeless == again.timeless
    assert first.theta != other.theta
    assert first.summary["partition_sha256"] != other.summary["partition_sha256"]


@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm=fed_shvr", "participation=0.4"],
        ["algorithm=fed_mt"],
        ["algorithm=fed_shvr", "client_state=disk", "checkpoint_every=2"],
        ["algorithm=fed_svr", "server=momentum"],
        ["model=cnn13", "model.width=0.0625", "data=digits", "algorithm=fedavg", "buffers=local"],
    ],
    ids=["control variates", "teacher", "disk", "vrl", "local batch norm"],
)
def test_resume_is_exact(train: Train, overrides: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if "model=cnn13" in overrides:
        enlarge_digits(monkeypatch)
    whole = train(*overrides, "rounds=4", folder="whole")
    train(*overrides, "rounds=2", folder="parts")
    parts = train(*overrides, "rounds=4", "ckpt_path=last", folder="parts")
    assert parts.theta == whole.theta
    assert parts.timeless == whole.timeless
    a, b = (torch.load(r.folder / "checkpoints" / "last.ckpt", weights_only=True) for r in (whole, parts))
    assert a["clients"].keys() == b["clients"].keys()
    for name, value in a["clients"].items():
        if "client_state=disk" not in overrides:  # there, the checkpoint names places in a file
            assert torch.equal(value, b["clients"][name]), name
    for name, value in a["state_dict"].items():
        assert torch.equal(value, b["state_dict"][name]), name


def test_a_checkpoint_of_another_run_is_refused(train: Train, capsys: pytest.CaptureFixture) -> None:
    train(folder="a")
    with pytest.raises(UserError, match="ckpt_path: the checkpoint has seed=0, this run has seed=5"):
        train("seed=5", "ckpt_path=last", "rounds=4", folder="a")


@pytest.mark.parametrize("algorithm", ["fed_shvr", "fed_pseudo", "fed_mt"])
def test_hidden_labels_cannot_change_training(train: Train, algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedshvr.data.holdings import Federation
    from fedshvr.running import run as run_module

    honest = train(f"algorithm={algorithm}", folder="honest")
    build = run_module.build

    def shuffled(cfg):
        federation, module = build(cfg)
        assert isinstance(federation, Federation)
        hidden = federation.plan.unlabeled.flat
        federation.images.y[hidden] = federation.images.y[hidden.flip(0)]
        return federation, module

    monkeypatch.setattr(run_module, "build", shuffled)
    blind = train(f"algorithm={algorithm}", folder="blind")
    assert blind.theta == honest.theta
    if algorithm != "fed_mt":
        assert blind.rows[-1]["pseudo_label_acc"] != honest.rows[-1]["pseudo_label_acc"]


def test_the_demo_clearly_beats_supervised_learning(train: Train) -> None:
    shvr = train("rounds=40", folder="a").summary["test_acc"]
    fedavg = train("rounds=40", "algorithm=fedavg", folder="b").summary["test_acc"]
    matched = train("rounds=40", "algorithm=fedavg", "client.steps=step_matched", folder="c").summary["test_acc"]
    assert shvr > 0.9
    assert shvr > fedavg + 0.08
    assert shvr > matched + 0.02


def test_a_batch_that_cannot_be_drawn_is_refused(train: Train) -> None:
    with pytest.raises(UserError, match=r"client\.batch_labeled=32: client\.sampling=shuffle needs at most 10"):
        train("client.sampling=shuffle", "client.batch_labeled=32")
    assert train("client.sampling=shuffle").summary["status"] == "finished"


def test_a_diverging_run_names_the_step_and_keeps_the_last_good_checkpoint(train: Train, tmp_path: Path) -> None:
    train("rounds=2", folder="a")
    before = torch.load(tmp_path / "a" / "checkpoints" / "last.ckpt", weights_only=True)
    with pytest.raises(Diverged, match=r"round 3, client \d, local step \d+: the loss is not finite"):
        train("rounds=4", "client.eta=1e30", "ckpt_path=last", "resume_anyway=true", folder="a")
    after = torch.load(tmp_path / "a" / "checkpoints" / "last.ckpt", weights_only=True)
    assert torch.equal(before["state_dict"]["theta"], after["state_dict"]["theta"])
    assert json.loads((tmp_path / "a" / "summary.json").read_text())["status"] == "failed"


def test_bfloat16_autocast_trains(train: Train) -> None:
    run = train("trainer.precision=bf16-mixed")
    assert run.summary["test_acc"] > 0.5
    assert run.theta != train(folder="full").theta


def test_client_state_elsewhere_changes_nothing(train: Train) -> None:
    runs = [train(f"client_state={place}", folder=place) for place in ("device", "cpu", "disk")]
    assert len({run.theta for run in runs}) == 1


def test_peak_memory_is_this_process_own() -> None:
    """What the process that started it had in memory does not count."""
    ballast = b"x" * (900 << 20)
    code = "from fedshvr.running.folder import peak_rss_mb; print(peak_rss_mb())"
    command, environment = [sys.executable, "-c", code], {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    assert 50 < float(subprocess.run(command, env=environment, capture_output=True, text=True).stdout) < 800
    del ballast
