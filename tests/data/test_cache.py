"""The data cache on a file system that is full or read-only."""

from collections.abc import Callable

import numpy as np
import pytest
from disk import Disk

from fedshvr.data import cache
from fedshvr.errors import UserError


@pytest.mark.fault("no space, or not writable")
def test_a_read_only_cache_is_read_and_what_it_lacks_is_refused_by_name(disk: Callable[[int], Disk]) -> None:
    fixed = disk(100)
    cache.write(fixed.folder / "a.npz", {"x": np.arange(3)})
    fixed.become("ro")
    assert cache.read(fixed.folder / "a.npz", ["x"])["x"].tolist() == [0, 1, 2]
    refusal = rf"data.root={fixed.folder}: must be a folder that can be written \(.*Read-only file system"
    with pytest.raises(UserError, match=refusal), cache.locked(fixed.folder, "b"):
        pass


@pytest.mark.fault("no space, or not writable")
def test_a_full_disk_leaves_the_cache_as_it_was(disk: Callable[[int], Disk]) -> None:
    root = disk(40).folder
    cache.write(root / "a.npz", {"x": np.arange(3)})
    with pytest.raises(UserError, match=r"data.root=.*No space left on device"), cache.locked(root, "a"):
        cache.write(root / "a.npz", {"x": np.zeros(100_000)})
    assert cache.read(root / "a.npz", ["x"])["x"].tolist() == [0, 1, 2]
    assert sorted(path.name for path in root.iterdir()) == [".a.lock", "a.npz"]
