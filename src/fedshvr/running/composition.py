"""A composed configuration within a Hydra job, and in a library call, where there is none."""

from copy import deepcopy
from pathlib import Path

from hydra.conf import HydraConf
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict

from fedshvr.errors import check


def hydra_job(folder: Path | None) -> HydraConf | None:
    """The job that this run is, if it is one: who calls the library gives a folder, or has no Hydra."""
    return HydraConfig.get() if folder is None and HydraConfig.initialized() else None


def settled(cfg: DictConfig, folder: Path | None) -> DictConfig:
    """The configuration with its folder and the names of its choices in it, so that no Hydra job is asked for them.

    hydra.compose(..., return_hydra_config=True) knows the choices; without it they stay null.
    """
    own = deepcopy(cfg)
    hydra = own.get("hydra")
    chosen = hydra.runtime.choices if hydra is not None else {}
    if OmegaConf.is_interpolation(own.paths, "run") or folder is not None:
        check(hydra is not None or folder is not None, "folder=None: give the run's folder, as in run(cfg, folder)")
        own.paths.run = str(folder or hydra.run.dir)
    for name in own.choices:
        if OmegaConf.is_interpolation(own.choices, name):
            own.choices[name] = chosen.get(name)
    with open_dict(own):
        own.pop("hydra", None)
    return own
