"""Client tables: the same rows wherever they lie, and a file that a killed process leaves as the checkpoint saw it."""

from pathlib import Path

import pytest
import torch

from fedshvr.compute.memory import DiskTable, Table, make_table

CPU = torch.device("cpu")


@pytest.mark.parametrize("place", ["device", "cpu", "disk"])
def test_rows_come_back_as_they_were_put(place: str, tmp_path: Path) -> None:
    table = make_table(place, "c_k", [1, 3, 4, 9], 10, 5, CPU, torch.float64, tmp_path)
    assert table.get([3, 9]).eq(0).all()
    values = torch.randn(3, 5, dtype=torch.float64)
    table.put([9, 1, 4], values)
    assert torch.equal(table.get([1]), values[1:2])
    assert torch.equal(table.get([4, 9]), values[[2, 0]])
    assert table.get([3]).eq(0).all()


def test_neighbouring_rows_in_memory_are_views() -> None:
    table = Table([0, 1, 2], 4, CPU, torch.float32, CPU)
    table.get([1, 2]).add_(1)
    assert table.rows.sum(1).tolist() == [0, 4, 4]


def test_what_a_checkpoint_named_survives_later_writes(tmp_path: Path) -> None:
    """Two tables on one file: the first goes on writing after its checkpoint and dies; the second resumes from it."""
    path, rows = tmp_path / "c_k.bin", torch.arange(12.0).view(3, 4)
    first = DiskTable([0, 1, 2], 4, CPU, torch.float32, path, 3)
    first.put([0, 1], rows[:2])
    saved = {k: first.saved(k).clone() for k in range(3)}
    first.commit()
    for _ in range(3):
        first.put([0, 1, 2], torch.full((3, 4), -1.0))
    second = DiskTable([0, 1, 2], 4, CPU, torch.float32, path, 3)
    for k, value in saved.items():
        second.restore(k, value)
    assert torch.equal(second.get([0, 1]), rows[:2])
    assert second.get([2]).eq(0).all()


def test_what_the_checkpoint_before_the_last_named_survives_too(tmp_path: Path) -> None:
    path = tmp_path / "c_k.bin"
    table = DiskTable([0, 1], 2, CPU, torch.float32, path, 2)
    saved = []
    for value in (1.0, 2.0, 3.0, 4.0, 5.0):
        table.put([0, 1], torch.full((2, 2), value))
        table.put([1], torch.full((1, 2), value + 0.5))
        saved.append([table.saved(k).clone() for k in (0, 1)])
        table.commit()
        table.put([0, 1], torch.full((2, 2), -1.0))
        for back, names in zip((value, value - 1), reversed(saved[-2:]), strict=False):
            found = DiskTable([0, 1], 2, CPU, torch.float32, path, 2)
            for k in (0, 1):
                found.restore(k, names[k])
            assert found.get([0, 1]).tolist() == [[back] * 2, [back + 0.5] * 2]


def test_an_unwritten_file_takes_no_room(tmp_path: Path) -> None:
    DiskTable(list(range(1000)), 4_000_000, CPU, torch.float32, tmp_path / "c_k.bin", 1000)
    assert (tmp_path / "c_k.bin").stat().st_size == 3 * 1000 * 4_000_000 * 4
    assert (tmp_path / "c_k.bin").stat().st_blocks * 512 < 1 << 20
