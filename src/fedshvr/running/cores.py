"""How many processes and threads a run has on the CPU: a rule on the numbers of its plan, never on the clock."""

import multiprocessing
import os
import sys
from dataclasses import dataclass
from typing import Any

import torch
from hydra.conf import HydraConf
from lightning.pytorch.accelerators import CUDAAccelerator, MPSAccelerator
from omegaconf import DictConfig
from torch import Tensor, nn

from fedshvr.compute.cpu import cpu_count
from fedshvr.compute.forked import Forked
from fedshvr.errors import check
from fedshvr.rounds.federated import Federated

ROUND = 1e9  # operations: a shorter round would lose to its messages, some milliseconds, what sharing it gains
RUN = 2e11  # operations: a shorter run would lose to the start of the processes, a second or two
SMALL = 500_000  # parameters of a fully connected network whose products are too small for several threads
NO_FORK = "started as one of several, or where forking is not safe"


@dataclass(frozen=True)
class Work:
    """The size of a run: clients of a round, floating-point operations of their local steps, and rounds."""

    clients: int
    operations: float
    rounds: int


def processes_for(work: Work, cores: int, threads: int = 1) -> tuple[int, str]:
    """How many processes help, and why: min(cores / threads, clients of a round), but one for a small run.

    Small is a round of less than 1 GFLOP or a run of less than 200, where a local step counts 6 operations for each
    use of a weight by each sample: 2 forward and 4 backward.
    """
    processes = max(1, min(cores // threads, work.clients))
    if processes > 1 and work.operations < ROUND:
        return 1, f"a round is {work.operations / 1e9:.2g} GFLOP, sharing it pays from {ROUND / 1e9:.0f}"
    if processes > 1 and work.operations * work.rounds < RUN:
        return 1, f"the run is {work.operations * work.rounds / 1e9:.0f} GFLOP, sharing it pays from {RUN / 1e9:.0f}"
    return processes, f"{work.clients} client{'s' * (work.clients != 1)}, {cores} core{'s' * (cores != 1)}"


@dataclass(frozen=True)
class Layout:
    """Processes of a run, threads of each, and why they are so many."""

    processes: int
    threads: int
    reason: str
    hint: str = ""
    ours: bool = True  # the processes, if there are several, are forked from this one; else Lightning starts them

    def __str__(self) -> str:
        processes = "1 process" if self.processes == 1 else f"{self.processes} processes"
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        return f"{processes} of {threads} ({self.reason}){self.hint}"

    def trainer_options(self) -> dict[str, Any]:
        """The processes, for the Trainer; where none is forked, this one takes its threads."""
        if self.ours and self.processes > 1:
            return {"devices": self.processes, "strategy": Forked(self.threads)}
        set_threads(self.threads)
        return {"devices": 1} if self.ours else {}


def lay_out(
    trainer: DictConfig, hydra: HydraConf | None, threads: int | None, module: Federated, rounds: int
) -> Layout:
    """trainer.devices processes, or as many as help if it is auto; jobs of a sweep that run at once share the cores."""
    jobs = jobs_at_once(hydra, cpu_count()) if hydra else 1
    cores = max(1, cpu_count() // jobs)
    asked = threads or (0 if jobs > 1 else threads_of_environment())  # joblib sets OMP_NUM_THREADS by itself
    devices, cpu = trainer.devices, on_cpu(trainer.accelerator)
    number = int(devices) if str(devices).isdigit() else 1
    given, clients = f"trainer.devices={devices}", module.plan.clients
    many = f"{given}: must be at most {clients} in all, one process for each client"
    check(number * trainer.num_nodes <= clients, many)
    if trainer.get("strategy") or trainer.num_nodes > 1 or (devices != "auto" and not cpu):
        return Layout(number, asked or own_threads(module.network, cores // max(1, number)), given, ours=False)
    if not cpu:
        return Layout(1, asked or own_threads(module.network, cores), "a GPU does the work")
    if devices == "auto":
        number, reason = processes_for(work_of(module, rounds), cores, asked or 1) if may_fork() else (1, NO_FORK)
        other = 1 if number > 1 else min(cores, module.plan.clients)
        hint = f"; trainer.devices={other} forces {'one' if other == 1 else other}" if other != number else ""
        reason += f", {jobs} jobs at once" if jobs > 1 else ""
    else:
        valid = str(devices).isdigit() and number > 0
        check(valid, f"{given}: on the CPU it must be auto or a number of processes, at least 1")
        reason, hint = given, ""
    if number == 1:
        return Layout(1, asked or own_threads(module.network, cores), reason, hint)
    return Layout(number, 1 if threads_made() else asked or 1, reason, hint, ours=sys.platform == "linux")


def jobs_at_once(hydra: HydraConf | None, cores: int) -> int:
    """Jobs of a sweep that share this machine: joblib's n_jobs, all cores for a launcher that is not known here."""
    if hydra is None:
        return 1
    launcher = hydra.launcher.get("_target_", "") if str(hydra.mode).endswith("MULTIRUN") else ""
    if "Joblib" in launcher:
        jobs = int(hydra.launcher.n_jobs)
        return max(1, jobs if jobs > 0 else cores + 1 + jobs)
    return 1 if not launcher or launcher.endswith(("BasicLauncher", "SlurmLauncher")) else cores


def threads_of_environment() -> int:
    return int(os.environ.get("OMP_NUM_THREADS", "0").split(",")[0] or 0)


_most_threads = 1  # that this process has had while it trained


def set_threads(number: int) -> None:
    global _most_threads
    _most_threads = max(_most_threads, number)
    torch.set_num_threads(number)


def threads_made() -> bool:
    """Whether OpenMP made threads here, for which a forked process would wait although it has none of them."""
    return _most_threads > 1


def own_threads(network: nn.Module, cores: int) -> int:
    """One for a small network, else the cores: the number of threads shows in the last bits of every product."""
    convolutional = any(isinstance(m, nn.Conv2d) for m in network.modules())
    small = not convolutional and sum(p.numel() for p in network.parameters()) <= SMALL
    return 1 if small else max(1, cores)


def on_cpu(accelerator: str) -> bool:
    gpu = CUDAAccelerator.is_available() or MPSAccelerator.is_available()
    return accelerator == "cpu" or (accelerator == "auto" and not gpu)


def may_fork() -> bool:
    """Not where the system has no safe fork, and not in a process that another launcher counts as one of several."""
    launched = {"LOCAL_RANK", "RANK", "WORLD_SIZE"} & set(os.environ) or int(os.environ.get("SLURM_NTASKS", 1)) > 1
    return sys.platform == "linux" and not launched and not multiprocessing.current_process().daemon


def work_of(module: Federated, rounds: int) -> Work:
    local, plan = module.method.local, module.plan
    clients = module.cohorts.size(plan.clients)
    samples = local.batch_labeled + (local.batch_unlabeled if module.method.objective.uses_unlabeled else 0)
    steps = sum(plan.tau) * clients / plan.clients
    return Work(clients, 6 * weight_uses(module.network, module.federation.images.x[:1]) * samples * steps, rounds)


@torch.no_grad()
def weight_uses(network: nn.Module, image: Tensor) -> int:
    """How often weights are used when one image passes: a convolution's at each place of its output."""
    uses = 0

    def count(layer: nn.Module, inputs: Any, output: Tensor) -> None:
        nonlocal uses
        uses += layer.weight.numel() * (output.numel() // len(layer.weight))  # type: ignore[operator,arg-type]

    layers = [m for m in network.modules() if isinstance(m, (nn.Linear, nn.Conv2d))]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    training = network.training
    network.eval()(image)
    network.train(training)
    for hook in hooks:
        hook.remove()
    return max(uses, sum(p.numel() for p in network.parameters()))
