"""Lets torchvision (and lightning, which imports it) load where its compiled operators do not fit this torch."""

from importlib.machinery import PathFinder
from importlib.util import find_spec
from typing import NoReturn

import torch

_kept: list[torch.library.Library] = []  # an operator lives as long as its Library object


def apply() -> None:
    """Define the two operators that torchvision's import asks for, unless it brings them itself."""
    torchvision = find_spec("torchvision")
    if (
        torchvision is None
        or _operators_exist()
        or _extension_loads(list(torchvision.submodule_search_locations or []))
    ):
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.impl(name, _refuse, "CompositeExplicitAutograd")
    _kept.append(library)


def _operators_exist() -> bool:
    return hasattr(torch.ops.torchvision, "nms")


def _extension_loads(folders: list[str]) -> bool:
    """Load torchvision's operators as its import would: milliseconds, where the import itself takes seconds."""
    extension = PathFinder.find_spec("_C", folders)
    if extension is None or extension.origin is None:
        return False
    try:
        torch.ops.load_library(extension.origin)
    except OSError:
        return False
    return _operators_exist()


def _refuse(*_: object) -> NoReturn:
    raise RuntimeError(
        "torchvision's compiled operators do not fit this build of torch: install the torchvision built for "
        f"torch {torch.__version__} to use nms or qnms"
    )
