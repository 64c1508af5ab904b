"""What the root of a configuration holds: names, types and simple ranges. The defaults are in configs/train.yaml.

No heavy imports: a wrong option is refused before torch is loaded.
"""

from typing import Annotated, Any, TypedDict, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedshvr.errors import UserError
from fedshvr.running.typed import Least, check_options

Part = dict[str, Any]  # a node with a _target_: its options are those of the target


class Algorithm(TypedDict, total=False):
    objective: Part
    correction: Part
    aggregation: Part
    reveal_labels: bool


class Groups(TypedDict, total=False):
    """What a choice may leave empty."""

    setting: dict[str, Any]
    scale: dict[str, Any]
    sweep: dict[str, Any]
    logger: dict[str, Any] | None
    callbacks: dict[str, Any] | None


class Root(Groups):
    data: Part
    partition: Part
    augment: Part
    augment_strong: Part
    model: Part
    client: Part
    server: Part
    ramp: Part
    algorithm: Algorithm
    privacy: Part
    trainer: Part
    seed: int
    rounds: Annotated[int, Least(1)]
    validation: float
    participation: float
    client_dropout: float
    stragglers: float
    attack: str
    attackers: Annotated[int, Least(1)]
    on_client_error: str
    weighting: str
    augment_labeled: bool
    reveal_labels: bool
    server_labels: Annotated[int, Least(0)]
    server_epochs: float
    buffers: str
    evaluate: str
    ema_decay: float
    engine: str
    compile: str | None
    threads: Annotated[int, Least(1)] | None
    client_state: str
    profile: bool
    server_loss_every: Annotated[int, Least(0)]
    optimality_gap: bool
    client_accuracy: bool
    tags: list[str]
    dry_run: bool
    ckpt_path: str | None
    resume_anyway: bool
    checkpoint_every: Annotated[int, Least(1)]
    choices: dict[str, str | None]
    paths: dict[str, str]


def resolved(cfg: DictConfig) -> dict[str, Any]:
    """The configuration as plain values, if all of it can be had and its root is as it must be."""
    try:
        config = cast(dict[str, Any], OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True))
    except OmegaConfBaseException as error:
        reason = str(error.msg or error).splitlines()[0]
        raise UserError(f"{error.full_key}: {reason}") from error
    check_options("", config, Root)
    return config
