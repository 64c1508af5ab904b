"""What is installed with the package is used, nothing else is needed, and no private name of others goes unnamed."""

import ast
import os
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from conftest import ROOT, SMALL

SOURCES = sorted((ROOT / "src").rglob("*.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OPTIONAL = {
    "datasets",
    "dp_accounting",
    "timm",
    "onnx",
    "onnxscript",
    "onnxruntime",
    "wandb_workspaces",
    "tensorboard",
    "mlflow",
    "optuna",
}


def name_of(requirement: str) -> str:
    return requirement.split(";")[0].split("[")[0].split(">")[0].split("=")[0].strip().lower().replace("_", "-")


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]


def test_what_is_imported_is_required_and_the_other_way_round() -> None:
    names = (
        {name for path in SOURCES for name in imported(path)} - set(sys.stdlib_module_names) - {"fedshvr"} - OPTIONAL
    )
    distributions = packages_distributions()
    needed = {distributions[name][0].lower().replace("_", "-") for name in names if name != "hydra_plugins"}
    assert needed == {name_of(requirement) for requirement in PROJECT["dependencies"]}


def test_one_place_has_the_version() -> None:
    assert PROJECT["dynamic"] == ["version"]
    assert "version" not in PROJECT


def run_digits(code: str, tmp_path: Path, **env: str) -> str:
    options = ["logger=csv", "rounds=1", "trainer=cpu", "trainer.devices=1", "hydra.run.dir=run", *SMALL]
    start = f"import sys; sys.argv = ['train.py', *{options!r}]; from fedshvr.cli import train; train(); {code}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"} | env
    command = [sys.executable, *(["-S"] if env else []), "-c", start]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_a_run_with_local_files_imports_no_package_of_other_choices(tmp_path: Path) -> None:
    """torchmetrics, which is Lightning's, imports torchvision if it is there: the next test takes it away."""
    others = {"wandb", "tensorboard", "mlflow", "optuna", "datasets", "timm", "onnx", "onnxruntime", "dp_accounting"}
    assert run_digits(f"print('found', *({others!r} & set(sys.modules)))", tmp_path) == "found"


def test_a_run_needs_neither_wandb_nor_torchvision(tmp_path: Path) -> None:
    """The same environment without them, as links to all else of it."""
    hidden = ("wandb", "torchvision", "timm", "datasets", "onnx", "tensorboard", "optuna", "dp_accounting")
    packages = tmp_path / "packages"
    packages.mkdir()
    for path in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if not path.name.startswith(hidden) and path.suffix != ".pth":
            (packages / path.name).symlink_to(path)
    path = os.pathsep.join([str(ROOT / "src"), str(packages)])
    assert run_digits("print('torchvision' in sys.modules)", tmp_path, PYTHONPATH=path) == "False"


# ---- private names ---------------------------------------------------------------------------------------------------

PRIVATE = {
    "lightning": {"_Launcher", "_configure_launcher", "_launcher", "_signal_connector", "_interrupt", "_experiment"}
    | {"_SubprocessScriptLauncher"},
    "torch": {"_C", "_functorch", "_python_dispatch", "_are_functorch_transforms_active", "_add_batch_dim"}
    | {"_unwrap_batched", "_remove_batch_dim", "_foreach_add_"},
    "wandb_workspaces": {"_to_model"},
    "matplotlib": {"_loc"},
    "namedtuple": {"_replace", "_fields", "_asdict"},  # documented, in spite of their names
    "os": {"_exit"},
}


def private_names(path: Path) -> Iterator[str]:
    """Names with one underscore in front that the file uses and that nothing in this package defines."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from [*(node.module or "").split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Import):
            yield from (part for alias in node.names for part in alias.name.split("."))


def defined(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in ast.walk(node.targets[0] if isinstance(node, ast.Assign) else node.target):
                if isinstance(target, ast.Name):
                    yield target.id
                elif isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
                    yield target.attr


def test_every_private_name_of_others_is_listed_here() -> None:
    used = {name for path in SOURCES for name in private_names(path) if name.startswith("_") and name[1:2] != "_"}
    own = {name for path in SOURCES for name in defined(path)}
    assert used - own <= {name for names in PRIVATE.values() for name in names}


def test_lightning_has_them() -> None:
    """`Forked` replaces the launcher; its processes keep their own signal handlers and call on_exception themselves."""
    from inspect import signature

    from lightning import Trainer
    from lightning.pytorch.loggers import WandbLogger
    from lightning.pytorch.strategies import DDPStrategy
    from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher
    from lightning.pytorch.strategies.launchers.launcher import _Launcher
    from lightning.pytorch.trainer import call

    strategy = DDPStrategy()
    assert strategy._launcher is None
    assert list(signature(strategy._configure_launcher).parameters) == []
    assert {"launch", "kill", "is_interactive_compatible"} <= set(dir(_Launcher))
    assert issubclass(_SubprocessScriptLauncher, _Launcher)
    assert list(signature(call._interrupt).parameters) == ["trainer", "exception"]
    trainer = Trainer(accelerator="cpu", devices=1, logger=False, enable_checkpointing=False)
    assert list(signature(trainer._signal_connector.register_signal_handlers).parameters) == []
    assert "_experiment" in WandbLogger.__init__.__code__.co_names


def test_torch_has_them() -> None:
    """Inside vmap: the level is found, the whole stack is had and one client's view of it given back."""
    import torch
    from torch._C import _functorch
    from torch.utils._python_dispatch import TorchDispatchMode

    from fedshvr.compute.stacked import current_vmap, for_all

    assert current_vmap() is None
    assert not torch._C._are_functorch_transforms_active()
    seen = []

    def one(x: torch.Tensor) -> torch.Tensor:
        seen.append((torch._C._are_functorch_transforms_active(), x.shape))
        return for_all(current_vmap(), lambda rows: rows * torch.arange(3.0)[:, None], x)

    assert torch.vmap(one)(torch.ones(3, 2)).tolist() == [[0, 0], [1, 1], [2, 2]]
    assert seen == [(True, torch.Size([2]))]
    assert {"_add_batch_dim", "_unwrap_batched", "_remove_batch_dim"} <= set(dir(_functorch))
    assert hasattr(TorchDispatchMode, "__torch_dispatch__")
    views = [torch.ones(2), torch.ones(3)]
    torch._foreach_add_(views, [torch.ones(2), torch.ones(3)], alpha=2.0)
    assert [view.tolist() for view in views] == [[3.0, 3.0], [3.0, 3.0, 3.0]]


def test_the_others_have_them() -> None:
    """The specification of a W&B workspace as text; the alignment of a table's cell, which has no setter."""
    from matplotlib.table import Cell
    from wandb_workspaces.workspaces import Workspace

    assert callable(Workspace._to_model)
    assert Cell((0, 0), 1, 1, loc="left")._loc == "left"


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, float("inf")),
        ({"cpu.max": "max 100000\n"}, float("inf")),
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, float("inf")),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
    ],
)
def test_a_container_limits_the_cores(files: dict[str, str], cores: float, tmp_path: Path) -> None:
    from fedshvr.compute.cpu import quota

    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert quota(tmp_path) == cores


def test_the_cores_are_those_that_joblib_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    from joblib import cpu_count as joblib_count

    from fedshvr.compute.cpu import cpu_count

    assert cpu_count() == joblib_count()
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "1")
    assert cpu_count() == 1
