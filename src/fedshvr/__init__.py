"""Fed-SHVR: federated semi-supervised learning with class distribution mismatch.

cfg = fedshvr.compose(["algorithm=fedavg", "rounds=5"])   a configuration, as the command line composes it
fedshvr.run(cfg, "logs/mine")                             train; the files are in the folder
model = fedshvr.load("logs/mine")                         the network with its preprocessing: images in, logits out
fedshvr.evaluate("logs/mine")                             accuracy by class and client, confusion
fedshvr.read_runs("logs")                                 every run below a folder, as dictionaries
fedshvr.partition.iid(labels, clients=10, ...)            who holds what
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedshvr import torchvision_compat

if TYPE_CHECKING:
    from fedshvr.errors import UserError as UserError
    from fedshvr.federation import partition as partition
    from fedshvr.library import compose as compose
    from fedshvr.library import read_runs as read_runs
    from fedshvr.library import run as run
    from fedshvr.running.evaluation import evaluate as evaluate
    from fedshvr.running.loading import load as load

__version__ = "0.2.0"
__all__ = ["UserError", "compose", "evaluate", "load", "partition", "read_runs", "run"]

_HOMES = {
    "UserError": "fedshvr.errors",
    "compose": "fedshvr.library",
    "evaluate": "fedshvr.running.evaluation",
    "load": "fedshvr.running.loading",
    "read_runs": "fedshvr.library",
    "run": "fedshvr.library",
}

torchvision_compat.apply_in_time()


def __getattr__(name: str) -> Any:
    """The public names, imported when they are first used (PEP 562): `import fedshvr` takes no time."""
    if name == "partition":
        return import_module("fedshvr.federation.partition")
    if name not in _HOMES:
        raise AttributeError(f"module 'fedshvr' has no attribute {name!r}: it has {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
