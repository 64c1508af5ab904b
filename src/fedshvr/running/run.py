"""One run: from a composed configuration to the files in the run folder."""

import json
import logging
import os
import sys
import traceback
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException
from hydra.types import RunMode
from hydra.utils import instantiate
from lightning import Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from omegaconf import DictConfig, OmegaConf

from fedshvr.compute.cpu import keep_freed_memory
from fedshvr.compute.streams import stream_seed
from fedshvr.data import sources
from fedshvr.data.augment import Augment, check_vectors
from fedshvr.data.holdings import Federation
from fedshvr.errors import Diverged, UserError, check
from fedshvr.federation.cohort import Cohorts
from fedshvr.federation.held_out import for_server, hold_out, of_the_rest
from fedshvr.federation.plan import make_plan
from fedshvr.rounds.federated import Federated
from fedshvr.rounds.options import Compute, Measures, Method, ServerRule, grouped
from fedshvr.running.cores import lay_out
from fedshvr.running.folder import (
    RunFolder,
    closing_table,
    draw_partition,
    finished_before,
    plan_table,
    score,
    write_end,
    write_partition,
)
from fedshvr.running.profiling import Profile
from fedshvr.running.progress import Progress
from fedshvr.running.wandb_run import RunEnd


def run(cfg: DictConfig) -> float | None:
    """Train and return the last accuracy (`runfolder.score`); bad input and divergence end in one sentence.

    A job of a sweep that has finished before is skipped, one that was broken off goes on, and one that fails leaves
    its reason in summary.json without stopping the others.
    """
    quiet()
    keep_freed_memory()
    torch.set_num_threads(1)  # threads of OpenMP that are there before a fork would be missing after it
    folder, sweep = Path(cfg.paths.run), HydraConfig.get().mode == RunMode.MULTIRUN
    config = cast(dict[str, Any], OmegaConf.to_container(cfg, resolve=True))
    if sweep and (before := finished_before(folder, config)):
        print(f"{folder}: finished before, skipped")
        return score(before)
    try:
        return _run(cfg, config, "last" if sweep else cfg.ckpt_path)
    except Exception as raised:
        error = raised.__cause__ if isinstance(raised, InstantiationException) and raised.__cause__ else raised
        one_sentence = isinstance(error, (UserError, Diverged))
        if not sweep:
            sys.exit(f"error: {error}") if one_sentence else None
            raise
        print(f"{folder}: failed: {error}" if one_sentence else traceback.format_exc(), file=sys.stderr)
        write_end(folder, config, status="failed", error=str(error))
        return None


def _run(cfg: DictConfig, config: dict[str, Any], ckpt_path: str | None) -> float | None:
    check_config(cfg)
    folder = Path(cfg.paths.run)
    federation, module = build(cfg)
    layout = lay_out(cfg.trainer, HydraConfig.get(), cfg.threads, module, cfg.rounds)
    if rank_zero():
        write_partition(folder, federation, cfg.seed)
        print(plan_table(federation, module), layout, sep="\n", flush=True)
    if cfg.dry_run:
        if rank_zero():
            draw_partition(folder, federation)
            print(f"partition.json and partition.png are in {folder}")
        return None
    module.state_folder = folder
    files = RunFolder(folder, federation, config)
    checkpoints = ModelCheckpoint(
        folder / "checkpoints",
        save_top_k=0,
        save_last=True,
        every_n_epochs=cfg.checkpoint_every,
        save_on_train_epoch_end=True,
    )
    callbacks: list[Callback] = [files, Progress(cfg.rounds), RunEnd(folder), checkpoints]
    if cfg.profile:
        callbacks.insert(0, Profile())
    loggers = instantiate(cfg.logger) if rank_zero() else []
    own = {"logger": loggers or False, "callbacks": callbacks, "default_root_dir": folder}
    trainer: Trainer = instantiate(cfg.trainer, **own, **layout.trainer_options())
    with trainer.precision_plugin.tensor_init_context():
        federation.cast(torch.get_default_dtype())
    trainer.fit(module, ckpt_path=resume_path(ckpt_path, folder), weights_only=True)
    if not trainer.is_global_zero:
        return None
    summary = json.loads((folder / "summary.json").read_text())  # the processes that trained may have been others
    print(closing_table(folder, summary), flush=True)
    return score(summary)


def check_config(cfg: DictConfig) -> None:
    check(cfg.rounds >= 1, f"rounds={cfg.rounds}: must be at least 1")
    check(cfg.checkpoint_every >= 1, f"checkpoint_every={cfg.checkpoint_every}: must be at least 1")
    check(
        cfg.choices.setting == "text" or cfg.data.name == "mnist",
        f"setting={cfg.choices.setting}: is about the paper's MNIST experiment; must be text with data={cfg.data.name}",
    )


def build(cfg: DictConfig) -> tuple[Federation, Federated]:
    """The federation and its orchestrator."""
    images = sources.load(**cfg.data)
    local = instantiate(cfg.client)
    objective = instantiate(cfg.algorithm.objective)
    augments = {"clean": Augment(), "weak": instantiate(cfg.augment), "strong": instantiate(cfg.augment_strong)}
    if images.x.dim() == 2:
        check_vectors(images.name, (*objective.views, *objective.label_views), augments)
    held_out = hold_out(images.y.numpy(), cfg.validation, cfg.seed)
    server = for_server(images.y.numpy(), cfg.server_labels, held_out, cfg.seed)
    splits = of_the_rest(images.y.numpy(), np.union1d(held_out, server), instantiate(cfg.partition))
    plan = make_plan(splits, local, objective.uses_unlabeled, cfg.reveal_labels, cfg.weighting)
    federation = Federation(images, splits, plan, held_out, server)
    torch.manual_seed(stream_seed(cfg.seed, "network"))  # every method starts from the same theta
    network = instantiate(cfg.model, input_shape=tuple(images.x.shape[1:]), classes=len(images.classes))
    parts = {name: instantiate(cfg.algorithm[name]) for name in ("correction", "aggregation")}
    method = Method(objective, local=local, **parts)
    names = [f.name for kind in (Cohorts, ServerRule, Compute, Measures) for f in fields(kind) if f.name != "optimizer"]
    options = grouped(optimizer=instantiate(cfg.server), **{name: cfg[name] for name in names})
    module = Federated(network, federation, method, augments, **options)
    return federation, module


def resume_path(ckpt_path: str | None, folder: Path) -> str | None:
    """The checkpoint to continue from; `last` is the run folder's own, or a fresh start if there is none yet."""
    if ckpt_path is None:
        return None
    if ckpt_path != "last":
        check(Path(ckpt_path).is_file(), f"ckpt_path={ckpt_path}: there is no such file; give a path or 'last'")
        return ckpt_path
    last = folder / "checkpoints" / "last.ckpt"
    if last.is_file():
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
