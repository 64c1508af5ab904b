"""Checkpoint files: written whole or not at all, the last two kept, and never believed without their digest."""

import hashlib
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch.callbacks import Checkpoint
from torch import Tensor

from fedshvr.compute import stopping
from fedshvr.errors import UserError, writing
from fedshvr.rounds.federated import Federated
from fedshvr.rounds.reduce import over_ranks

LAST, BEFORE = "last.ckpt", "before_last.ckpt"
DIGEST = "sha256"


class Damaged(Exception):
    """A file that is not a checkpoint as it was written."""


class EachRound(Checkpoint):
    """Saves last.ckpt every so many rounds, and at the end; looks between blocks of local steps whether to stop.

    A round that is broken off is made again when the run goes on. Where rounds before it are not saved yet
    (checkpoint_every), it is finished instead, and then all are.
    Lightning's own ModelCheckpoint(save_top_k=0, save_last=True) saves nothing before the end since 2.6.
    """

    def __init__(self, folder: Path, every: int) -> None:
        self.path, self.every, self.saved = folder / LAST, every, 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Federated)
        if trainer.ckpt_path and Path(trainer.ckpt_path) == self.path:
            self.saved = trainer.current_epoch
        show = pl_module.bench.progress

        def look_and_show(client: int, step: int) -> None:
            self.look(trainer)
            show(client, step)

        pl_module.bench.progress = look_and_show
        if pl_module.tutor:
            pl_module.tutor.bench.progress = lambda client, step: self.look(trainer)

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        self.look(trainer)

    def look(self, trainer: Trainer) -> None:
        stopping.look(ready=self.saved == trainer.current_epoch)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if (trainer.current_epoch + 1) % self.every == 0 or any_asked(trainer, pl_module.device):
            self.save(trainer, trainer.current_epoch + 1)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.saved != trainer.current_epoch:
            self.save(trainer, trainer.current_epoch)

    def save(self, trainer: Trainer, rounds: int) -> None:
        trainer.save_checkpoint(self.path)
        self.saved = rounds


def any_asked(trainer: Trainer, device: torch.device) -> bool:
    """Whether a process was asked to stop: all must agree, because all take part in a checkpoint."""
    return bool(over_ranks(torch.tensor([float(stopping.asked() > 0)], device=device), trainer).item())


class Checkpoints(CheckpointIO):
    """For the Trainer's `plugins`. The one before the last steps in where the last one is damaged."""

    def __init__(self) -> None:
        self.damaged: Path | None = None  # what was found so: it must not take the place of a sound one

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        path = Path(path)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                write(checkpoint | {DIGEST: digest(checkpoint)}, temporary)
                if path.name == LAST and path.is_file() and path != self.damaged:
                    path.replace(path.with_name(BEFORE))
                temporary.replace(path)
                self.damaged = None
            finally:
                temporary.unlink(missing_ok=True)
            flush_folder(path.parent)

    def load_checkpoint(
        self, path: str | Path, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        path = Path(path)
        try:
            return read(path)
        except Damaged as damage:
            before = path.with_name(BEFORE)
            if path.name != LAST or not before.is_file():
                raise UserError(f"ckpt_path={path}: {damage}") from None
            self.damaged = path
            print(f"{path}: {damage}; going on from {BEFORE}", file=sys.stderr, flush=True)
        try:
            return read(before)
        except Damaged as damage:
            raise UserError(f"ckpt_path={path}: neither it nor {BEFORE} can be used: {damage}") from None

    def remove_checkpoint(self, path: str | Path) -> None:
        Path(path).unlink(missing_ok=True)


def write(checkpoint: dict[str, Any], path: Path) -> None:
    """Onto the disk; torch hides the system's error behind one of its own."""
    with path.open("wb") as file:
        try:
            torch.save(checkpoint, file)
        except RuntimeError as error:
            raise cause if isinstance(cause := error.__context__, OSError) else error from None
        file.flush()
        os.fsync(file.fileno())


def newest(folder: Path) -> Path | None:
    """The last checkpoint of a folder; the one before it where a run was killed between two renames."""
    return next((folder / name for name in (LAST, BEFORE) if (folder / name).is_file()), None)


def read(path: Path) -> dict[str, Any]:
    """A checkpoint whose content is what was written; nothing but tensors, numbers and text is unpickled."""
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = str(error).split("\n")[0].split(". ")[0]
        raise Damaged(f"it holds more than tensors, numbers and text, and is not read ({reason})") from None
    except Exception as error:  # whatever a reader of archives may meet in a torn file
        raise Damaged(f"it is torn or no checkpoint ({type(error).__name__})") from None
    if not isinstance(checkpoint, dict) or "state_dict" not in checkpoint:
        raise Damaged("it is no checkpoint")
    noted = checkpoint.pop(DIGEST, None)  # none before 0.2.0
    if noted is not None and noted != digest(checkpoint):
        raise Damaged("its content is not what was written")
    return checkpoint


def digest(checkpoint: Any) -> str:
    """SHA-256 of all that a checkpoint holds."""
    sha = hashlib.sha256()
    _add(sha, checkpoint)
    return sha.hexdigest()


def _add(sha: Any, value: Any) -> None:
    if isinstance(value, dict):
        sha.update(b"{")
        for key, item in value.items():
            sha.update(repr(key).encode())
            _add(sha, item)
    elif isinstance(value, (list, tuple)):
        sha.update(b"[")
        for item in value:
            _add(sha, item)
    elif isinstance(value, Tensor):
        sha.update(f"{value.dtype} {tuple(value.shape)}".encode())
        flat = value.detach().cpu().contiguous().view(-1)
        if flat.numel():
            sha.update(flat.view(torch.uint8).numpy())
    else:
        sha.update(repr(value).encode())


def flush_folder(folder: Path) -> None:
    """A rename is on disk when its folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
