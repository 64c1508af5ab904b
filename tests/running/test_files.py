"""The file system: no space left, folders that cannot be written, names of any kind, a clock that is set back."""

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import QUICK, SMALL, Run, command, environment, run_here
from disk import Disk

from fedshvr.cli import fresh, short
from fedshvr.errors import Unwritable, UserError
from fedshvr.federation import partition_figure
from fedshvr.running.checkpoints import newest, read
from fedshvr.running.files import append, read_rows, write_atomically
from fedshvr.running.lock import locked

Cli = Callable[..., subprocess.CompletedProcess]
FULL = "cannot be written (No space left on device)"


def left_over(folder: Path) -> list[str]:
    """Temporary files."""
    return [str(path) for path in folder.rglob(".*") if path.name != ".lock"]


@pytest.mark.fault("no space, or not writable")
@pytest.mark.slow
def test_a_full_disk_ends_the_command_in_a_sentence_and_more_space_lets_it_go_on(
    cli: Cli, disk: Callable[[int], Disk], train: Callable[..., Run]
) -> None:
    whole, small = train(*SMALL, "rounds=6", folder="whole"), disk(300)
    options = [*QUICK, *SMALL, "rounds=6", f"hydra.run.dir='{small.folder / 'run'}'"]
    done = cli(*options)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert f"error: {small.folder / 'run' / 'checkpoints' / 'last.ckpt'}: {FULL}; what was written" in done.stderr
    assert json.loads((small.folder / "run" / "summary.json").read_text())["status"] == "failed"
    assert read(newest(small.folder / "run" / "checkpoints"))["epoch"] >= 1  # type: ignore[arg-type]
    assert left_over(small.folder) == []
    small.become("size=20m")
    again = cli(*options, "ckpt_path=last")
    assert again.returncode == 0, again.stderr
    parts = Run(small.folder / "run")
    assert (parts.theta, parts.timeless) == (whole.theta, whole.timeless)


@pytest.mark.fault("no space, or not writable", times=4)
@pytest.mark.slow
@pytest.mark.parametrize("state", ["device", "disk"])
def test_whatever_cannot_be_written_nothing_from_before_is_lost(
    state: str, disk: Callable[[int], Disk], train: Callable[..., Run], capsys: pytest.CaptureFixture[str]
) -> None:
    """The space ends at the lock, the partition, the first and the second checkpoint, the table, the model."""
    options = [*SMALL, "rounds=4", f"client_state={state}"]
    whole, ends = train(*options, folder="whole"), set()
    for kilobytes in (4, 64, 140, 240):
        small = disk(kilobytes)
        run = small.folder / "run"
        with pytest.raises((Unwritable, UserError), match="No space left on device") as error:
            run_here(run, *options, "ckpt_path=last")
        ends.add(Path(str(error.value).split(": ")[0]).name)
        assert left_over(run) == []
        small.become("size=20m")
        parts = run_here(run, *options, "ckpt_path=last")
        assert (parts.theta, parts.timeless) == (whole.theta, whole.timeless)
    assert {"partition.json", "last.ckpt"} <= ends, ends
    assert "partition.png: not drawn (OSError: " in capsys.readouterr().err


@pytest.mark.fault("no space, or not writable")
def test_a_model_that_has_no_room_leaves_the_run_to_be_continued(disk: Callable[[int], Disk], tmp_path: Path) -> None:
    from torch import zeros

    from fedshvr.running.export import write_model

    small = disk(100)
    with pytest.raises(Unwritable, match=r"model.safetensors: cannot be written \(.*No space left on device"):
        write_model(small.folder, {"weight": zeros(50_000)}, {})
    assert list(small.folder.iterdir()) == []


@pytest.mark.fault("no space, or not writable")
def test_a_text_is_written_whole_or_stays_as_it_was(disk: Callable[[int], Disk]) -> None:
    path = disk(16).folder / "a.json"
    write_atomically(path, "before")
    with pytest.raises(Unwritable, match=r"a.json: cannot be written \(No space left on device\)"):
        write_atomically(path, "x" * 20_000)
    assert path.read_text() == "before"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.fault("no space, or not writable")
def test_half_a_line_is_no_row(disk: Callable[[int], Disk]) -> None:
    path = disk(4).folder / "metrics.csv"
    append(path, "round,test_acc")
    append(path, "1,0.5")
    with pytest.raises(Unwritable):
        append(path, "2," + "1" * 8000)
    assert path.stat().st_size == 4096
    assert read_rows(path) == [{"round": "1", "test_acc": "0.5"}]


@pytest.mark.fault("no space, or not writable")
@pytest.mark.slow
def test_a_sweep_on_a_full_disk_tells_each_job_and_goes_on_later(cli: Cli, disk: Callable[[int], Disk]) -> None:
    """Where not even the end of a job can be written, its folder without one counts as not finished."""
    small = disk(8)
    options = ["-m", "seed=0,1", *QUICK, *SMALL, "rounds=2", f"hydra.sweep.dir='{small.folder}'"]
    done = cli(*options)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.count(FULL) == 2
    assert "0 jobs finished, 2 did not" in done.stdout
    assert done.stdout.count("has no summary.json: it was killed, or there was no space left") == 2
    small.become("size=20m")
    again = cli(*options)
    assert (again.returncode, "2 jobs finished, 0 did not" in again.stdout) == (0, True), again.stderr


@pytest.mark.fault("no space, or not writable", times=2)
@pytest.mark.slow
def test_a_run_folder_that_cannot_be_written_is_named(cli: Cli, disk: Callable[[int], Disk], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    below = cli(*QUICK, "hydra.run.dir=file/run")
    fixed = disk(300)
    fixed.become("ro")
    read_only = cli(*QUICK, f"hydra.run.dir='{fixed.folder / 'run'}'")
    for done, reason in ((below, "Not a directory"), (read_only, "Read-only file system")):
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
        assert "error: hydra.run.dir or hydra.sweep.dir: must be a folder that can be written (" in done.stderr
        assert done.stderr.rstrip().endswith(f"run: {reason})")
    with (
        pytest.raises(UserError, match=r"hydra.run.dir=.*: must be a folder that can be written \(Read-only"),
        locked(fixed.folder),
    ):
        pass


@pytest.mark.fault("no space, or not writable")
def test_a_figure_that_cannot_be_drawn_is_told_and_harms_nothing(
    train: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*arguments: object) -> None:
        raise ValueError("no such colour")

    monkeypatch.setattr(partition_figure, "draw", broken)
    run = train(*SMALL, "rounds=1")
    assert run.summary["status"] == "finished"
    assert "partition.png: not drawn (ValueError: no such colour)" in capsys.readouterr().err


@pytest.mark.slow
def test_names_with_spaces_and_letters_of_any_kind(cli: Cli, tmp_path: Path) -> None:
    """A relative run folder and a data folder; then the model and the report from there."""
    import numpy as np

    y = np.arange(60) % 2
    x = np.random.default_rng(0).random((60, 5)) + y[:, None]
    (tmp_path / "Daten für α").mkdir()
    np.savez(tmp_path / "Daten für α" / "zwei Klassen.npz", x=x, y=y, x_test=x, y_test=y, classes=["ä ö", "日本"])
    data = ["data=npz", "data.name='mein Satz é'", "data.file='Daten für α/zwei Klassen.npz'", "augment=none"]
    small = [
        "partition.clients=2",
        "partition.unlabeled=20",
        "partition.labeled_per_client=10",
        "model.hidden=[4]",
        "rounds=2",
    ]
    done = cli(*QUICK, *data, *small, "hydra.run.dir='läufe/mein Lauf №1'")
    assert done.returncode == 0, done.stderr
    run = Run(tmp_path / "läufe" / "mein Lauf №1")
    assert run.summary["status"] == "finished"
    tested = cli("run='läufe/mein Lauf №1'", script="src/evaluate.py")
    assert tested.returncode == 0, tested.stderr
    assert f"accuracy {100 * run.summary['test_acc']:.2f} % of 60 samples of mein Satz é" in tested.stdout
    report = cli("logs='läufe'", "out='ein Bericht'", "wandb=false", script="src/report.py")
    assert report.returncode == 0, report.stderr
    assert "1 finished runs of your own" in report.stdout


def test_a_clock_that_is_set_back(train: Callable[..., Run], monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour every time it is asked: durations are not measured by it."""
    now = [2e9]

    def back() -> float:
        now[0] -= 3600
        return now[0]

    monkeypatch.setattr(time, "time", back)
    run = train(*SMALL, "rounds=3")
    assert all(0 < float(row["seconds"]) < 60 for row in run.rows)
    assert 0 < run.summary["seconds"] < 60
    assert run.summary["finished_at"][:2] == "20"


def test_a_run_never_begins_in_the_folder_of_another(tmp_path: Path) -> None:
    """Two of the same second, or one after the clock was set back; asked again within a run, the name stays."""
    names = [fresh(str(tmp_path / "a" / "2030-01-01_00-00-00")) for _ in range(2)]
    fresh.cache_clear()
    names += [fresh(str(tmp_path / "a" / "2030-01-01_00-00-00"))]
    assert [Path(name).name for name in names] == ["2030-01-01_00-00-00"] * 2 + ["2030-01-01_00-00-00_2"]
    assert all(Path(name).is_dir() for name in names)


def test_a_job_of_a_sweep_with_many_options_has_a_name_that_fits(cli: Cli, tmp_path: Path) -> None:
    """It begins with its options, and another option makes another name; asked again, it is the same."""
    words = [f"algorithm.objective.{o}" for o in ("relabel=round", "label_view=weak", "exponent=final", "alpha1=0.75")]
    words += ["partition.clients=10", "client.rounding=floor", "client.sampling=replacement", "weighting=samples"]
    done = cli("-m", *words, "augment_labeled=true", "seed=0,1", *QUICK, "dry_run=true", "hydra.sweep.dir=s")
    assert done.returncode == 0, done.stderr
    names = [path.name for path in (tmp_path / "s").iterdir() if path.is_dir()]
    assert [name[:32] for name in names] == ["algorithm.objective.alpha1=0.75,"] * 2
    assert len(short("a" * 255)) == 255
    assert len(short("a" * 256)) == 255
    assert short("ä" * 128) == "ä" * 121 + "_" + short("ä" * 128)[-12:] != short("ä" * 129)


@pytest.mark.slow
def test_a_refused_run_leaves_no_folder_and_a_real_one_its_own(cli: Cli, tmp_path: Path) -> None:
    assert cli(*QUICK, "participation=2").returncode == 2
    assert not any((tmp_path / "logs").rglob("2*"))
    assert cli(*QUICK, "dry_run=true").returncode == 0
    assert len(list((tmp_path / "logs" / "runs" / "digits" / "fed_shvr").iterdir())) == 1


@pytest.mark.slow
def test_two_sweeps_at_once_share_the_folder_by_its_locks(tmp_path: Path) -> None:
    """Nobody works in a folder of another; whoever has left some to the other says so and ends with 1."""
    options = ["-m", "seed=0,1", *QUICK, *SMALL, "rounds=60", "hydra.sweep.dir=both"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": tmp_path}
    first, second = (subprocess.Popen(command(*options), env=environment(), **pipes) for _ in range(2))
    ends = [process.communicate(timeout=300) for process in (first, second)]
    assert {first.returncode, second.returncode} <= {0, 1}
    for process, (out, err) in zip((first, second), ends, strict=True):
        assert "Traceback" not in err
        assert ("is at work in it" in out) == (process.returncode == 1)
    last = subprocess.run(command(*options), env=environment(), capture_output=True, text=True, cwd=tmp_path)
    assert "2 jobs finished, 0 did not" in last.stdout
    assert last.returncode == 0
    alone = run_here(tmp_path / "alone", *SMALL, "rounds=60", "seed=1")
    assert Run(next((tmp_path / "both").glob("*seed=1*"))).theta == alone.theta
    assert os.path.isfile(next((tmp_path / "both").glob("*seed=0*")) / "summary.json")
