"""SIGKILL at any moment, then ckpt_path=last: the same bits as a run that was never killed."""

import os
import random
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import SMALL, Run, run_here

from fedshvr.compute import memory
from fedshvr.rounds.client import Client
from fedshvr.rounds.federated import Federated
from fedshvr.rounds.server import Server
from fedshvr.running import checkpoints
from fedshvr.running.folder import RunFolder

KILLS = 20  # moments for each case
OWN = {
    "fed_shvr": [],
    "fed_mt": [],
    "fedmatch": ["algorithm.objective.helpers_every=2"],
}


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def at_call(owner: type, name: str, nth: int, after: bool = False) -> None:
    """Die at the n-th call of a method, before or after what it does."""
    original, calls = getattr(owner, name), 0

    def called(*arguments: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        if calls == nth and not after:
            die()
        value = original(*arguments, **options)
        if calls == nth:
            die()
        return value

    setattr(owner, name, called)


def half_a_checkpoint(nth: int) -> None:
    """Die when half of the n-th checkpoint's bytes are written."""
    original, calls = torch.save, 0

    def save(value: object, file: object) -> None:
        nonlocal calls
        calls += 1
        original(value, file)
        if calls == nth:
            file.flush()  # type: ignore[attr-defined]
            os.truncate(file.name, os.path.getsize(file.name) // 2)  # type: ignore[attr-defined]
            die()

    checkpoints.torch.save = save  # type: ignore[assignment]


def half_a_row_of_metrics(nth: int) -> None:
    """Die when a part of the n-th line of metrics.csv is written."""
    original, calls = RunFolder.on_train_epoch_end, 0

    def write(self: RunFolder, *arguments: object) -> None:
        nonlocal calls
        calls += 1
        original(self, *arguments)  # type: ignore[arg-type]
        if calls == nth:
            path = self.folder / "metrics.csv"
            os.truncate(path, path.stat().st_size - 15)
            die()

    RunFolder.on_train_epoch_end = write  # type: ignore[method-assign, assignment]


def half_a_row_of_state(nth: int) -> None:
    """Die when half of a client's row is written to its table on disk."""
    original, calls = os.pwrite, 0

    def pwrite(file: int, data: memoryview, offset: int) -> int:
        nonlocal calls
        calls += 1
        if calls == nth:
            original(file, data[: len(data) // 2], offset)
            die()
        return original(file, data, offset)

    memory.os.pwrite = pwrite  # type: ignore[assignment]


MOMENTS: dict[str, Callable[[random.Random], None]] = {
    "local step": lambda draw: at_call(Client, "training_step", draw.randrange(1, 60)),
    "memory of a client": lambda draw: at_call(Client, "remember", draw.randrange(1, 8), draw.random() < 0.5),
    "fold": lambda draw: at_call(Server, "fold", draw.randrange(1, 8), draw.random() < 0.5),
    "server step": lambda draw: at_call(Server, "close", draw.randrange(1, 3), draw.random() < 0.5),
    "validation": lambda draw: at_call(Federated, "validation_step", draw.randrange(1, 3), draw.random() < 0.5),
    "half a checkpoint": lambda draw: half_a_checkpoint(draw.randrange(1, 3)),
    "renames of a checkpoint": lambda draw: at_call(type(Path()), "replace", draw.randrange(1, 8), draw.random() < 0.5),
    "half a row of metrics.csv": lambda draw: half_a_row_of_metrics(draw.randrange(2, 3)),
}
ON_DISK = {"half a row of a table": lambda draw: half_a_row_of_state(draw.randrange(1, 9))}


def in_a_fork(work: Callable[[], None]) -> int:
    """The signal that ended a process which did this, 0 if none did."""
    child = os.fork()
    if child == 0:
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
        try:
            work()
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
            os._exit(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert not os.WIFEXITED(status) or os.WEXITSTATUS(status) == 0
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def moments(state: str, seed: str) -> list[tuple[str, random.Random]]:
    """Every kind of moment at least twice, then any."""
    draw, kinds = random.Random(seed), [*MOMENTS, *(ON_DISK if state == "disk" else {})]
    names = (kinds * 2 + draw.choices(kinds, k=KILLS))[:KILLS]
    draw.shuffle(names)
    return [(name, random.Random(f"{seed} {i}")) for i, name in enumerate(names)]


@pytest.mark.fault("a process killed", times=KILLS)
@pytest.mark.slow
@pytest.mark.parametrize("state", ["device", "disk"])
@pytest.mark.parametrize("algorithm", OWN)
def test_killed_at_twenty_moments_it_ends_with_the_same_bits(algorithm: str, state: str, tmp_path: Path) -> None:
    options = [f"algorithm={algorithm}", *OWN[algorithm], *SMALL, f"client_state={state}", "rounds=60"]
    whole = run_here(tmp_path / "whole", *options)
    killed, rounds = [], [0]
    for name, draw in moments(state, f"{algorithm} {state}"):

        def work(name: str = name, draw: random.Random = draw) -> None:
            (MOMENTS | ON_DISK)[name](draw)
            run_here(tmp_path / "parts", *options, "ckpt_path=last")

        if in_a_fork(work) == signal.SIGKILL:
            killed.append(name)
        rounds.append(saved_rounds(tmp_path / "parts"))
    parts = run_here(tmp_path / "parts", *options, "ckpt_path=last")
    print(algorithm, state, f"killed {len(killed)} times:", ", ".join(killed))
    assert len(killed) == KILLS
    assert rounds == sorted(rounds)  # no round is lost that had ended
    assert rounds[-1] >= KILLS // 2  # and it did go on each time, not start anew
    assert parts.theta == whole.theta
    assert parts.timeless == whole.timeless
    assert_same_state(whole, parts, state)


def saved_rounds(folder: Path) -> int:
    """Of the newest sound checkpoint."""
    files = [folder / "checkpoints" / name for name in (checkpoints.LAST, checkpoints.BEFORE)]
    return max((checkpoints.read(file)["epoch"] + 1 for file in files if file.is_file()), default=0)


def assert_same_state(whole: Run, parts: Run, state: str) -> None:
    """Pseudo-labels and what clients remember; on disk the checkpoint has places, the file what lies there."""
    a, b = (checkpoints.read(r.folder / "checkpoints" / checkpoints.LAST)["clients"] for r in (whole, parts))
    assert a.keys() == b.keys()
    for name in a:
        if state == "disk" and name != "v":
            assert torch.equal(rows_on_disk(whole.folder, name, a[name]), rows_on_disk(parts.folder, name, b[name]))
        else:
            assert torch.equal(a[name], b[name])


def rows_on_disk(folder: Path, name: str, places: torch.Tensor) -> torch.Tensor:
    path, clients = folder / "client_state" / f"{name}.bin", len(places)
    width = path.stat().st_size // (3 * clients * 4)
    table = memory.DiskTable(list(range(clients)), width, torch.device("cpu"), torch.float32, path, clients)
    for k, place in enumerate(places):
        table.restore(k, place)
    return table.get(list(range(clients)))
