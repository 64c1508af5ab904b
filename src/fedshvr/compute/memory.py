"""What clients remember between rounds: a table with one row a client, on the device, in main memory or on disk."""

import os
from pathlib import Path

import torch
from torch import Tensor

from fedshvr.errors import check, writing

PLACES = ("device", "cpu", "disk")


class Table:
    """Rows of `width` numbers, one per client of this process, all zero at first."""

    def __init__(
        self, clients: list[int], width: int, device: torch.device, dtype: torch.dtype, place: torch.device
    ) -> None:
        self.row_of = {k: i for i, k in enumerate(clients)}
        self.width, self.device, self.dtype = width, device, dtype
        self.rows = torch.zeros(len(clients), width, dtype=dtype, device=place)

    def get(self, clients: list[int]) -> Tensor:
        """(n, width) on the device; a view of the table where that is possible, else a copy: `put` it back."""
        rows = [self.row_of[k] for k in clients]
        if rows == list(range(rows[0], rows[0] + len(rows))):
            return self.rows[rows[0] : rows[0] + len(rows)].to(self.device, non_blocking=True)
        return self.rows[rows].to(self.device, non_blocking=True)

    def put(self, clients: list[int], values: Tensor) -> None:
        rows = [self.row_of[k] for k in clients]
        if values.data_ptr() != self.rows[rows[0]].data_ptr():  # not the view that `get` gave
            self.rows[rows] = values.to(self.rows.device)

    def saved(self, client: int) -> Tensor:
        """What a checkpoint keeps of this client."""
        return self.rows[self.row_of[client]]

    def restore(self, client: int, saved: Tensor) -> None:
        self.rows[self.row_of[client]] = saved.to(self.rows.device, self.dtype)

    def commit(self) -> None:
        """Called when a checkpoint has taken what `saved` gave."""

    def in_memory(self) -> Tensor | None:
        """All rows, in the order of row_of, unless they are on disk."""
        return self.rows


class DiskTable(Table):
    """Rows in a file of the run folder, three slots each: writes never touch what the last two checkpoints name.

    So a checkpoint holds one number a client, and a killed run finds its rows as that checkpoint left them. The file is
    sparse until written, and shared by all ranks. The third slots lie behind the others, where files of 0.1.0 end.
    """

    def __init__(
        self, clients: list[int], width: int, device: torch.device, dtype: torch.dtype, path: Path, total: int
    ) -> None:
        self.row_of = {k: i for i, k in enumerate(clients)}
        self.width, self.device, self.dtype = width, device, dtype
        self.bytes = width * dtype.itemsize
        self.path = path
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self.file = os.open(path, os.O_RDWR | os.O_CREAT)
            os.truncate(path, 3 * total * self.bytes)
        self.slot = dict.fromkeys(clients, -1)  # -1: never written, zero
        self.committed = [dict(self.slot), dict(self.slot)]  # of the last checkpoint and of the one before
        self.total = total

    def get(self, clients: list[int]) -> Tensor:
        values = torch.zeros(len(clients), self.width, dtype=self.dtype)
        for k, value in zip(clients, values, strict=True):
            if self.slot[k] >= 0:
                view, done = memoryview(value.numpy()).cast("B"), 0
                while done < self.bytes:
                    done += os.preadv(self.file, [view[done:]], self._offset(k) + done)
        return values.to(self.device)

    def put(self, clients: list[int], values: Tensor) -> None:
        for k, value in zip(clients, values.cpu(), strict=True):
            self.slot[k] = next(slot for slot in range(3) if all(slot != named[k] for named in self.committed))
            view, done = memoryview(value.contiguous().numpy()).cast("B"), 0
            with writing(self.path):
                while done < self.bytes:
                    done += os.pwrite(self.file, view[done:], self._offset(k) + done)

    def _offset(self, client: int) -> int:
        slot = self.slot[client]
        return (2 * client + slot if slot < 2 else 2 * self.total + client) * self.bytes

    def saved(self, client: int) -> Tensor:
        return torch.tensor([self.slot[client]])

    def restore(self, client: int, saved: Tensor) -> None:
        self.slot[client] = int(saved)
        for named in self.committed:
            named[client] = int(saved)

    def commit(self) -> None:
        with writing(self.path):
            os.fsync(self.file)
        self.committed = [dict(self.slot), self.committed[0]]

    def in_memory(self) -> Tensor | None:
        return None


def make_table(
    place: str,
    name: str,
    clients: list[int],
    total: int,
    width: int,
    device: torch.device,
    dtype: torch.dtype,
    folder: Path | None,
) -> Table:
    """A table of these clients, of `total` in the federation, where client_state says."""
    if place == "disk":
        check(folder is not None, "client_state=disk: needs a run folder")
        assert folder is not None
        return DiskTable(clients, width, device, dtype, folder / "client_state" / f"{name}.bin", total)
    return Table(clients, width, device, dtype, device if place == "device" else torch.device("cpu"))
