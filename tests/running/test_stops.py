"""Ctrl-C, SIGTERM and SLURM's signal: the run ends soon, loses no whole round, and says how to go on."""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from conftest import QUICK, ROOT, SMALL, Run, command
from sessions import after_rounds, as_printed, begun, ended, processes_of, type_in

from fedshvr.compute import stopping
from fedshvr.errors import Stopped
from fedshvr.rounds.client import Client
from fedshvr.running.stopped import option, replaced

LONG = [*QUICK, *SMALL, "rounds=30", "client.epochs=4"]


@pytest.fixture(autouse=True)
def ctrl_c() -> Iterator[None]:
    """As at a terminal: a shell's background jobs, and what they start, ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def signalled(patch: pytest.MonkeyPatch, step: int, *signums: int) -> None:
    """This process gets these signals in its step-th local step."""
    original, steps = Client.training_step, 0

    def training_step(*arguments: object) -> object:
        nonlocal steps
        steps += 1
        if steps == step:
            for signum in signums:
                os.kill(os.getpid(), signum)
        return original(*arguments)  # type: ignore[arg-type]

    patch.setattr(Client, "training_step", training_step)


@pytest.mark.fault("a stop by a signal")
@pytest.mark.parametrize(
    ("every", "signums", "saved"),
    [
        (1, [signal.SIGTERM], 1),
        (3, [signal.SIGTERM, signal.SIGTERM], 2),
        (1, [signal.SIGINT, signal.SIGINT], 1),
        (2, [signal.SIGINT, signal.SIGINT], 0),
    ],
    ids=["the round is broken off", "it is finished: the one before is not saved", "at once", "at once, none is saved"],
)
def test_no_saved_round_is_lost(
    train: Callable[..., Run], tmp_path: Path, every: int, signums: list[int], saved: int
) -> None:
    """In the first client's steps of the second round."""
    options = [*SMALL, "engine=sequential", f"checkpoint_every={every}"]
    whole = train(*options, folder="whole")
    first_round = sum(whole.summary["tau"])
    with pytest.MonkeyPatch.context() as patch:
        signalled(patch, first_round + 2, *signums)
        with pytest.raises(Stopped) as stopped:
            train(*options)
    assert (stopped.value.signum, stopped.value.at_once) == (signums[0], signums[0] == signal.SIGINT)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "stopped"
    assert (tmp_path / "run" / "model.json").exists() != stopped.value.at_once
    checkpoint = tmp_path / "run" / "checkpoints" / "last.ckpt"
    assert checkpoint.exists() == bool(saved)
    if saved:
        assert torch.load(checkpoint, weights_only=True)["epoch"] + 1 == saved
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    parts = train(*options, "ckpt_path=last")
    assert parts.theta == whole.theta
    assert parts.timeless == whole.timeless


def test_a_signal_after_the_last_round_changes_nothing(
    train: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last block is at work already: there is nothing left to stop."""
    monkeypatch.setattr(Client, "remember", lambda *a, f=Client.remember: os.kill(os.getpid(), 15) or f(*a))
    run = train(*SMALL, "rounds=1", "engine=vectorized")
    assert run.summary["status"] == "finished"
    assert run.summary["rounds"] == 1


def test_signals_that_another_handles_are_left_to_it() -> None:
    """As submitit does in a SLURM job."""
    before = signal.signal(signal.SIGTERM, lambda signum, frame: None)
    try:
        with stopping.heeded():
            os.kill(os.getpid(), signal.SIGTERM)
            with pytest.raises(Stopped, match="stopped by SIGINT"):
                os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGTERM, before)
    with stopping.heeded():
        assert stopping.asked() == 0  # a later run knows nothing of it


@pytest.mark.parametrize("value", ["logs/a", "a b,c=[1]", "it's", "{$(ls)}", "tail\\", "\\'"])
def test_an_option_for_hydra(value: str) -> None:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    (parsed,) = OverridesParser.create().parse_overrides([option("hydra.run.dir", value)])
    assert not parsed.is_sweep_override()
    assert parsed.value() == value


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["rounds=3", "ckpt_path=x", "--config-dir", "my"], ["rounds=3", "NEW", "--config-dir", "my"]),
        (["--config-dir", "my", "++hydra.run.dir=y", "seed=1"], ["--config-dir", "my", "seed=1", "NEW"]),
        ([], ["NEW"]),
    ],
)
def test_options_stay_in_one_place(typed: list[str], expected: list[str]) -> None:
    assert replaced(typed, ["NEW"]) == expected


@pytest.mark.fault("a stop by a signal")
def test_the_printed_command_goes_on(train: Callable[..., Run], tmp_path: Path) -> None:
    """Whatever needs quotes, and from wherever: the folder's name has a blank and a comma, a tag too."""
    options = [*LONG, "tags=['a b','c']"]
    process = begun(tmp_path, *command(*options, "hydra.run.dir='my runs/a,b'", "ckpt_path=last"))
    after_rounds(process, tmp_path, "my runs/a,b")
    process.send_signal(signal.SIGINT)
    code, text = ended(process)
    assert code == 130
    run = Run(tmp_path / "my runs" / "a,b")
    assert run.summary["status"] == "stopped"
    assert run.summary["rounds"] < 30
    assert as_printed(text).endswith(""" 'hydra.run.dir='"'"'my runs/a,b'"'"'' ckpt_path=last""")
    done = type_in(as_printed(text), tmp_path)
    assert done.returncode == 0, done.stderr
    whole, parts = train(*LONG, folder="whole"), Run(run.folder)
    assert parts.summary["config"]["tags"] == ["a b", "c"]
    assert parts.theta == whole.theta
    assert parts.timeless == whole.timeless


@pytest.mark.fault("a stop by a signal")
def test_a_sweep_stops_and_the_same_command_goes_on(tmp_path: Path) -> None:
    process = begun(tmp_path, *command("-m", *LONG, "seed=0,1,2", "hydra.sweep.dir=s"))
    after_rounds(process, tmp_path, "s/*seed=1*")
    process.terminate()
    code, text = ended(process)
    assert code == 143
    assert "stopped by SIGTERM; to go on:\n" in text
    found = lambda: [json.loads(path.read_text())["status"] for path in sorted(tmp_path.glob("s/*/summary.json"))]  # noqa: E731
    assert found() == ["finished", "stopped"]  # the third has not begun
    assert as_printed(text).endswith("seed=0,1,2 hydra.sweep.dir=s")
    done = type_in(as_printed(text), tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("finished before, skipped") == 1
    assert found() == ["finished"] * 3


@pytest.mark.fault("a stop by a signal")
def test_before_the_first_round_it_stops_at_once(tmp_path: Path) -> None:
    process = begun(tmp_path, *command(*LONG), PYTHONUNBUFFERED="1")
    while not (tmp_path / "logs").is_dir():  # Hydra has made the folder, and torch is being loaded
        assert process.poll() is None
    process.terminate()
    code, text = ended(process)
    assert code == 143
    assert "to go on:\n" in text


@pytest.mark.fault("a stop by a signal")
def test_slurm_starts_the_job_again_and_it_goes_on(train: Callable[..., Run], tmp_path: Path) -> None:
    """SIGUSR1 has scontrol requeue the job; started again, the same command takes up its folder."""
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/requeued\n')
    scontrol.chmod(0o755)
    slurm = {f"SLURM_{name}": "0" for name in ("PROCID", "LOCALID", "NODEID")}
    slurm |= {"SLURM_JOB_ID": "4711", "SLURM_NTASKS": "1", "SLURM_JOB_NAME": "mine"}
    slurm |= {"PATH": f"{scontrol.parent}:{os.environ['PATH']}"}
    process = begun(tmp_path, *command(*LONG), **slurm)
    after_rounds(process, tmp_path, "logs/runs/digits/fed_shvr/*")
    process.send_signal(signal.SIGUSR1)
    code, text = ended(process)
    assert code == 128 + signal.SIGUSR1
    assert text.endswith("scontrol requeue 4711: done\n")
    assert (tmp_path / "requeued").read_text() == "requeue 4711\n"
    (folder,) = tmp_path.glob("logs/runs/digits/fed_shvr/*")
    assert not list(folder.glob("hpc_ckpt*"))  # Lightning's, of half a round
    again = begun(tmp_path, *command(*LONG), **slurm, SLURM_RESTART_COUNT="1")
    code, text = ended(again)
    assert code == 0
    assert f"job 4711 was started again: going on in {folder}\n" in text
    assert list(tmp_path.glob("logs/runs/digits/fed_shvr/*")) == [folder]
    whole, parts = train(*LONG, folder="whole"), Run(folder)
    assert parts.theta == whole.theta
    assert parts.timeless == whole.timeless


@pytest.mark.fault("a stop by a signal")
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_of_reproduce_is_one_of_its_command(tmp_path: Path, signum: int) -> None:
    """To it alone, as from a batch system; its run saves, says how to go on, and none is left."""
    code = "import sys; from fedshvr.cli import stops; from fedshvr.reporting.reproduce import called\n"
    code += "with stops():\n    called(sys.argv[1:])\n"
    train = command(*LONG, "hydra.run.dir=a")
    process = begun(tmp_path, sys.executable, "-c", code, *train, PYTHONPATH=str(ROOT / "src"))
    after_rounds(process, tmp_path)
    assert len(processes_of(process.pid)) == 2
    process.send_signal(signum)
    exit_code, text = ended(process)
    assert exit_code == 128 + signum
    assert "stopped by SIGTERM after " in text
    assert Run(tmp_path / "a").summary["status"] == "stopped"
