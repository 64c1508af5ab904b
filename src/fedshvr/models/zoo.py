"""Networks of torchvision and timm by name, with the classes and input channels of the data."""

import difflib
from typing import Any

from torch import nn

from fedshvr.errors import UserError, check

NOT_TO_BE_HAD = (OSError, RuntimeError, ValueError, TypeError, AssertionError)
RGB = 3
AUXILIARY = ("aux1", "aux2", "AuxLogits")  # further outputs in training, of GoogLeNet and Inception


def torchvision(
    name: str,
    input_shape: tuple[int, ...],
    classes: int,
    weights: str | None = None,
    small_stem: bool = False,
    options: dict[str, Any] | None = None,
) -> nn.Module:
    """A classifier of torchvision.models; the last layer is new also with `weights`, which are of other classes."""
    from torchvision import models

    _check_name(name, input_shape, models.list_models(module=models), "torchvision.models")
    known = list(models.get_model_weights(name).__members__)
    check(weights is None or weights in known, f"model.weights={weights}: must be null or one of {', '.join(known)}")
    check(
        weights is None or input_shape[0] == RGB,
        f"model.weights={weights}: need data.channels={RGB}, these images have {input_shape[0]}",
    )
    check(
        not small_stem or name.startswith(("resnet", "resnext", "wide_resnet")),
        f"model.small_stem=true: is for ResNets; must be false with model.name={name}",
    )
    size = {"num_classes": classes} if weights is None else {"weights": weights}
    try:
        network = models.get_model(name, **size, **(options or {}))
    except NOT_TO_BE_HAD as problem:
        raise UserError(f"model.name={name}: torchvision does not make it ({problem})") from None
    if weights is not None:
        _new_head(network, classes)
    _one_output(network)
    (_small_stem if small_stem else _channels)(network, input_shape[0])
    return network


def timm(
    name: str,
    input_shape: tuple[int, ...],
    classes: int,
    pretrained: bool = False,
    options: dict[str, Any] | None = None,
) -> nn.Module:
    """A classifier of timm, which itself fits the last layer to the classes and the first to the channels."""
    try:
        import timm as library
    except ImportError:
        raise UserError("model=timm: needs the package timm: pip install 'fedshvr[timm]'") from None
    _check_name(name.partition(".")[0], input_shape, library.list_models(), "timm")
    size: dict[str, Any] = {"num_classes": classes, "in_chans": input_shape[0]}
    try:
        return library.create_model(name, pretrained=pretrained, **size, **(options or {}))
    except NOT_TO_BE_HAD as problem:
        raise UserError(f"model.name={name}: timm does not make it ({problem})") from None


def _check_name(name: str, input_shape: tuple[int, ...], known: list[str], library: str) -> None:
    near = difflib.get_close_matches(name, known, 5, 0.4) or ["resnet18"]
    check(name in known, f"model.name={name}: must be a classifier of {library}, such as {', '.join(near)}")
    check(len(input_shape) == 3, f"model.name={name}: needs images, not samples of shape {tuple(input_shape)}")


def _new_head(network: nn.Module, classes: int) -> None:
    """The last layer that gives logits, drawn anew for these classes."""
    layers = {name: layer for name, layer in network.named_modules() if isinstance(layer, (nn.Linear, nn.Conv2d))}
    name, head = list(layers.items())[-1]
    if isinstance(head, nn.Linear):
        _replace(network, name, nn.Linear(head.in_features, classes))
    else:
        _replace(network, name, _convolution(head, head.in_channels, classes))


def _one_output(network: nn.Module) -> None:
    if getattr(network, "aux_logits", False):
        network.aux_logits = False  # type: ignore[assignment]
        for name in AUXILIARY:
            setattr(network, name, None)


def _channels(network: nn.Module, channels: int) -> None:
    """The first convolution drawn anew, if it takes another number of channels."""
    name, first = next((n, layer) for n, layer in network.named_modules() if isinstance(layer, nn.Conv2d))
    if first.in_channels != channels:
        _replace(network, name, _convolution(first, channels, first.out_channels))


def _small_stem(network: nn.Module, channels: int) -> None:
    """3x3 at full resolution and no pooling, as usual for 32x32: ImageNet's 7x7 and pooling make 8x8 of them."""
    width = len(network.get_parameter("conv1.weight"))
    stem = nn.Conv2d(channels, width, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")
    _replace(network, "conv1", stem)
    _replace(network, "maxpool", nn.Identity())


def _convolution(like: nn.Conv2d, inputs: int, outputs: int) -> nn.Conv2d:
    bias, padding = like.bias is not None, like.padding
    return nn.Conv2d(inputs, outputs, like.kernel_size, like.stride, padding, bias=bias)  # type: ignore[arg-type]


def _replace(network: nn.Module, name: str, layer: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(network.get_submodule(parent), child, layer)
