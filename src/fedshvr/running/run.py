"""One run: from a composed configuration to the files in the run folder."""

import json
import logging
import os
import signal
import sys
import traceback
import warnings
from contextlib import nullcontext, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hydra.conf import HydraConf
from hydra.types import RunMode
from lightning import Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher
from omegaconf import DictConfig

from fedshvr.compute.cpu import keep_freed_memory
from fedshvr.compute.stopping import asked, heeded, look, of_a_stop, patient
from fedshvr.compute.streams import stream_seed
from fedshvr.data.augment import Augment, check_views
from fedshvr.data.holdings import Federation
from fedshvr.data.images import checked
from fedshvr.errors import Ended, Unwritable, UserError, check, with_place
from fedshvr.federation.cohort import Cohorts
from fedshvr.federation.held_out import for_server, hold_out, of_the_rest
from fedshvr.federation.plan import make_plan
from fedshvr.models.logits import check_logits
from fedshvr.rounds.federated import Federated
from fedshvr.rounds.options import Compute, Measures, Method, ServerRule, grouped
from fedshvr.running.checkpoints import Checkpoints, EachRound, newest
from fedshvr.running.composition import hydra_job, settled
from fedshvr.running.cores import Layout, lay_out
from fedshvr.running.export import Export
from fedshvr.running.folder import (
    RunFolder,
    StayStopped,
    closing_table,
    draw_partition,
    finished_before,
    plan_table,
    score,
    write_end,
    write_partition,
)
from fedshvr.running.lock import Locked, locked
from fedshvr.running.parts import (
    check_part,
    make,
    make_callbacks,
    make_loggers,
    make_optimizer,
    trainer_options,
)
from fedshvr.running.profiling import Profile
from fedshvr.running.progress import Progress
from fedshvr.running.same_run import SameRun
from fedshvr.running.schema import resolved
from fedshvr.running.wandb_run import RunEnd, forget


def run(cfg: DictConfig, folder: Path | None = None) -> float | None:
    """Train and return the last accuracy (`folder.score`); raises UserError for bad input, Diverged for a lost run.

    Within a Hydra job the folder is Hydra's. A job of a sweep that has finished before is skipped, one that was broken
    off goes on, and one that fails leaves its reason in summary.json without stopping the others. Stopped is for all.
    """
    with heeded():
        look(ready=True)
        return _heeding(cfg, folder)


def _heeding(cfg: DictConfig, folder: Path | None) -> float | None:
    quiet()
    keep_freed_memory()
    torch.set_num_threads(1)  # threads of OpenMP that are there before a fork would be missing after it
    hydra = hydra_job(folder)
    cfg = settled(cfg, folder) if hydra is None else cfg
    if hydra is None or hydra.mode != RunMode.MULTIRUN:
        return _alone(cfg, resolved(cfg), hydra, cfg.ckpt_path)
    return _job_of_sweep(cfg, hydra)


def _job_of_sweep(cfg: DictConfig, hydra: HydraConf) -> float | None:
    folder = Path(cfg.paths.run)
    config: dict[str, Any] = {}
    try:
        config = resolved(cfg)
        if before := finished_before(folder, config):
            print(f"{folder}: finished before, skipped")
            return score(before)
        return _alone(cfg, config, hydra, "last")
    except Exception as error:
        one_sentence = isinstance(error, (UserError, Ended))
        print(f"{folder}: failed: {error}" if one_sentence else traceback.format_exc(), file=sys.stderr)
        if not isinstance(error, Locked):
            with suppress(Unwritable):  # sweep_end.py notices a job without an end
                write_end(folder, config, status="failed", error=with_place(error))
        return None


def _alone(cfg: DictConfig, config: dict[str, Any], hydra: HydraConf | None, ckpt_path: str | None) -> float | None:
    """The only process at work in the folder, but for its own ranks."""
    with locked(Path(cfg.paths.run)) if rank_zero() and not cfg.dry_run else nullcontext():
        return _run(cfg, config, hydra, ckpt_path)


def _run(cfg: DictConfig, config: dict[str, Any], hydra: HydraConf | None, ckpt_path: str | None) -> float | None:
    check_config(cfg)
    check_part("trainer", config["trainer"])
    folder = Path(cfg.paths.run)
    federation, module = build(cfg)
    layout = lay_out(cfg.trainer, hydra, cfg.threads, module, cfg.rounds)
    if cfg.dry_run:
        _show_plan(folder, federation, module, cfg.seed, layout)
        if rank_zero():
            draw_partition(folder, federation)
            print(f"partition.json and partition.png are in {folder}")
        return None
    resume = resume_path(ckpt_path, folder)
    if resume is None and rank_zero():
        forget(folder)
    module.state_folder = folder
    callbacks: list[Callback] = [Profile()] if cfg.profile else []
    files = RunFolder(folder, federation, config)
    callbacks += [files, Export(files), Progress(cfg.rounds), RunEnd(folder), StayStopped()]
    callbacks += [SameRun(config, cfg.resume_anyway), EachRound(folder / "checkpoints", cfg.checkpoint_every)]
    callbacks += make_callbacks(config.get("callbacks"), config["trainer"].get("callbacks"), module.evaluated())
    loggers = make_loggers(config.get("logger")) if rank_zero() else []
    own = {"logger": loggers or False, "callbacks": callbacks, "default_root_dir": folder, "plugins": Checkpoints()}
    trainer: Trainer = make("trainer", trainer_options(config["trainer"]), **own, **layout.trainer_options())
    _show_plan(folder, federation, module, cfg.seed, layout)
    with trainer.precision_plugin.tensor_init_context():
        federation.cast(torch.get_default_dtype())
    fit(trainer, module, resume)
    if not trainer.is_global_zero:
        return None
    summary = json.loads((folder / "summary.json").read_text())  # the processes that trained may have been others
    print(closing_table(folder, summary), flush=True)
    return score(summary)


def fit(trainer: Trainer, module: Federated, resume: str | None) -> None:
    """Lightning's fit, which stops on request (EachRound), not as Lightning does: that would be within collectives."""
    trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]
    try:
        with patient():
            trainer.fit(module, ckpt_path=resume, weights_only=True)
    except BaseException as error:
        if isinstance(trainer.strategy.launcher, _SubprocessScriptLauncher) and asked():
            trainer.strategy.launcher.kill(signal.SIGTERM)  # who started them was asked, not they
        raise (error if trainer.world_size == 1 else of_a_stop(error)) from error.__cause__


def _show_plan(folder: Path, federation: Federation, module: Federated, seed: int, layout: Layout) -> None:
    if rank_zero():
        write_partition(folder, federation, seed)
        print(plan_table(federation, module), layout, sep="\n", flush=True)


def check_config(cfg: DictConfig) -> None:
    name = cfg.data.get("name")
    check(
        cfg.choices.setting in ("text", None) or name == "mnist",
        f"setting={cfg.choices.setting}: is about the paper's MNIST experiment; must be text with data={name}",
    )


def build(cfg: DictConfig) -> tuple[Federation, Federated]:
    """The federation and its orchestrator."""
    images = checked(make("data", cfg.data))
    local = make("client", cfg.client)
    objective = make("algorithm.objective", cfg.algorithm.objective)
    augments = {"clean": Augment(), "weak": make("augment", cfg.augment)}
    augments["strong"] = make("augment_strong", cfg.augment_strong)
    augments["labeled"] = augments["weak" if cfg.augment_labeled else "clean"]
    check_views(images.name, images.x.shape[1:], (*objective.views, *objective.label_views), augments)
    held_out = hold_out(images.y.numpy(), cfg.validation, cfg.seed)
    server = for_server(images.y.numpy(), cfg.server_labels, held_out, cfg.seed)
    splits = of_the_rest(images.y.numpy(), np.union1d(held_out, server), make("partition", cfg.partition, "y"))
    plan = make_plan(splits, local, objective.uses_unlabeled, cfg.reveal_labels, cfg.weighting)
    federation = Federation(images, splits, plan, held_out, server)
    torch.manual_seed(stream_seed(cfg.seed, "network"))  # every method starts from the same theta
    network = make("model", cfg.model, input_shape=tuple(images.x.shape[1:]), classes=len(images.classes))
    check_logits(network, images.x[:2], len(images.classes))
    parts = {name: make(f"algorithm.{name}", cfg.algorithm[name]) for name in ("correction", "aggregation")}
    method = Method(objective, local=local, privacy=make("privacy", cfg.privacy), **parts)
    names = [f.name for kind in (Cohorts, ServerRule, Compute, Measures) for f in fields(kind) if f.name != "optimizer"]
    options = grouped(optimizer=make_optimizer(cfg.server), **{name: cfg[name] for name in names})
    module = Federated(network, federation, method, augments, **options)
    return federation, module


def resume_path(ckpt_path: str | None, folder: Path) -> str | None:
    """The checkpoint to continue from; `last` is the run folder's own, or a fresh start if there is none yet."""
    if ckpt_path is None:
        return None
    if ckpt_path != "last":
        check(Path(ckpt_path).is_file(), f"ckpt_path={ckpt_path}: there is no such file; give a path or 'last'")
        return ckpt_path
    if last := newest(folder / "checkpoints"):
        return str(last)
    if rank_zero():
        print(f"ckpt_path=last: no checkpoint in {folder} yet, starting from round 1")
    return None


def rank_zero() -> bool:
    ranks = (os.environ.get(name, "0") for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID"))
    return all(int(rank) == 0 for rank in ranks)


def quiet() -> None:
    """Lightning's advice about loaders and devices does not apply here."""
    for package in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(package).setLevel(logging.WARNING)
    for message in ("does not have many workers", "logging interval", "Checkpoint directory", "LeafSpec", "sync_dist"):
        warnings.filterwarnings("ignore", message=f".*{message}.*")
