"""Wrong command lines: each ends in one sentence that names the option, the value and what is valid."""

import json
import os
import subprocess
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from pathlib import Path

import pytest
from conftest import QUICK, ROOT, compose_train, environment
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from fedshvr.errors import UserError
from fedshvr.running.command_line import sentence
from fedshvr.running.run import run
from fedshvr.running.schema import Root

CONFIGS = ROOT / "configs"
Cli = Callable[..., subprocess.CompletedProcess]

EARLY = "callbacks.early_stopping"
WRONG = {  # a command line, or several options of one, and how its sentence begins
    # the root: types and ranges
    "rounds=abc": "rounds=abc: must be a whole number of at least 1",
    "rounds=2.5": "rounds=2.5: must be a whole number of at least 1",
    "rounds=0": "rounds=0: must be a whole number of at least 1",
    "rounds=-1": "rounds=-1: must be a whole number of at least 1",
    "rounds=null": "rounds=None: must be a whole number",
    "rounds=[1]": "rounds=[1]: must be a whole number",
    "rounds=true": "rounds=True: must be a whole number",
    "seed=x": "seed=x: must be a whole number",
    "seed=1.5": "seed=1.5: must be a whole number",
    "seed=${nowhere}": "seed: Interpolation key 'nowhere' not found",
    "validation=x": "validation=x: must be a finite number",
    "validation=1.5": "validation=1.5: must be at least 0 and below 1",
    "validation=-0.1": "validation=-0.1: must be at least 0 and below 1",
    "validation=nan": "validation=nan: must be a finite number",
    "participation=0": "participation=0: must be above 0 and at most 1",
    "participation=1.5": "participation=1.5: must be above 0 and at most 1",
    "participation=inf": "participation=inf: must be a finite number",
    "participation=all": "participation=all: must be a finite number",
    "weighting=size": "weighting=size: must be one of samples, labeled, uniform",
    "weighting=3": "weighting=3: must be a word",
    "reveal_labels=maybe": "reveal_labels=maybe: must be true or false",
    "buffers=mean": "buffers=mean: must be one of average, local",
    "evaluate=best": "evaluate=best: must be one of theta, ema",
    "ema_decay=1": "ema_decay=1: must be at least 0 and below 1",
    "ema_decay=nan": "ema_decay=nan: must be a finite number",
    "engine=fast": "engine=fast: must be one of ",
    "compile=inductor engine=vectorized": "compile=inductor: works with engine=sequential",
    "threads=0": "threads=0: must be a whole number of at least 1 or null",
    "threads=-2": "threads=-2: must be a whole number",
    "threads=two": "threads=two: must be a whole number",
    "client_state=cloud": "client_state=cloud: must be one of device, cpu, disk",
    "profile=2": "profile=2: must be true or false",
    "server_loss_every=-1": "server_loss_every=-1: must be a whole number of at least 0",
    "optimality_gap=yes_please": "optimality_gap=yes_please: must be true or false",
    "tags=word": "tags=word: must be a list, each a word",
    "tags=[1]": "tags=[1]: must be a list, each a word",
    "dry_run=7": "dry_run=7: must be true or false",
    "ckpt_path=nowhere.ckpt": "ckpt_path=nowhere.ckpt: there is no such file",
    "checkpoint_every=0": "checkpoint_every=0: must be a whole number of at least 1",
    "checkpoint_every=often": "checkpoint_every=often: must be a whole number",
    "setting=closest": "setting=closest: is about the paper's MNIST experiment; must be text with data=digits",
    # names that are not there
    "rouns=3": "rouns=3: is no option of a run, which has ",
    "+rouns=3": "rouns=3: is no option of a run, which has ",
    "sever=adam": "sever=adam: is no option of a run, which has ",
    "client.etaa=1": "client.etaa=1: is no option of client, which has batch_labeled, ",
    "+client.foo=1": "client.foo=1: is no option of client, which has batch_labeled, ",
    "+partition.foo=1": "partition.foo=1: is no option of partition, which has clients, ",
    "partition=dirichlet partition.concentratoin=1": "partition.concentratoin=1: is no option of partition, which has ",
    "+model.foo=1": "model.foo=1: is no option of model, which has dropout, ",
    "+server.foo=1": "server.foo=1: is no option of server, which has ",
    "+augment.foo=1": "augment.foo=1: is no option of augment, which has flip, pixels",
    "+data.foo=1": "data.foo=1: is no option of data, which has ",
    "+algorithm.foo=1": "algorithm.foo=1: is no option of algorithm, which has ",
    "+algorithm.objective.foo=1": "algorithm.objective.foo=1: is no option of algorithm.objective, which has ",
    "+algorithm.correction.foo=1": "algorithm.correction.foo=1: is no option of algorithm.correction, which has option",
    "+algorithm.aggregation.foo=1": "algorithm.aggregation.foo=1: is no option of algorithm.aggregation, which has ",
    "+trainer.foo=1": "trainer.foo=1: is no option of trainer, which has ",
    "data=imagenet": "data=imagenet: must be one of cifar10, cifar10_features, digits, fashion_mnist, huggingface, "
    "image_folder, mnist, npz, torchvision",
    "partition=random": "partition=random: must be one of dirichlet, iid, mismatch, some_labeled, two_class_labels",
    "algorithm=fedsgd": "algorithm=fedsgd: must be one of ",
    "algorithm/objective=none": "algorithm/objective=none: must be one of ",
    "logger=[csv,paper]": "logger=paper: must be one of csv, mlflow, tensorboard, wandb",
    "callbacks=mine": "callbacks=mine: must be one of early_stopping, none",
    "debug=all": "debug=all: must be one of default, none, profile",
    "~checkpoint_every": "checkpoint_every: is missing; must be a whole number of at least 1",
    "~partition.clients": "partition.clients: is missing; must be a whole number",
    "client.eta=[1": "client.eta=[1: ",
    # the clients
    "client.eta=fast": "client.eta=fast: must be a finite number",
    "client.eta=0": "client.eta=0: must be positive",
    "client.eta=-1": "client.eta=-1: must be positive",
    "client.eta=nan": "client.eta=nan: must be a finite number",
    "client.eta=inf": "client.eta=inf: must be a finite number",
    "client.epochs=0": "client.epochs=0: must be positive",
    "client.epochs=two": "client.epochs=two: must be a finite number",
    "client.batch_labeled=0": "client.batch_labeled=0: must be at least 1",
    "client.batch_labeled=1.5": "client.batch_labeled=1.5: must be a whole number",
    "client.batch_unlabeled=-1": "client.batch_unlabeled=-1: must be at least 1",
    "client.momentum=1": "client.momentum=1: must be at least 0 and below 1",
    "client.momentum=0.9": "client.momentum=0.9: must be 0, because ControlVariates assumes plain SGD",
    "client.weight_decay=-1": "client.weight_decay=-1: must be at least 0",
    "client.sampling=all": "client.sampling=all: must be one of replacement, shuffle",
    "client.rounding=up": "client.rounding=up: must be one of floor, ceil",
    "client.steps=many": "client.steps=many: must be one of paper, step_matched",
    # the other parts
    "partition.clients=ten": "partition.clients=ten: must be a whole number",
    "partition.clients=0": "clients=0: ",
    "partition.clients=5000": "clients=5000",
    "partition.labeled_per_client=5000": "labeled_per_client=5000",
    "partition.unlabeled=some": "partition.unlabeled=some: must be a whole number or null",
    "partition=dirichlet partition.concentration=0": "concentration=0",
    "partition=mismatch partition.mismatch_ratio=1.5": "mismatch_ratio=1.5: must be between 0 and 1",
    "model.hidden=16": "model.hidden=16: must be a list, each a whole number",
    "model.hidden=[wide]": "model.hidden=['wide']: must be a list, each a whole number",
    "model.hidden=[0]": "model.hidden=[0]: every layer needs a positive size",
    "model.width=0": "model.width=0: must be positive",
    "model.dropout=1": "model.dropout=1: must be at least 0 and below 1",
    "model.init=zero": "model.init=zero: must be one of ",
    "model=cnn13": "model=cnn13: images of 8x8 are too small",
    "model._target_=no.such.Net": "model._target_=no.such.Net: ",
    "augment.pixels=few": "augment.pixels=few: must be a whole number",
    "server.lr=-1": "server.lr=-1: must be at least 0",
    "server.lr=fast": "server.lr=fast: must be a finite number",
    "server.lr=nan": "server.lr=nan: must be a finite number",
    "+server.momentum=-1": "server: Invalid momentum value: -1",
    "ramp.epochs=x": "algorithm.objective.ramp.epochs=x: must be a finite number",
    "ramp.shape=cubic": "ramp.shape=cubic: must be one of ",
    "ramp.by=week": "ramp.by=week: must be one of ",
    "algorithm.objective.alpha1=-1": "algorithm.objective.alpha1=-1: must be at least 0",
    "algorithm.objective.alpha0=x": "algorithm.objective.alpha0=x: must be a finite number",
    "algorithm.objective.relabel=never": "algorithm.objective.relabel=never: must be one of ",
    "algorithm.objective.label_view=strong": "algorithm.objective.label_view=strong: must be one of ",
    "algorithm.correction.option=III": "algorithm.correction.option=III: must be one of ",
    "data.name=imagenet": "data.name=imagenet: must be one of ",
    "data.scaling=raw": "data.scaling=raw: must be one of ",
    "data.download=maybe": "data.download=maybe: must be true or false",
    # privacy
    "privacy=local": "privacy=local: must be one of central, none",
    "privacy=central privacy.clip=0": "privacy.clip=0: must be positive",
    "privacy=central privacy.clip=long": "privacy.clip=long: must be a finite number",
    "privacy=central privacy.noise=-1": "privacy.noise=-1: must be at least 0",
    "privacy=central privacy.delta=1": "privacy.delta=1: must be above 0 and below 1",
    "privacy=central algorithm/aggregation=median": "privacy=central: Median is no sum of the clients' moves",
    "privacy=central algorithm/aggregation=trimmed_mean": "privacy=central: TrimmedMean is no sum of ",
    "privacy=central algorithm=grouping": "privacy=central: Grouped is no sum of the clients' moves",
    "privacy=central algorithm=fedmatch": "privacy=central: the clients of FedMatch see each other's models",
    "privacy=central algorithm.correction.option=I": "algorithm.correction.option=I: must be II with privacy=central",
    "privacy=central algorithm=fed_ladder": "privacy=central: the network has batch statistics",
    "privacy=central algorithm=fed_ladder buffers=local": "privacy=central: the network has batch statistics",
    "privacy=central on_client_error=skip": "on_client_error=skip: must be fail with privacy=central",
    "privacy=central attack=scale": "attack=scale: must be none with privacy=central",
    "privacy=central stragglers=0.5": "stragglers=0.5: must be 0 with privacy=central",
    "privacy=central algorithm=fed_shvr algorithm/aggregation=average partition=dirichlet":
        "privacy=central: with ",
    # Lightning's
    "trainer.devices=0": "trainer.devices=0: on the CPU it must be auto or a number of processes, at least 1",
    "trainer.devices=11": "trainer.devices=11: must be at most 10 in all, one process for each client",
    "trainer=ddp trainer.devices=11": "trainer.devices=11: must be at most 10 in all, one process for each client",
    "trainer.accelerator=abacus": "trainer: ",
    "trainer.precision=7": "trainer.precision=7: must be ",
    "trainer.num_nodes=few": "trainer.num_nodes=few: must be a whole number",
    "+trainer.logger=true": "trainer.logger=True: is the run's own; logger= sets it",
    "callbacks=early_stopping": f"{EARLY}.monitor=val_acc: must be one of test_acc, test_loss; validation=0.1 holds",
    f"callbacks=early_stopping validation=0.1 {EARLY}.patience=x": f"{EARLY}.patience=x: must be a whole number",
    f"callbacks=early_stopping validation=0.1 {EARLY}.mode=up": f"{EARLY}: `mode` can be min, max, got up",
    "+callbacks.mine=3": "callbacks.mine=3: must be a group of options with a _target_",
    "+callbacks.mine._target_=no.such.Thing": "callbacks.mine._target_=no.such.Thing: ",
}  # fmt: skip
NEAR = {"rouns=3": "rounds", "+rouns=3": "rounds", "sever=adam": "server", "client.etaa=1": "client.eta"}
NEAR |= {"partition=dirichlet partition.concentratoin=1": "partition.concentration"}


def composed(arguments: list[str]) -> DictConfig:
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return compose("train", arguments, return_hydra_config=True)


@cache
def default() -> DictConfig:
    return composed(QUICK)


def with_values(line: str) -> DictConfig | None:
    """The default configuration with new values in it, as Hydra puts them there; None if it must compose anew."""
    cfg = deepcopy(default())
    for override in OverridesParser.create().parse_overrides(line.split(" ")):
        key, groups = override.key_or_group, cfg.hydra.runtime.choices
        there = OmegaConf.select(cfg, key) is not None
        if key in groups or override.is_delete() or not (there or override.is_add()):
            return None
        OmegaConf.update(cfg, key, override.value(), force_add=override.is_add())
    return cfg


def refusal(line: str, folder: Path) -> str:
    """The sentence that a command line ends in, without its own process."""
    arguments = [*QUICK, *line.split(" ")]
    try:
        cfg = with_values(line) or composed(arguments)
    except HydraException as error:
        return sentence(error, CONFIGS, arguments)
    with pytest.raises(UserError) as refused:
        run(cfg, folder)
    return str(refused.value)


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_command_line_is_one_sentence(line: str, tmp_path: Path) -> None:
    said = refusal(line, tmp_path / "run")
    assert said.startswith(WRONG[line])
    assert "\n" not in said
    assert said.endswith(f"; did you mean {NEAR[line]}?" if line in NEAR else "")
    assert not (tmp_path / "run").exists()


def test_there_are_many() -> None:
    assert len(WRONG) >= 80


def test_the_schema_has_exactly_what_the_root_has() -> None:
    assert set(Root.__annotations__) - {"callbacks", "logger"} <= set(compose_train()) <= set(Root.__annotations__)


LINES = ["rounds=abc", "rouns=3", "data=imagenet", "partition.clients=ten", "trainer.devices=11"]


def test_the_command_line_exits_with_2_and_leaves_nothing(cli: Cli, tmp_path: Path) -> None:
    for line in LINES:
        done = cli(line, "logger=csv")
        assert done.returncode == 2, done.stderr
        assert done.stderr.startswith(f"error: {WRONG[line]}")
        assert done.stderr.count("\n") == 1
        assert done.stdout == ""
    assert [path for path in (tmp_path / "logs").rglob("*") if path.is_file()] == []
    full = [*map(str, [os.sys.executable, ROOT / "src" / "train.py"]), "rounds=abc"]
    asked = environment() | {"HYDRA_FULL_ERROR": "1"}
    traced = subprocess.run(full, cwd=tmp_path, env=asked, capture_output=True, text=True, timeout=60)
    assert "Traceback" in traced.stderr
    assert "UserError: rounds=abc" in traced.stderr


def test_a_wrong_job_does_not_stop_its_sweep(cli: Cli, tmp_path: Path) -> None:
    done = cli("-m", *QUICK, "rounds=1", "client.eta=0.1,fast", "hydra.sweep.dir=s")
    assert done.returncode == 1
    statuses = {path.parent.name: json.loads(path.read_text()) for path in (tmp_path / "s").glob("*/summary.json")}
    assert sorted(summary["status"] for summary in statuses.values()) == ["failed", "finished"]
    assert "client.eta=fast: must be a finite number" in done.stdout


def test_every_choice_of_every_group_is_of_the_declared_types() -> None:
    """What we ship is never refused by its types."""
    from fedshvr.running.parts import check_part

    given = {"model": {"input_shape", "classes"}, "partition": {"y"}, "server": {"params"}}
    parts = {"partition", "augment", "augment_strong", "model", "client", "server", "ramp", "trainer", "privacy"}
    parts |= {"algorithm/objective", "algorithm/correction", "algorithm/aggregation"}
    for group in sorted(parts):
        for path in sorted((CONFIGS / group).glob("*.yaml")):
            cfg = compose_train(f"{group}={path.stem}")
            node = OmegaConf.to_container(OmegaConf.select(cfg, group.replace("/", ".")), resolve=True)
            check_part(group, node, given.get(group, ()))
