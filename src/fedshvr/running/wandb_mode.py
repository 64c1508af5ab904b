"""Online when W&B has a key for its server, offline otherwise."""

import os
from typing import Any

from fedshvr.errors import UserError


def has_key() -> bool:
    """Asked of W&B, which knows the server's address and the places of its key; without a prompt and a request."""
    import wandb

    wandb.setup(silent())
    try:
        return wandb.login(prompt=False, verify=False)
    except wandb.errors.AuthenticationError as error:
        raise UserError(f"logger=wandb: {error}; `wandb login` sets the key, logger=csv needs none") from error


def mode() -> str:
    return os.environ.get("WANDB_MODE") or ("online" if has_key() else "offline")


def silent() -> Any:
    import wandb

    return wandb.Settings(silent=True, console="off", x_disable_stats=True)
