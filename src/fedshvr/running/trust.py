"""Files of others name classes by _target_: none is called unless it is one of those that a model is made of."""

from collections.abc import Iterator
from typing import Any

from hydra.utils import get_object

from fedshvr.errors import UserError, check

NETWORKS = ("fedshvr.models", "torchvision.models", "timm")
DATA = ("fedshvr.data.sources", "fedshvr.data.own", "fedshvr.data.libraries")
PARTS = (*NETWORKS, "fedshvr.data", "fedshvr.algorithms", "fedshvr.federation", "torch.optim")


def check_targets(where: str, part: Any, packages: tuple[str, ...], way_out: str = "") -> None:
    """Every target of a part, at any depth, is defined in these packages: a longer name may lead out of them again."""
    for name in targets(part):
        own = within(name, packages) and within(f"{defined_in(where, name)}.", packages)
        check(own, f"{where} names {name}, which is not of {', '.join(packages)}: it is not called{way_out}")


def targets(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        yield from (str(value) for key, value in part.items() if key == "_target_")
    for value in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from targets(value)


def within(name: str, packages: tuple[str, ...]) -> bool:
    return name.startswith(tuple(f"{package}." for package in packages))


def defined_in(where: str, name: str) -> str:
    try:
        return str(getattr(get_object(name), "__module__", ""))
    except Exception as error:
        raise UserError(f"{where} names {name}: {' '.join(str(error).split())}") from error
