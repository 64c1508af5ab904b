"""The command line of a run: what is wrong with it ends in one sentence and exit code 2, Hydra's errors too."""

import os
import re
import sys
from contextlib import suppress
from errno import EACCES, EDQUOT, EIO, EISDIR, ENAMETOOLONG, ENOSPC, ENOTDIR, EPERM, EROFS
from pathlib import Path
from typing import NoReturn

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedshvr.errors import Ended, Stopped, UserError, no_option
from fedshvr.running.schema import resolved
from fedshvr.running.stopped import end, note_folder, that_goes_on, this_command

REFUSED = (ENOSPC, EDQUOT, EROFS, EACCES, EPERM, ENOTDIR, EISDIR, ENAMETOOLONG, EIO)  # by the file system
FULL_ERROR = "HYDRA_FULL_ERROR"  # Hydra's: 1 asks for tracebacks


def job(cfg: DictConfig, tracebacks: bool) -> float | None:
    """What Hydra calls: the run, or the sentence that says why there is none."""
    if not tracebacks:
        os.environ.pop(FULL_ERROR, None)  # set by who started Hydra, to be handed its errors
    alone, folder = HydraConfig.get().mode == RunMode.RUN, Path(HydraConfig.get().runtime.output_dir)
    try:
        if alone:
            resolved(cfg)
        from fedshvr.running.run import rank_zero, run  # importing torch takes seconds

        if alone and not cfg.dry_run and rank_zero():
            note_folder(sys.argv[1:], folder)
        return run(cfg)
    except (UserError, Ended, OSError) as error:
        if tracebacks or not (problem := told(error)):
            raise
        with suppress(OSError):  # there is something in it
            folder.rmdir()
        refuse(problem)
    except Stopped as stopped:
        with suppress(OSError):
            folder.rmdir()
        if not alone:
            raise  # the sweep ends
        end_run(stopped, folder, cfg)


def end_run(stopped: Stopped, folder: Path, cfg: DictConfig) -> NoReturn:
    """Of several ranks the first says it for all."""
    from fedshvr.running.run import rank_zero

    said = f"{stopped} after {rounds_of(folder)} of {cfg.rounds} rounds"
    instead = that_goes_on(folder, cfg.ckpt_path) if folder.is_dir() and not cfg.dry_run else []
    end(stopped, said, this_command(*instead) if rank_zero() else None)


def rounds_of(folder: Path) -> int:
    """The whole rounds of a run."""
    path = folder / "metrics.csv"
    return max(0, path.read_text().count("\n") - 1) if path.is_file() else 0


def told(error: Exception) -> Exception | None:
    """The error that says it in a sentence: for what the file system refuses, the path and its reason."""
    if not isinstance(error, OSError):
        return error
    return Ended(f"{error.filename or 'a file'}: {error.strerror}") if error.errno in REFUSED else None


def refuse(error: Exception) -> NoReturn:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(1 if isinstance(error, Ended) else 2)


def refuse_as_hydra(error: Exception, configs: Path, arguments: list[str]) -> NoReturn:
    """For what Hydra could not compose, write or run; any other error is raised again."""
    if isinstance(error, OSError) and (problem := told(error)):
        refuse(UserError(f"hydra.run.dir or hydra.sweep.dir: must be a folder that can be written ({problem})"))
    if not isinstance(error, (HydraException, OmegaConfBaseException)):
        raise error
    refuse(UserError(sentence(error, configs, arguments)))


def sentence(error: Exception, configs: Path, arguments: list[str]) -> str:
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, name = error.missing_cfg_file.rpartition("/")
        valid = error.options or sorted(path.stem for path in (configs / group).glob("*.yaml"))  # of a list it has none
        return f"{group or '--config-name'}={name}: must be one of {', '.join(valid)}"
    if isinstance(error, OverrideParseException):
        return f"{error.override}: {first_line(error)}"
    unknown = re.search(r"Could not override '([^']+)'", str(error))
    if unknown:
        return str(unknown_key(unknown[1], configs, arguments))
    return " ".join(filter(None, [first_line(error), first_line(error.__cause__)]))


def first_line(error: BaseException | None) -> str:
    return str(error).strip().partition("\n")[0] if error else ""


def unknown_key(key: str, configs: Path, arguments: list[str]) -> UserError:
    """An option that does not exist, beside those that do in the same place."""
    value = next((a.partition("=")[2] for a in arguments if a.partition("=")[0] == key), "")
    others = [a for a in arguments if "=" in a and not a.startswith(("-", f"{key}="))]
    cfg = composed(configs, others)
    groups = set(cfg.hydra.runtime.choices)
    owner, dot, name = key.rpartition(".")
    node = OmegaConf.select(cfg, owner) if dot else cfg
    if not isinstance(node, DictConfig):
        owner, name, node = "", key, cfg
    names = {str(n) for n in node} - {"hydra"}
    return no_option(owner, name, value, names if owner else names | {g for g in groups if "@" not in g})


def composed(configs: Path, arguments: list[str]) -> DictConfig:
    """The configuration of these arguments, or the default one if they are wrong too."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(configs), version_base="1.3"):
        try:
            return compose("train", arguments, return_hydra_config=True)
        except (HydraException, OmegaConfBaseException):
            return compose("train", return_hydra_config=True)
