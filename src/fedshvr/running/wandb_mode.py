"""Online when a W&B key is there, offline otherwise."""

import netrc
import os
from typing import Any


def has_key() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        return netrc.netrc().authenticators("api.wandb.ai") is not None
    except (FileNotFoundError, netrc.NetrcParseError):
        return False


def mode() -> str:
    return os.environ.get("WANDB_MODE") or ("online" if has_key() else "offline")


def silent() -> Any:
    import wandb

    return wandb.Settings(silent=True, console="off", x_disable_stats=True)
