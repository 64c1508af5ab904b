"""Objects from the parts of a configuration, by their _target_; what cannot be made ends in one sentence."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from hydra.errors import InstantiationException
from hydra.utils import get_object, instantiate
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import Logger
from omegaconf import OmegaConf
from torch import nn

from fedshvr.errors import Ended, UserError, check
from fedshvr.running.typed import check_call, is_part

Nodes = Mapping[str, Any]
OURS = {"logger": "logger=", "default_root_dir": "hydra.run.dir="}  # what the run itself tells the Trainer, and how


def make(name: str, node: Any, *later: str, **given: Any) -> Any:
    """The object of a part; `later` names the arguments that a partial one gets when it is called."""
    part = OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
    check(is_part(part), f"{name}={part}: must be a group of options with a _target_")
    check_part(name, part, {*later, *given})
    try:
        return instantiate(part, **given)
    except InstantiationException as error:
        cause = error.__cause__ or error
        if isinstance(cause, (UserError, Ended)):
            raise cause from None
        raise UserError(f"{name}: {one_line(cause)}") from cause


def check_part(name: str, part: Any, given: Iterable[str] = ()) -> None:
    """The target is there and takes the options, also in the parts of the part."""
    if isinstance(part, list):
        for i, item in enumerate(part):
            check_part(f"{name}.{i}", item)
    if not isinstance(part, dict):
        return
    if "_target_" in part:
        try:
            target = get_object(part["_target_"])
        except Exception as error:
            raise UserError(f"{name}._target_={part['_target_']}: {one_line(error)}") from error
        check_call(name, target, part, given)
    for key, value in part.items():
        check_part(f"{name}.{key}", value)


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def make_optimizer(node: Nodes) -> Any:
    """The server's optimiser, tried on one number: torch refuses bad options only when it is called."""
    optimizer = make("server", node, "params")
    step = node.get("lr", 0.0)
    check(step >= 0, f"server.lr={step}: must be at least 0")
    try:
        optimizer([nn.Parameter(torch.zeros(1))])
    except (ValueError, TypeError) as error:
        raise UserError(f"server: {one_line(error)}") from error
    return optimizer


def make_callbacks(group: Nodes | None, of_trainer: Iterable[Any] | None, measured: list[str]) -> list[Callback]:
    """The user's: of callbacks= and of trainer.callbacks; what they watch must be measured."""
    nodes = {f"callbacks.{name}": node for name, node in (group or {}).items() if node is not None}
    nodes |= {f"trainer.callbacks.{i}": node for i, node in enumerate(of_trainer or [])}
    callbacks = {name: make(name, node) for name, node in nodes.items()}
    for name, callback in callbacks.items():
        watched = getattr(callback, "monitor", None)
        hint = "; validation=0.1 holds samples out for it" if str(watched).startswith("val_") else ""
        valid = watched is None or watched in measured
        check(valid, f"{name}.monitor={watched}: must be one of {', '.join(measured)}{hint}")
    return list(callbacks.values())


def make_loggers(group: Nodes | None) -> list[Logger]:
    return [make(f"logger.{name}", node) for name, node in (group or {}).items() if node is not None]


def trainer_options(node: Nodes) -> dict[str, Any]:
    """The Trainer's options without its callbacks, which are merged with the run's own."""
    for name, instead in OURS.items():
        check(name not in node, f"trainer.{name}={node.get(name)}: is the run's own; {instead} sets it")
    return {name: value for name, value in node.items() if name != "callbacks"}
