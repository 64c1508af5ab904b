"""What a run leaves in its folder: partition.json and .png, config.yaml, metrics.csv and summary.json."""

import hashlib
import json
import os
import resource
import sys
import time
from contextlib import suppress
from importlib.metadata import version
from math import isfinite
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from omegaconf import OmegaConf

from fedshvr.compute.cpu import cpu_name
from fedshvr.compute.stopping import at_once, of_a_stop
from fedshvr.data.holdings import Federation
from fedshvr.errors import Stopped, Unwritable
from fedshvr.federation import partition
from fedshvr.rounds.federated import CLIENT_ACCURACY, Federated
from fedshvr.running.files import Row, append, last_of, read_rows, skipped_by_client, sums_of, write_atomically
from fedshvr.running.moved import root_of_today
from fedshvr.running.progress import duration

PACKAGES = ("torch", "lightning", "hydra-core", "numpy")
MAX_ROWS = 40  # of the printed plan
UNSEEN = ("logger", "tags")  # options that no number of a run depends on


def write_partition(folder: Path, federation: Federation, seed: int) -> None:
    """partition.json; a figure of another partition is removed."""
    if not _partition_is_written(folder / "partition.json", federation.sha256):
        (folder / "partition.png").unlink(missing_ok=True)
        _write_partition_json(folder / "partition.json", federation, seed)


def draw_partition(folder: Path, federation: Federation) -> None:
    """partition.png, unless it is there; it takes a second."""
    path = folder / "partition.png"
    if path.is_file():
        return
    from fedshvr.federation.partition_figure import draw

    temporary = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        draw(federation.splits, federation.images.y.numpy(), federation.images.classes, temporary)
        temporary.replace(path)
    except Exception as error:  # a run is worth more than its figure
        print(f"{path}: not drawn ({type(error).__name__}: {error})", file=sys.stderr, flush=True)
    finally:
        temporary.unlink(missing_ok=True)


def _partition_is_written(path: Path, sha256: str) -> bool:
    return path.is_file() and json.loads(path.read_text()).get("sha256") == sha256


def _write_partition_json(path: Path, federation: Federation, seed: int) -> None:
    plan, y = federation.plan, federation.images.y.numpy()
    clients = [
        {
            "labeled": split.labeled.tolist(),
            "unlabeled": split.unlabeled.tolist(),
            "labeled_classes": list(split.labeled_classes),
            "tau": tau,
            "omega": omega,
            "mismatch": partition.realized_mismatch(split, y),
        }
        for split, tau, omega in zip(federation.splits, plan.tau, plan.omega.tolist(), strict=True)
    ]
    whole = {"seed": seed, "sha256": federation.sha256, "validation": federation.held_out.tolist()}
    whole["server"] = federation.server.tolist()
    write_atomically(path, json.dumps(whole | {"clients": clients}))


def plan_table(federation: Federation, module: Federated) -> str:
    """The clients and the size of the work, as text."""
    plan, y = federation.plan, federation.images.y.numpy()
    rows = ["client  labelled  unlabelled    tau   omega  mismatch  labelled classes"]
    for k, split in enumerate(federation.splits[:MAX_ROWS]):
        mismatch = partition.realized_mismatch(split, y)
        classes = ", ".join(federation.images.classes[c] for c in split.labeled_classes)
        n, m = int(plan.labeled.size[k]), int(plan.unlabeled.size[k])
        rows.append(f"{k:>6} {n:>9} {m:>11} {plan.tau[k]:>6} {plan.omega[k]:>7.4f} {mismatch:>9.3f}  {classes}")
    if plan.clients > MAX_ROWS:
        rows.append(f"   ... and {plan.clients - MAX_ROWS} more clients (partition.json has all)")
    method = module.method
    names = [type(part).__name__ for part in (method.objective, method.correction, method.aggregation)]
    rows.append(
        f"{federation.images.name}: {plan.clients} clients, {sum(plan.tau):,} local steps a round, "
        f"{len(module.theta):,} parameters; {' + '.join(names)}"
    )
    if len(federation.held_out):
        rows.append(f"{len(federation.held_out)} samples of the training set are held out for validation")
    if len(federation.server):
        epochs = module.server.rule.server_epochs
        rows.append(f"{len(federation.server)} labelled samples are at the server: {epochs:g} epochs after each round")
    return "\n".join(rows)


def score(summary: dict[str, Any]) -> float | None:
    """What a sweep maximises: the last validation accuracy if samples are held out, else the last test accuracy."""
    return summary["val_acc"] if "val_acc" in summary else summary["test_acc"]


def finished_before(folder: Path, config: dict[str, Any]) -> dict[str, Any] | None:
    """The summary of a finished run of this very configuration in this folder."""
    path = folder / "summary.json"
    if not path.is_file():
        return None
    summary = json.loads(path.read_text())
    then, now = (
        {name: value for name, value in c.items() if name not in UNSEEN}
        for c in (root_of_today(summary["config"]), config)
    )
    return summary if summary["status"] == "finished" and then == now else None


def write_end(folder: Path, config: dict[str, Any], **end: str) -> None:
    """How a run ended that could not write it, into summary.json."""
    path = folder / "summary.json"
    summary = json.loads(path.read_text()) if path.is_file() else {"config": config}
    write_atomically(path, json.dumps(summary | end, indent=1))


def peak_rss_mb() -> float:
    """On Linux getrusage also counts what the process that started this one had in memory, VmHWM does not."""
    status = Path("/proc/self/status")
    if status.is_file():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 2**10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


class RunFolder(Callback):
    """Writes one row of metrics.csv a round, and summary.json at the end."""

    def __init__(self, folder: Path, federation: Federation, config: dict[str, Any]) -> None:
        self.folder, self.federation, self.config = folder, federation, config
        self.columns: list[str] = []  # of metrics.csv, when it has a row of this run
        self.last: Row = {}
        self.metrics = folder / "metrics.csv"
        self.status = "failed"
        self.here = False  # not in a process from which those that train are forked
        self.drawing: Thread | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        assert isinstance(pl_module, Federated)
        self.here, self.trainer, self.module = True, trainer, pl_module
        if trainer.is_global_zero:
            self.drawing = Thread(target=draw_partition, args=(self.folder, self.federation))
            self.drawing.start()
        for logger in trainer.loggers:
            logger.log_hyperparams(self.config)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        write_atomically(self.folder / "config.yaml", OmegaConf.to_yaml(self.config))
        rows = read_rows(self.metrics) if trainer.current_epoch else []
        rows = [row for row in rows if int(row["round"]) <= trainer.current_epoch]  # those the checkpoint has seen
        self.columns, self.last = (list(rows[0]), rows[-1]) if rows else ([], {})
        lines = [self.columns, *(row.values() for row in rows)] if rows else []
        write_atomically(self.metrics, "".join(",".join(line) + "\n" for line in lines))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Federated)
        if not trainer.is_global_zero:
            return
        if not self.columns:
            first = ["round", *pl_module.evaluated()]
            self.columns = first + [name for name in pl_module.row if name not in first]
            append(self.metrics, ",".join(self.columns))
        self.last = {name: repr(pl_module.row.get(name, float("nan"))) for name in self.columns}
        append(self.metrics, ",".join(self.last.values()))

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.status = "finished"
        self._drawn()  # W&B's callback comes after this one and wants the figure

    def _drawn(self) -> None:
        if self.drawing:
            self.drawing.join()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.finish()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """In the process that trains, and in the one that it was forked from, which knows what the cause was."""
        cause = exception if trainer.world_size == 1 else of_a_stop(exception)
        self.status = "stopped" if isinstance(cause, (KeyboardInterrupt, Stopped)) else "failed"
        self._drawn()
        with suppress(Unwritable):  # then it is the same full disk, and the first error says more
            if self.here and not at_once(cause):
                self.finish()
            elif trainer.is_global_zero:
                write_end(self.folder, self.config, status=self.status)

    def finish(self) -> None:
        """Write summary.json."""
        if not self.trainer.is_global_zero:
            return
        every = read_rows(self.metrics) if self.columns else []  # not kept in memory: a run may have many rounds
        rows = [row for row in every if row["test_acc"] != "nan"]
        accuracy = [float(row["test_acc"]) for row in rows]
        seconds = sum(float(row["seconds"]) for row in every)
        theta = self.module.theta.detach().cpu().contiguous().view(torch.uint8)  # numpy knows no bfloat16
        plan = self.federation.plan
        summary: dict[str, Any] = {
            "status": self.status,
            "test_acc": accuracy[-1] if accuracy else None,
            "best_test_acc": max(accuracy) if accuracy else None,  # of no use for a choice: that is validation's
            **(self._validated(rows) if len(self.federation.held_out) else {}),
            **last_of(rows[-1:], CLIENT_ACCURACY),
            **{k: v if isfinite(v) else None for k, v in last_of(every[-1:], ("epsilon",)).items()},
            **sums_of(every, ("bytes_up", "bytes_down", "skipped")),
            **skipped_by_client(self.module.server.skips),
            "rounds": len(every),
            "seconds": seconds,
            "seconds_per_round": seconds / len(every) if every else None,
            "processes": self.trainer.world_size,
            "peak_rss_mb": peak_rss_mb(),
            "tau": plan.tau,
            "omega": plan.omega.tolist(),
            "partition_sha256": self.federation.sha256,
            "theta_sha256": hashlib.sha256(theta.numpy().tobytes()).hexdigest(),
            "versions": versions(self.module.theta.device),
            "finished_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "config": self.config,
        }
        write_atomically(self.folder / "summary.json", json.dumps(summary, indent=1))

    @staticmethod
    def _validated(rows: list[Row]) -> dict[str, float | None]:
        """The validation accuracy at the end and at its best, and the test accuracy of the first round that has it."""
        if not rows:
            return dict.fromkeys(("val_acc", "best_val_acc", "test_acc_at_best_val"))
        best = max(rows, key=lambda row: float(row["val_acc"]))
        found = {
            "val_acc": rows[-1]["val_acc"],
            "best_val_acc": best["val_acc"],
            "test_acc_at_best_val": best["test_acc"],
        }
        return {name: float(value) for name, value in found.items()}


def versions(device: torch.device) -> dict[str, str]:
    """What the last bits depend on."""
    cpu = f"{cpu_name()}, {torch.backends.cpu.get_cpu_capability()}"
    processor = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu
    packages = {name: version(name) for name in PACKAGES}
    return packages | {"python": sys.version.split()[0], "processor": processor}


class StayStopped(Callback):
    """A run that EarlyStopping has ended makes no further round when it is resumed."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        trainer.should_stop = any(callback.stopped_epoch for callback in trainer.early_stopping_callbacks)


def closing_table(folder: Path, summary: dict[str, Any]) -> str:
    """What the run came to, as text."""
    asked = summary["config"]["rounds"]
    early = f" of {asked}, stopped early," if summary["status"] == "finished" and summary["rounds"] < asked else ""
    rows = {"status": summary["status"], "rounds": f"{summary['rounds']}{early} in {duration(summary['seconds'])}"}
    if summary["test_acc"] is not None:
        rows["test accuracy"] = f"{100 * summary['test_acc']:.2f} %"
    if summary.get("val_acc") is not None:
        best = f"best {100 * summary['best_val_acc']:.2f} %, then test {100 * summary['test_acc_at_best_val']:.2f} %"
        rows["validation"] = f"{100 * summary['val_acc']:.2f} % ({best})"
    if CLIENT_ACCURACY[0] in summary:
        mean, worst, std = (f"{100 * summary[name]:.2f} %" for name in CLIENT_ACCURACY)
        rows["over clients"] = f"{mean} (worst tenth {worst}, standard deviation {std})"
    if by_client := summary.get("skipped_by_client"):
        rows["left out"] = f"{sum(by_client.values())} times a client (clients {', '.join(by_client)})"
    if "bytes_up" in summary:
        rows["traffic"] = f"{summary['bytes_up'] / 1e6:.1f} MB up, {summary['bytes_down'] / 1e6:.1f} MB down"
    if "epsilon" in summary:
        spent = "no promise without noise" if summary["epsilon"] is None else f"epsilon {summary['epsilon']:.2f}"
        rows["privacy"] = f"{spent} at delta {summary['config']['privacy']['delta']:g}"
    right = [row["pseudo_label_acc"] for row in read_rows(folder / "metrics.csv")][-1:]
    if right and right[0] != "nan":
        rows["pseudo-labels"] = f"{100 * float(right[0]):.2f} % right"
    several = f" in the first of {summary['processes']} processes" if summary["processes"] > 1 else ""
    rows["peak memory"] = f"{summary['peak_rss_mb']:.0f} MB{several}"
    rows["files"] = str(folder)
    return "\n".join(f"{name:>14}  {value}" for name, value in rows.items())
