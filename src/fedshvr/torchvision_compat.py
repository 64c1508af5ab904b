"""Lets torchvision (and lightning, which imports it) load where its compiled operators do not fit this torch."""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import Any, NoReturn

_kept: list[Any] = []  # an operator lives as long as its Library object


def apply_in_time() -> None:
    """`apply` when torchvision is about to be imported: until then nobody waits for torch."""
    if "torchvision" not in sys.modules and not any(isinstance(finder, InTime) for finder in sys.meta_path):
        sys.meta_path.insert(0, InTime())


class InTime(MetaPathFinder):
    """Finds nothing, but is asked first."""

    done = False

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if fullname == "torchvision" and not self.done:
            self.done = True
            apply()


def apply() -> None:
    """Define the two operators that torchvision's import asks for, unless it brings them itself."""
    torchvision = find_spec("torchvision")
    if (
        torchvision is None
        or _operators_exist()
        or _extension_loads(list(torchvision.submodule_search_locations or []))
    ):
        return
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.impl(name, _refuse, "CompositeExplicitAutograd")
    _kept.append(library)


def _operators_exist() -> bool:
    import torch

    return hasattr(torch.ops.torchvision, "nms")


def _extension_loads(folders: list[str]) -> bool:
    """Load torchvision's operators as its import would: milliseconds, where the import itself takes seconds."""
    import torch

    extension = PathFinder.find_spec("_C", folders)
    if extension is None or extension.origin is None:
        return False
    try:
        torch.ops.load_library(extension.origin)
    except OSError:
        return False
    return _operators_exist()


def _refuse(*_: object) -> NoReturn:
    import torch

    raise RuntimeError(
        "torchvision's compiled operators do not fit this build of torch: install the torchvision built for "
        f"torch {torch.__version__} to use nms or qnms"
    )
