"""The commands. No heavy imports: torch takes seconds, and `--help` and a mistyped option must not wait for it."""

import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import hydra
from omegaconf import DictConfig, OmegaConf

from fedshvr.compute.stopping import heeded
from fedshvr.errors import Stopped, UserError, check
from fedshvr.places import CONFIGS
from fedshvr.running.stopped import end, started_again, this_command

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is loaded: threads that wait do not spin
LONGEST = 255  # bytes of a file's name


@cache
def fresh(path: str) -> str:
    """A run folder of its own, also where the clock was set back or two runs begin in the same second."""
    for name in (path, *(f"{path}_{n}" for n in range(2, 1000))):
        try:
            Path(name).mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError:  # Hydra will meet it too
            return name
        return name
    return path


def short(name: str) -> str:
    """The folder of a sweep's job, named by its options; where they are too many for a name, by their digest."""
    if len(name.encode()) <= LONGEST:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:12]
    return name.encode()[: LONGEST - 13].decode(errors="ignore") + f"_{digest}"


for resolver in (fresh, short):  # of configs/hydra/default.yaml
    OmegaConf.register_new_resolver(resolver.__name__, resolver, replace=True)
TRACEBACKS = os.environ.get("HYDRA_FULL_ERROR") == "1"


def train() -> None:
    """fedshvr-train, python src/train.py: Hydra with its errors in one sentence."""
    arguments = sys.argv[1:]
    if "trainer=ddp" in arguments and {"-m", "--multirun"} & set(arguments):
        print(
            "error: trainer=ddp: its processes would start the whole sweep (-m) again; without it jobs take all cores "
            "of this machine, and hydra/launcher=joblib runs several at once",
            file=sys.stderr,
        )
        sys.exit(2)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra hands its errors on instead of printing them
    sys.argv[1:] = started_again(arguments)
    try:
        with stops():
            _train()
    except Exception as error:
        if TRACEBACKS:
            raise
        from fedshvr.running.command_line import refuse_as_hydra

        refuse_as_hydra(error, CONFIGS, arguments)


def report() -> None:
    """fedshvr-report, python src/report.py"""
    _report()


def evaluate() -> None:
    """fedshvr-evaluate, python src/evaluate.py"""
    _evaluate()


@contextmanager
def refusals() -> Iterator[None]:
    """Bad input ends in its sentence."""
    try:
        yield
    except UserError as error:
        sys.exit(f"error: {error}")


@contextmanager
def stops() -> Iterator[None]:
    """Ctrl-C and SIGTERM end with the command that goes on; that of a sweep is the same again."""
    try:
        with heeded():
            yield
    except Stopped as stopped:
        end(stopped, str(stopped), this_command())


@hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name="train")
def _train(cfg: DictConfig) -> float | None:
    from fedshvr.running.command_line import job  # not for --help: importing torch takes seconds

    return job(cfg, TRACEBACKS)


@hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name="report")
def _report(cfg: DictConfig) -> None:
    from fedshvr.reporting.build import report

    with refusals():
        report(cfg)


@hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name="evaluate")
def _evaluate(cfg: DictConfig) -> None:
    from fedshvr.running.evaluation import evaluate_command

    with refusals():
        evaluate_command(cfg)


def reproduce() -> None:
    """python src/reproduce.py"""
    with stops():
        _reproduce()


def _reproduce() -> None:
    from fedshvr.reporting.reproduce import budget, known_runs, reproduce
    from fedshvr.reporting.sweeps import SCALES
    from fedshvr.reporting.tables import markdown_table

    arguments = sys.argv[1:]
    scale = next((a.removeprefix("scale=") for a in arguments if a.startswith("scale=")), "laptop")
    options = [a for a in arguments if not a.startswith(("scale=", "--"))]
    logs, results = Path("logs"), Path("results")
    with refusals():
        check(scale in SCALES, f"scale={scale}: must be one of {', '.join(SCALES)}")
        for flag in (a for a in arguments if a.startswith("--")):
            check(flag == "--plan", f"{flag}: must be --plan")
    if "--plan" in arguments:
        print(*markdown_table(budget(scale, known_runs(logs, results))), sep="\n")
        return
    failed = reproduce(scale, logs, results, options)
    sys.exit(f"{failed} commands failed; the same again continues them" if failed else 0)
