"""What W&B is given, read back from its offline files."""

import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, SMALL
from fabricate import make_sweep
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from omegaconf import OmegaConf
from wandb.proto.wandb_internal_pb2 import Record

from fedshvr.errors import Stopped
from fedshvr.reporting.build import report
from fedshvr.reporting.sweeps import CONFIGS
from fedshvr.running.run import build
from fedshvr.running.wandb_run import RunEnd, make_logger

BLOCK = 32768


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")


def records(folder: Path) -> Iterator[Record]:
    """The records of an offline run: a log of 32 KiB blocks, each part with crc (4), length (2) and type (1)."""
    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or its last part
            yield Record.FromString(whole)
            whole = b""


def ended(folder: Path, seconds: float = 30) -> list[Any]:
    """The records up to the run's end: W&B's own process may still be writing when the run has returned."""
    until = time.monotonic() + seconds
    while True:
        found = list(records(folder))
        if any(record.HasField("exit") for record in found) or time.monotonic() > until:
            return found
        time.sleep(0.2)


def history(folder: Path) -> dict[str, Any]:
    """The last value logged under each key; media are {"path": ...} and more."""
    values: dict[str, Any] = {}
    for record in ended(folder):
        for entry in record.history.item:
            key, *inner = entry.nested_key or [entry.key]
            if inner:
                values.setdefault(key, {})[inner[0]] = json.loads(entry.value_json)
            else:
                values[key] = json.loads(entry.value_json)
    return values


def files_of(folder: Path) -> Path:
    (path,) = folder.glob("wandb/offline-run-*/files")
    return path


def test_a_run_ends_with_partition_confusion_matrix_and_class_accuracy(
    train: Callable[..., Any], tmp_path: Path
) -> None:
    done = train()
    _, module = build(OmegaConf.load(done.folder / "config.yaml"))  # type: ignore[arg-type]
    logger = make_logger("p", "digits", "fed_shvr", 0, str(tmp_path / "w"))
    trainer = Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=logger,
        callbacks=[RunEnd(done.folder)],
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
    )
    trainer.fit(module)
    logger.finalize("success")

    logged = history(tmp_path / "w")
    assert {"test_acc", "train_loss", "partition", "confusion_matrix", "confusion", "class_accuracy"} <= set(logged)
    files = files_of(tmp_path / "w")
    table = json.loads((files / logged["class_accuracy"]["path"]).read_text())
    correct = sum(accuracy * samples for _, accuracy, samples in table["data"])
    total = sum(samples for _, _, samples in table["data"])
    assert correct / total == pytest.approx(logged["test_acc"])
    cells = json.loads((files / logged["confusion"]["path"]).read_text())["data"]
    assert sum(n for t, p, n in cells if t == p) == pytest.approx(correct)
    assert (files / logged["partition"]["path"]).read_bytes() == (done.folder / "partition.png").read_bytes()
    (run,) = (r.run for r in records(tmp_path / "w") if r.WhichOneof("record_type") == "run")
    assert (run.run_group, run.job_type, run.display_name) == ("digits", "fed_shvr", "fed_shvr-0")


def test_a_run_that_is_stopped_has_not_failed(train: Callable[..., Any], tmp_path: Path) -> None:
    """Its W&B run is closed, with exit code 0."""
    callback = "+callbacks.stop={_target_:test_wandb.AskToStop}"
    with pytest.raises(Stopped):
        train("logger=wandb", *SMALL, callback, folder="w")
    (end,) = (record.exit for record in ended(tmp_path / "w") if record.HasField("exit"))
    assert end.exit_code == 0
    assert json.loads((tmp_path / "w" / "summary.json").read_text())["status"] == "stopped"


class AskToStop(Callback):
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


def test_the_first_of_two_processes_writes_the_run(cli: Callable[..., Any], tmp_path: Path) -> None:
    """W&B begins after the fork and ends with the process; its run has the options, the rounds and the figures."""
    done = cli("rounds=2", "trainer=cpu", "trainer.devices=2", "hydra.run.dir=w", "tags=[try]")
    assert done.returncode == 0, done.stderr
    logged = history(tmp_path / "w")
    assert {"test_acc", "partition", "confusion_matrix", "class_accuracy"} <= set(logged)
    assert logged["test_acc"] == json.loads((tmp_path / "w" / "summary.json").read_text())["test_acc"]
    config = {update.key for record in ended(tmp_path / "w") for update in record.config.update}
    config |= {update.key for record in ended(tmp_path / "w") for update in record.run.config.update}
    assert {"rounds", "algorithm", "partition"} <= {key.split("/")[0] for key in config}
    axes = {
        record.metric.glob_name: record.metric.step_metric
        for record in ended(tmp_path / "w")
        if record.HasField("metric")
    }
    assert axes["*"] == "round"
    (run,) = (record.run for record in ended(tmp_path / "w") if record.WhichOneof("record_type") == "run")
    assert set(run.tags) == {"digits", "fed_shvr", "try"}


def test_the_report_run_has_the_tables_and_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_sweep(tmp_path / "logs", "fig4", seeds=2)
    out = tmp_path / "out"
    cfg = OmegaConf.load(CONFIGS / "report.yaml")
    options = {"logs": str(tmp_path / "logs"), "out": str(out), "results": str(out), "items": ["fig4"], "publish": True}
    (item,) = report(OmegaConf.merge(cfg, options))  # type: ignore[arg-type]

    logged = history(out)
    table = json.loads((files_of(out) / logged["tables/fig4"]["path"]).read_text())
    assert table["columns"] == item.table.columns
    assert table["data"] == item.table.rows
    assert (files_of(out) / logged["figures/fig4"]["path"]).read_bytes() == (out / "fig4.png").read_bytes()

    pytest.importorskip("wandb_workspaces")
    text = json.loads((out / "workspace.json").read_text())
    names = [section["name"] for section in text["spec"]["section"]["panelBankConfig"]["sections"]]
    assert names[:3] == ["Accuracy", "Training", "Federation"]
    assert {panel["xAxis"] for panel in panels(text)} == {"round"}
    assert "to publish, set WANDB_API_KEY" in capsys.readouterr().out


def panels(text: dict[str, Any]) -> list[dict[str, Any]]:
    sections = text["spec"]["section"]["panelBankConfig"]["sections"]
    return [panel["config"] for section in sections[:3] for panel in section["panels"]]


def test_a_resumed_run_continues_its_wandb_run(train: Callable[..., Any]) -> None:
    """Three starts in one folder: the second goes on, the third begins anew."""
    short = ["logger=[csv,wandb]", "tags=[try,tuesday]", *SMALL]
    for start in (["rounds=1"], ["rounds=2", "ckpt_path=last"], ["rounds=1"]):
        done = train(*short, *start)
    starts = sorted((done.folder / "wandb").glob("offline-run-*"), key=lambda path: path.stat().st_ctime)
    first, second, third = (path.name.rpartition("-")[2] for path in starts)
    assert first == second != third == (done.folder / "wandb_id").read_text()


KEY = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("machine", "server", "expected"),
    [
        ("wandb.lab.example", "https://wandb.lab.example", "online"),
        ("wandb.lab.example", "", "offline"),
    ],
)
def test_whether_there_is_a_key_is_asked_of_wandb(tmp_path: Path, machine: str, server: str, expected: str) -> None:
    """A key in netrc for one's own server counts, one for another server does not; nothing is asked or sent."""
    (tmp_path / "netrc").write_text(f"machine {machine}\n  login user\n  password {KEY}\n")
    own = {"NETRC": str(tmp_path / "netrc"), "WANDB_CONFIG_DIR": str(tmp_path), "PYTHONPATH": str(ROOT / "src")}
    own |= {"WANDB_BASE_URL": server} if server else {}
    free = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    code = "from fedshvr.running.wandb_mode import mode; print(mode())"
    done = subprocess.run([sys.executable, "-c", code], env=free | own, capture_output=True, text=True, cwd=tmp_path)
    assert (done.stdout, done.stderr) == (f"{expected}\n", "")
