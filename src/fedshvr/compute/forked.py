"""Processes forked from this one: they share what it has in memory, hand it their errors, and end when it does."""

import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import torch
from lightning import Trainer
from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.strategies.launchers.launcher import _Launcher
from lightning.pytorch.trainer import call
from lightning.pytorch.trainer.states import TrainerStatus

from fedshvr.compute import stopping
from fedshvr.errors import Ended, Stopped

SOON = 2  # seconds in which the others end by themselves when one has failed
GRACE = 60  # seconds from the request to stop until a process is killed: W&B may have to send its last data
TEXT = 20_000  # characters of a traceback: less than a pipe holds
_PR_SET_PDEATHSIG = 1  # of Linux's prctl.h


class Forked(DDPStrategy):
    """Lightning's ddp_fork on the CPU, with processes of `threads` threads."""

    def __init__(self, threads: int) -> None:
        super().__init__(
            cluster_environment=LightningEnvironment(),
            process_group_backend="gloo",
            start_method="fork",
            forward_sync_buffers=False,
        )
        self.threads = threads

    def _configure_launcher(self) -> None:
        self._launcher = Launcher(self)


class Report(NamedTuple):
    """How a process failed."""

    seconds: float
    error: BaseException
    text: str


class Launcher(_Launcher):
    """Unlike Lightning's own, it calls the callbacks' on_exception where the run is, and leaves no process behind."""

    is_interactive_compatible = True

    def __init__(self, strategy: Forked) -> None:
        self.strategy = strategy
        self.processes: list[multiprocessing.process.BaseProcess] = []
        self.killed: list[int] = []  # ranks that a signal ended, none of ours

    def launch(self, function: Callable, *args: Any, trainer: Trainer | None = None, **kwargs: Any) -> None:
        """Call the function in every process, and raise what went wrong there."""
        assert trainer is not None
        environment = self.strategy.cluster_environment
        assert environment is not None
        context = multiprocessing.get_context("fork")
        pipes = [context.Pipe(duplex=False) for _ in range(self.strategy.num_processes)]
        work = (trainer, function, args, kwargs)
        self.processes = [
            context.Process(target=self._work, args=(rank, os.getpid(), writer, *work))
            for rank, (_, writer) in enumerate(pipes)
        ]
        with master_port(environment.main_port):
            try:
                for process in self.processes:
                    process.start()
                self._wait()
            except Stopped:  # once more, or before there was anything to stop
                self.kill(signal.SIGKILL)
                raise
            finally:
                self._end()
        reports = [reader.recv() for reader, writer in pipes if reader.poll()]
        for reader, writer in pipes:
            reader.close()
            writer.close()
        self._raise(reports)
        trainer.state.status, trainer.state.stage = TrainerStatus.FINISHED, None

    def _wait(self) -> None:
        """Until all have ended, or one has failed and the others had their time to do so too."""
        while alive := {p.sentinel: p for p in self.processes if p.exitcode is None}:
            for sentinel in wait(list(alive)):
                alive[sentinel].join()  # type: ignore[index]
            if any(process.exitcode for process in self.processes):
                self._join(SOON)
                break
        self.killed = [rank for rank, process in enumerate(self.processes) if (process.exitcode or 0) < 0]

    def _join(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        for process in self.processes:
            if process.pid is not None:
                process.join(max(0, deadline - time.monotonic()))

    def _end(self) -> None:
        """Stop what is still at work."""
        try:
            stopping.call_off(True)
            self._join(GRACE)
        finally:
            self.kill(signal.SIGKILL)
            self._join(GRACE)
            stopping.call_off(False)

    def kill(self, signum: int) -> None:
        for process in self.processes:
            if process.pid is not None and process.exitcode is None:
                os.kill(process.pid, signum)

    def _raise(self, reports: list[Report]) -> None:
        """The sentence that says most if there is one, else what came first; a stop only if there is nothing else."""
        sentences = [report for report in reports if stopping.said(report.error)]
        if sentences:
            raise max(sentences, key=lambda report: len(str(report.error))).error
        codes = [process.exitcode or 0 for process in self.processes]
        for rank in self.killed:
            name = signal.Signals(-codes[rank]).name
            raise Ended(f"process {rank} of {len(codes)} was ended by {name}; trainer.devices=1 needs less memory")
        for report in sorted(reports, key=lambda report: (isinstance(report.error, Stopped), report.seconds)):
            raise report.error from (None if isinstance(report.error, Stopped) else RuntimeError(report.text))
        if any(codes):
            raise RuntimeError(f"the processes ended with {codes}")

    def _work(
        self, rank: int, parent: int, report: Connection, trainer: Trainer, function: Callable, args: Any, kwargs: Any
    ) -> None:
        """What a process does; its exit code says whether it did it."""
        end_with(parent)
        os.environ["LOCAL_RANK"] = str(rank)
        torch.set_num_threads(self.strategy.threads)
        stopping.hear_for_all()
        try:
            function(*args, **kwargs)
        except BaseException as raised:
            error = stopping.of_a_stop(raised)
            report.send(Report(time.monotonic(), portable(error), traceback.format_exc()[-TEXT:]))
            call._interrupt(trainer, error)
            sys.exit(1)


def end_with(parent: int) -> None:
    """The kernel kills this process when its parent ends, in whatever way."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def portable(error: BaseException) -> BaseException:
    """The error as another process can have it."""
    try:
        return pickle.loads(pickle.dumps(error))  # our own bytes  # nosec B301
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")


@contextmanager
def master_port(port: int) -> Iterator[None]:
    """Where the processes meet; a later run of this process meets elsewhere."""
    before = os.environ.get("MASTER_PORT")
    os.environ["MASTER_PORT"] = str(port)
    try:
        yield
    finally:
        if before is None:
            del os.environ["MASTER_PORT"]
        else:
            os.environ["MASTER_PORT"] = before
