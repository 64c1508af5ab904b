"""The data of a federation: images once in memory, and who holds which of them."""

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from fedshvr.data.batches import Pool
from fedshvr.data.sources import ImageData
from fedshvr.federation import partition
from fedshvr.federation.partition import Split
from fedshvr.federation.plan import Plan


@dataclass
class Federation:
    images: ImageData
    splits: list[Split]
    plan: Plan
    held_out: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # for validation; no client has them

    @property
    def y(self) -> Tensor:
        return self.images.y

    @property
    def x_test(self) -> Tensor:
        return self.images.x_test

    @property
    def y_test(self) -> Tensor:
        return self.images.y_test

    @property
    def validation_set(self) -> tuple[Tensor, Tensor]:
        index = torch.from_numpy(self.held_out)
        return self.images.x[index], self.images.y[index]

    @property
    def sha256(self) -> str:
        return partition.sha256(self.splits, self.held_out)

    def cast(self, dtype: torch.dtype) -> None:
        """The images in the precision of the run, once for all processes that will be forked from this one."""
        self.images = replace(self.images, x=self.images.x.to(dtype), x_test=self.images.x_test.to(dtype))

    def pool(self, device: torch.device, dtype: torch.dtype, pseudo_labels: bool) -> Pool:
        """The training set for the clients: labels of unlabelled samples are left out (-1)."""
        known = torch.full_like(self.images.y, -1)
        known[self.plan.labeled.flat] = self.images.y[self.plan.labeled.flat]
        rows = len(known) if pseudo_labels else 0
        classes = len(self.images.classes)
        v = torch.full((rows, classes), 1 / classes, dtype=dtype, device=device)
        return Pool(self.images.x.to(device, dtype), known.to(device), v)
