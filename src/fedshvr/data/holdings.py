"""The data of a federation: images once in memory, and who holds which of them."""

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from fedshvr.data.batches import Pool
from fedshvr.data.sources import ImageData
from fedshvr.errors import check
from fedshvr.federation import partition
from fedshvr.federation.partition import Split
from fedshvr.federation.plan import Plan


@dataclass
class Federation:
    images: ImageData
    splits: list[Split]
    plan: Plan
    held_out: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # for validation; no client has them
    server: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # labelled samples that the server has

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
        return partition.sha256(self.splits, self.held_out, self.server)

    def class_ratios(self) -> Tensor:
        """(K, C): the share of class c in client k's samples, labelled or not, over its share in the test set.

        With it a client's accuracy, on test samples in the proportions of its own classes, is a sum over the classes:
        ratio_kc times the share of the test set that is of class c and told right. No sample is looked at again.
        """
        names = self.images.classes
        own = torch.from_numpy(np.sum(partition.class_counts(self.splits, self.y.numpy(), len(names)), axis=0)).double()
        tested = torch.bincount(self.y_test, minlength=len(names)).double() / len(self.y_test)
        absent = [name for name, n, m in zip(names, own.sum(0), tested, strict=True) if n and not m]
        check(not absent, f"client_accuracy=true: the test set has no sample of {', '.join(absent)}")
        return own / own.sum(1, keepdim=True) / torch.where(tested > 0, tested, 1.0)

    def cast(self, dtype: torch.dtype) -> None:
        """The images in the precision of the run, once for all processes that will be forked from this one."""
        self.images = replace(self.images, x=self.images.x.to(dtype), x_test=self.images.x_test.to(dtype))

    def pool(self, device: torch.device, dtype: torch.dtype, pseudo_labels: bool) -> Pool:
        """The training set: labels that neither the client nor the server is given are left out (-1)."""
        known = torch.full_like(self.images.y, -1)
        labeled = torch.cat([self.plan.labeled.flat, torch.from_numpy(self.server)])
        known[labeled] = self.images.y[labeled]
        rows = len(known) if pseudo_labels else 0
        classes = len(self.images.classes)
        v = torch.full((rows, classes), 1 / classes, dtype=dtype, device=device)
        return Pool(self.images.x.to(device, dtype), known.to(device), v)
