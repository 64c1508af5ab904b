"""A run's model as an nn.Module: raw images in, logits out."""

import json
from pathlib import Path
from typing import Any

import torch
from hydra.utils import instantiate
from torch import Tensor, nn
from torch.nn.functional import interpolate

from fedshvr.errors import check
from fedshvr.running.trust import NETWORKS, check_targets

TENSORS, CARD = "model.safetensors", "model.json"
TRUSTED = "; trust=true, or load(folder, trust=True), does so if the file is yours"
SHOWN = 6  # names of tensors in an error
FRESH = {"weights": None, "pretrained": False}  # options by which a network would fetch values that are replaced anyway


def scaling(how: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel, (C, 1, 1); 0 and 1 where pixels are only divided by their peak."""
    mean, std = (torch.tensor(how.get(name) or [default]) for name, default in (("mean", 0.0), ("std", 1.0)))
    return mean.view(-1, 1, 1), std.view(-1, 1, 1)


class Preprocess(nn.Module):
    """(x / peak - mean) / std for bytes, (x - mean) / std for floats in [0, 1], resized if the data were.

    What is no image stays as it is.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, how: dict[str, Any], shape: list[int]) -> None:
        super().__init__()
        self.images, self.peak, self.size, self.shape = bool(how), how.get("peak", 1), how.get("size"), tuple(shape)
        for name, value in zip(("mean", "std"), scaling(how), strict=True):
            self.register_buffer(name, value, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.images:
            return x
        x = x.float() if x.is_floating_point() else x.float() / self.peak
        if self.size and x.shape[2:] != self.shape[1:]:
            x = interpolate(x, self.shape[1:], mode="bilinear", antialias=True)
        return (x - self.mean) / self.std


class Model(nn.Module):
    """The network behind its preprocessing; `classes` are the names of the logits, `card` is model.json."""

    def __init__(self, network: nn.Module, card: dict[str, Any]) -> None:
        super().__init__()
        self.network, self.card, self.classes = network, card, tuple(card["classes"])
        self.shape = tuple(card["arguments"]["input_shape"])
        self.preprocess = Preprocess(card["preprocessing"], card["arguments"]["input_shape"])

    def forward(self, x: Tensor) -> Tensor:
        """Logits of raw images (N, C, H, W): bytes, or floats in [0, 1]; of what is no image as the run had it."""
        return self.logits(self.preprocess(x))

    def logits(self, x: Tensor) -> Tensor:
        """Of samples that are scaled already; on a CPU images lie as in training, for the same bits."""
        check(x.shape[1:] == self.shape, f"samples of shape {tuple(x.shape[1:])}: the model takes {self.shape}")
        first = next(self.network.parameters())
        x = x.to(first.dtype)
        return self.network(x.contiguous(memory_format=torch.channels_last) if self.conv_on_cpu(first) else x)

    def conv_on_cpu(self, parameter: Tensor) -> bool:
        return parameter.device.type == "cpu" and any(isinstance(m, nn.Conv2d) for m in self.network.modules())

    def to_onnx(self, path: str | Path) -> None:
        """Raw images in (bytes; float32 for what is no image), logits out, any number at once."""
        raw = torch.uint8 if self.preprocess.images else torch.float32
        example = torch.zeros(2, *self.shape, dtype=raw)
        batch = {0: torch.export.Dim("batch")}
        torch.onnx.export(
            self, (example,), path, dynamo=True, input_names=["images"], output_names=["logits"],
            dynamic_shapes=(batch,), verbose=False,
        )  # fmt: skip


def load(folder: str | Path, weights: str | Path | None = None, trust: bool = False) -> Model:
    """The model of a finished or stopped run, in eval mode; `weights` is another safetensors file for its network.

    A network that is not of this package, torchvision or timm is code that model.json names: made only with `trust`.
    """
    from safetensors.torch import load_file

    card = read_card(Path(folder))
    if not trust:
        part = {"_target_": card["target"], "arguments": card["arguments"]}
        check_targets(f"run={folder}: {CARD}", part, NETWORKS, TRUSTED)
    path = Path(weights) if weights is not None else Path(folder) / TENSORS
    check(path.is_file(), f"weights={path}: there is no such file")
    network = make_network(card)
    tensors = load_file(path)
    check_names(str(path), tensors, network.state_dict())
    dtype = next((t.dtype for t in tensors.values() if t.is_floating_point()), torch.float32)
    network.to(dtype).load_state_dict(tensors)
    return Model(network, card).eval()


def read_card(folder: Path) -> dict[str, Any]:
    path = folder / CARD
    check(path.is_file(), f"run={folder}: has no {CARD}, which a run leaves when it has finished or was stopped")
    return json.loads(path.read_text())


def make_network(card: dict[str, Any]) -> nn.Module:
    """As the run made it; the values that it starts from are drawn without moving the caller's generator."""
    arguments = {name: FRESH.get(name, value) for name, value in card["arguments"].items()}
    given = {"input_shape": tuple(arguments.pop("input_shape")), "classes": arguments.pop("classes")}
    with torch.random.fork_rng([]):
        return instantiate({"_target_": card["target"], **arguments}, **given)


def check_names(path: str, found: dict[str, Tensor], own: dict[str, Tensor]) -> None:
    """Refuse the tensors of another network, by name."""
    problems = [f"{name} is missing" for name in own if name not in found]
    problems += [f"{name} is not of this network" for name in found if name not in own]
    shapes = {name: (list(found[name].shape), list(own[name].shape)) for name in found if name in own}
    problems += [f"{name} is {a} instead of {b}" for name, (a, b) in shapes.items() if a != b]
    more = f" and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
    check(not problems, f"weights={path}: is of another network: {'; '.join(problems[:SHOWN])}{more}")
