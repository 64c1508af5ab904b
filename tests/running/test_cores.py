"""How many processes and threads a run has: a table of the rule, and what sweeps and options make of it."""

from types import SimpleNamespace
from typing import Any

import pytest
from conftest import compose_train
from omegaconf import OmegaConf
from torch import nn, zeros

from fedshvr.errors import UserError
from fedshvr.rounds.federated import Federated
from fedshvr.running import cores
from fedshvr.running.cores import Layout, Work, jobs_at_once, lay_out, processes_for, weight_uses, work_of
from fedshvr.running.run import build

JOBLIB = "hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher"
BASIC = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"
SLURM = "hydra_plugins.hydra_submitit_launcher.submitit_launcher.SlurmLauncher"
LOCAL = "hydra_plugins.hydra_submitit_launcher.submitit_launcher.LocalLauncher"
ONE_RUN: Any = SimpleNamespace(mode="RUN", launcher=OmegaConf.create({"_target_": BASIC}))


def sweep(launcher: str, **options: int) -> Any:
    return SimpleNamespace(mode="MULTIRUN", launcher=OmegaConf.create({"_target_": launcher, **options}))


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight cores, no GPU, nothing in the environment."""
    monkeypatch.setattr(cores, "cpu_count", lambda: 8)
    monkeypatch.setattr(cores, "_most_threads", 1)
    for name in ("OMP_NUM_THREADS", "LOCAL_RANK", "RANK", "WORLD_SIZE", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("clients", "giga", "rounds", "cores", "threads", "processes"),
    [
        (10, 0.46, 40, 2, 1, 1),  # digits: its rounds are too short
        (10, 0.46, 10_000, 2, 1, 1),  # ... however many there are
        (10, 183, 100, 2, 1, 2),  # mnist_noniid, scale=laptop
        (10, 183, 100, 8, 1, 8),
        (10, 183, 100, 64, 1, 10),  # a process for each client, not more
        (10, 183, 100, 1, 1, 1),
        (1, 183, 100, 8, 1, 1),
        (10, 183, 100, 8, 4, 2),  # threads=4
        (10, 183, 100, 2, 4, 1),
        (10, 23, 3, 2, 1, 1),  # mnist_noniid, scale=smoke: the run is too short
        (10, 23, 9, 2, 1, 2),
        (10, 1, 200, 2, 1, 2),  # just long enough
    ],
)
def test_the_rule(clients: int, giga: float, rounds: int, cores: int, threads: int, processes: int) -> None:
    assert processes_for(Work(clients, giga * 1e9, rounds), cores, threads)[0] == processes


@pytest.mark.parametrize(
    ("hydra", "jobs"),
    [
        (ONE_RUN, 1),
        (sweep(BASIC), 1),
        (sweep(SLURM), 1),
        (sweep(JOBLIB, n_jobs=2), 2),
        (sweep(JOBLIB, n_jobs=-1), 8),
        (sweep(JOBLIB, n_jobs=-3), 6),
        (sweep(LOCAL), 8),
        (sweep("unknown.Launcher"), 8),
    ],
)
def test_jobs_of_a_sweep_that_run_at_once(hydra: Any, jobs: int) -> None:
    assert jobs_at_once(hydra, 8) == jobs


def test_weights_are_counted_as_often_as_they_are_used() -> None:
    assert weight_uses(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), zeros(1, 1, 8, 8)) == 650  # with its biases
    assert weight_uses(nn.Conv2d(3, 4, 3, padding=1), zeros(1, 3, 8, 8)) == 64 * 4 * 27


@pytest.fixture(scope="module")
def digits() -> Federated:
    return build(compose_train())[1]


def test_the_work_of_digits(digits: Federated) -> None:
    """6 x 15,010 parameters, 20 samples a step, 260 steps a round; half of it for half of the clients."""
    work = work_of(digits, 40)
    assert (work.clients, work.operations, work.rounds) == (10, 6 * 15_010 * 20 * 260, 40)
    half = build(compose_train("participation=0.5"))[1]
    assert work_of(half, 40) == Work(5, work.operations / 2, 40)


def laid_out(module: Federated, *overrides: str, hydra: Any = ONE_RUN, rounds: int = 40) -> Layout:
    cfg = compose_train("trainer=cpu", *overrides)
    return lay_out(cfg.trainer, hydra, cfg.threads, module, rounds)


def test_digits_has_one_process_unless_asked(digits: Federated) -> None:
    said = "1 process of 1 thread (a round is 0.47 GFLOP, sharing it pays from 1); trainer.devices=8 forces 8"
    assert str(laid_out(digits)) == said
    assert str(laid_out(digits, "trainer.devices=3")) == "3 processes of 1 thread (trainer.devices=3)"
    assert str(laid_out(digits, "trainer.devices=1", "threads=2")) == "1 process of 2 threads (trainer.devices=1)"
    assert laid_out(digits, "trainer=ddp").trainer_options() == {}
    assert laid_out(digits, "trainer=ddp", "trainer.devices=auto").trainer_options() == {}
    for wrong in ("0", "many", "-1"):
        with pytest.raises(UserError, match=f"trainer.devices={wrong}: on the CPU it must be auto or a number"):
            laid_out(digits, f"trainer.devices={wrong}")


@pytest.fixture
def large(digits: Federated, monkeypatch: pytest.MonkeyPatch) -> Federated:
    """As if its rounds were long."""
    monkeypatch.setattr(cores, "work_of", lambda module, rounds: Work(10, 1e12, rounds))
    return digits


def test_a_large_run_has_all_cores(large: Federated) -> None:
    assert str(laid_out(large)) == "8 processes of 1 thread (10 clients, 8 cores); trainer.devices=1 forces one"
    assert laid_out(large, "threads=2").processes == 4
    assert laid_out(large, hydra=sweep(BASIC)).processes == 8


def test_jobs_at_once_share_the_cores(large: Federated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "4")  # as joblib does for two jobs on eight cores
    two = laid_out(large, hydra=sweep(JOBLIB, n_jobs=2))
    assert (two.processes, two.threads) == (4, 1)
    assert "4 cores, 2 jobs at once" in str(two)
    assert laid_out(large, hydra=sweep(JOBLIB, n_jobs=-1)).processes == 1
    assert laid_out(large, hydra=sweep(LOCAL)).processes == 1


def test_threads_that_are_asked_for_leave_fewer_processes(large: Federated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    layout = laid_out(large)
    assert (layout.processes, layout.threads) == (2, 4)


def test_a_process_that_had_threads_forks_processes_of_one(large: Federated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "_most_threads", 2)
    assert laid_out(large, "threads=2").threads == 1


@pytest.mark.parametrize("variable", ["LOCAL_RANK", "WORLD_SIZE"])
def test_a_process_of_another_launcher_stays_one(
    large: Federated, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "1")
    assert laid_out(large).processes == 1


def test_a_gpu_is_one_process(large: Federated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores.CUDAAccelerator, "is_available", staticmethod(lambda: True))
    cfg = compose_train()
    layout = lay_out(cfg.trainer, ONE_RUN, None, large, 40)
    assert layout.trainer_options() == {"devices": 1}
    cfg = compose_train("trainer.devices=2")
    assert lay_out(cfg.trainer, ONE_RUN, None, large, 40).trainer_options() == {}
    assert laid_out(large).processes == 8  # trainer=cpu
