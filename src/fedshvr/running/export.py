"""The model out: model.safetensors, the network's tensors by their own names, and model.json, what it is."""

import json
import os
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from fedshvr.compute.stopping import at_once
from fedshvr.errors import writing
from fedshvr.rounds.federated import Federated
from fedshvr.running.files import write_atomically
from fedshvr.running.folder import RunFolder
from fedshvr.running.loading import CARD, TENSORS


class Export(Callback):
    """Writes the model that a finished or stopped run evaluates; comes after RunFolder, whose summary it quotes."""

    def __init__(self, files: RunFolder) -> None:
        self.files = files

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.write(trainer, pl_module)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if not at_once(exception):
            self.write(trainer, pl_module)

    def write(self, trainer: Trainer, module: LightningModule) -> None:
        """Not for a failed run, and not in the process from which those that train were forked: it has no model."""
        assert isinstance(module, Federated)
        files = self.files
        if files.status != "failed" and trainer.is_global_zero and hasattr(module, "bench"):
            summary = json.loads((files.folder / "summary.json").read_text())
            newest = files.last.get("test_acc", "nan") != "nan"  # not tested in each round
            write_model(files.folder, tensors_of(module), card(trainer, module, summary, newest))


def write_model(folder: Path, tensors: dict[str, Tensor], description: dict[str, Any]) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    temporary = folder / f".{TENSORS}.{os.getpid()}"
    with writing(folder / TENSORS):
        try:
            save_file(tensors, temporary, {"format": "pt"})
            temporary.replace(folder / TENSORS)
        except SafetensorError as error:
            raise OSError(str(error)) from error
        finally:
            temporary.unlink(missing_ok=True)
    write_atomically(folder / CARD, json.dumps(description, indent=1))


def tensors_of(module: Federated) -> dict[str, Tensor]:
    """Parameters and buffers of what is evaluated, as the network names them: theta or its average, the server's."""
    net, server = module.bench.net, module.server
    net.load(module.theta.detach() if server.ema is None else server.ema, server.buffers_)
    state = {name: tensor.detach().cpu() for name, tensor in net.module.state_dict().items()}
    return {name: tensor.clone() for name, tensor in module.method.objective.plain(state).items()}


def card(trainer: Trainer, module: Federated, summary: dict[str, Any], newest: bool) -> dict[str, Any]:
    """All that it takes to make the network again, to feed it, and to test it as the run did."""
    images, config = module.federation.images, summary["config"]
    arguments = dict(config["model"])
    target = arguments.pop("_target_")
    shape = list(images.x.shape[1:])
    return {
        "target": target,
        "arguments": arguments | {"input_shape": shape, "classes": len(images.classes)},
        "classes": list(images.classes),
        "preprocessing": images.preprocessing,
        "data": {"name": images.name, "config": config["data"]},
        "evaluated": {
            "what": "theta" if module.server.ema is None else "ema",
            "processes": trainer.world_size,
            "threads": torch.get_num_threads(),
            "precision": str(trainer.precision),
        },
        "rounds": summary["rounds"],
        "status": summary["status"],
        "test_acc": summary["test_acc"] if newest else None,
        "theta_sha256": summary["theta_sha256"],
    }
