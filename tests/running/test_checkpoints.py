"""Checkpoint files: torn, altered or hostile ones are noticed, and the one before the last steps in."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fedshvr.errors import UserError
from fedshvr.running.checkpoints import BEFORE, LAST, Checkpoints, Damaged, digest, newest, read


def content(value: float) -> dict:
    return {"state_dict": {"theta": torch.full((1000,), value)}, "epoch": int(value), "loops": {"a": [1, 2.5, None]}}


def write(folder: Path, *values: float) -> Path:
    for value in values:
        Checkpoints().save_checkpoint(content(value), folder / LAST)
    return folder / LAST


def test_the_last_two_are_kept_and_nothing_else(tmp_path: Path) -> None:
    write(tmp_path, 1, 2, 3)
    assert sorted(file.name for file in tmp_path.iterdir()) == [BEFORE, LAST]
    assert [read(tmp_path / name)["epoch"] for name in (BEFORE, LAST)] == [2, 3]


def damage_by_truncation(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def damage_by_emptying(path: Path) -> None:
    os.truncate(path, 0)


def damage_by_one_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    place = data.find(torch.full((4,), 2.0).numpy().tobytes())  # in the midst of theta
    data[place + 1] ^= 1
    path.write_bytes(data)


def damage_by_text(path: Path) -> None:
    path.write_text("not a checkpoint")


DAMAGES = [damage_by_truncation, damage_by_emptying, damage_by_one_bit, damage_by_text]


@pytest.mark.fault("a damaged checkpoint or file")
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_one_is_noticed_and_the_one_before_is_used(damage, tmp_path: Path, capsys) -> None:
    path = write(tmp_path, 1, 2)
    damage(path)
    files = Checkpoints()
    assert files.load_checkpoint(path)["epoch"] == 1
    assert f"{path}: it" in capsys.readouterr().err
    files.save_checkpoint(content(3), path)  # which must not put the damaged one in the place of the sound one
    assert [read(tmp_path / name)["epoch"] for name in (BEFORE, LAST)] == [1, 3]


@pytest.mark.fault("a damaged checkpoint or file")
@pytest.mark.parametrize("damage", DAMAGES)
def test_where_there_is_no_other_the_run_is_refused(damage, tmp_path: Path) -> None:
    path = write(tmp_path, 2)
    damage(path)
    with pytest.raises(UserError, match=r"ckpt_path=.*last.ckpt: it"):
        Checkpoints().load_checkpoint(path)


@pytest.mark.fault("a damaged checkpoint or file", times=2)
def test_two_damaged_ones_are_named(tmp_path: Path) -> None:
    path = write(tmp_path, 2, 2)
    for name in (LAST, BEFORE):
        damage_by_one_bit(tmp_path / name)
    with pytest.raises(UserError, match=r"neither it nor before_last\.ckpt can be used"):
        Checkpoints().load_checkpoint(path)


class Hostile:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple:
        return os.system, (self.command,)


@pytest.mark.fault("a hostile or altered file")
@pytest.mark.parametrize("write_it", [torch.save, lambda value, path: path.write_bytes(pickle.dumps(value))])
def test_code_in_a_checkpoint_is_not_run(write_it, tmp_path: Path) -> None:
    proof, path = tmp_path / "proof", tmp_path / "model.ckpt"
    write_it(content(1) | {"extra": Hostile(f"touch {proof}")}, path)
    with pytest.raises(UserError, match=r"ckpt_path=.*model.ckpt: it"):
        Checkpoints().load_checkpoint(path)
    assert not proof.exists()
    torch.load(path, weights_only=False) if write_it is torch.save else pickle.loads(path.read_bytes())
    assert proof.exists()  # so the file was hostile


def test_a_kill_between_the_renames_leaves_one_to_go_on_from(tmp_path: Path) -> None:
    write(tmp_path, 1).rename(tmp_path / BEFORE)
    assert newest(tmp_path) == tmp_path / BEFORE
    assert newest(tmp_path / "empty") is None


@pytest.mark.fault("a process killed")
def test_killed_while_it_writes_nothing_is_lost(tmp_path: Path) -> None:
    """A process writes checkpoint after checkpoint; whenever it is killed, a sound one is there."""
    code = (
        "import sys, torch; sys.path[:0] = sys.argv[2:]; from pathlib import Path; import itertools\n"
        "from fedshvr.running.checkpoints import Checkpoints, LAST\n"
        "for i in itertools.count(1):\n"
        "    Checkpoints().save_checkpoint({'state_dict': {'theta': torch.full((300000,), float(i))}, 'epoch': i},"
        " Path(sys.argv[1]) / LAST); print(i, flush=True)\n"
    )
    source = str(Path(__file__).resolve().parents[2] / "src")
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path), source], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(20)]
        process.kill()
    written = int(lines[-1])
    found = newest(tmp_path)
    assert found is not None
    checkpoint = read(found)
    assert checkpoint["epoch"] >= written
    assert checkpoint["state_dict"]["theta"].eq(checkpoint["epoch"]).all()


def test_the_digest_sees_names_types_shapes_and_bits() -> None:
    base = content(1)
    others = [
        content(2),
        base | {"epoch": 2},
        base | {"more": 0},
        base | {"state_dict": {"theta": base["state_dict"]["theta"].double()}},
        base | {"state_dict": {"theta": base["state_dict"]["theta"].view(10, 100)}},
        base | {"state_dict": {"theta_": base["state_dict"]["theta"]}},
    ]
    assert len({digest(value) for value in [base, *others]}) == 7


def test_one_of_before_this_digest_is_still_read(tmp_path: Path) -> None:
    torch.save(content(4), tmp_path / LAST)
    assert read(tmp_path / LAST)["epoch"] == 4
    torch.save({"weights": 1}, tmp_path / LAST)
    with pytest.raises(Damaged, match="it is no checkpoint"):
        read(tmp_path / LAST)
