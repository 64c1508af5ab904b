"""What clients remember between rounds: one (clients, width) table, on the device, in main memory or on disk."""

import tempfile
from pathlib import Path

import torch
from torch import Tensor

from fedshvr.errors import check

PLACES = ("device", "cpu", "disk")


class Table:
    """Rows of `width` numbers, one per client of this process, all zero at first."""

    def __init__(
        self, clients: list[int], width: int, device: torch.device, dtype: torch.dtype, place: str, folder: Path | None
    ) -> None:
        check(place in PLACES, f"client_state={place}: must be one of {', '.join(PLACES)}")
        self.row_of = {k: i for i, k in enumerate(clients)}
        self.width, self.device, self.dtype, self.place = width, device, dtype, place
        if place == "disk":
            self.bytes = width * dtype.itemsize
            # gone with the process; sparse until written
            self.file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
            self.file.truncate(len(clients) * self.bytes)
        else:
            self.rows = torch.zeros(len(clients), width, dtype=dtype, device=device if place == "device" else "cpu")

    def get(self, clients: list[int]) -> Tensor:
        """(n, width) on the device; a view of the table where that is possible, else a copy: `put` it back."""
        rows = [self.row_of[k] for k in clients]
        if self.place == "disk":
            return self._read(rows).to(self.device)
        if rows == list(range(rows[0], rows[0] + len(rows))):
            return self.rows[rows[0] : rows[0] + len(rows)].to(self.device, non_blocking=True)
        return self.rows[rows].to(self.device, non_blocking=True)

    def put(self, clients: list[int], values: Tensor) -> None:
        rows = [self.row_of[k] for k in clients]
        if self.place == "disk":
            self._write(rows, values.cpu())
        elif values.data_ptr() != self.rows[rows[0]].data_ptr():  # not the view that `get` gave
            self.rows[rows] = values.to(self.rows.device)

    def _read(self, rows: list[int]) -> Tensor:
        values = torch.empty(len(rows), self.width, dtype=self.dtype)
        for row, target in zip(rows, values, strict=True):
            self.file.seek(row * self.bytes)
            view = memoryview(target.numpy()).cast("B")
            done = 0
            while done < self.bytes:
                done += self.file.readinto(view[done:]) or 0
        return values

    def _write(self, rows: list[int], values: Tensor) -> None:
        for row, value in zip(rows, values, strict=True):
            self.file.seek(row * self.bytes)
            view = memoryview(value.contiguous().numpy()).cast("B")
            done = 0
            while done < self.bytes:
                done += self.file.write(view[done:])
