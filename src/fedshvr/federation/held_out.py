"""Samples of the training set that no client has: for validation, and the server's own."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from fedshvr.compute.streams import stream_seed
from fedshvr.errors import check
from fedshvr.federation.allocation import apportion, spread
from fedshvr.federation.partition import Split


def hold_out(y: npt.ArrayLike, share: float, seed: int, name: str = "validation") -> np.ndarray:
    """Sorted indices of a `share` of the samples, the same of every class up to one sample; `name` is the option."""
    check(0 <= share < 1, f"{name}={share}: must be at least 0 and below 1")
    labels = np.asarray(y)
    counts = np.bincount(labels)
    taken = apportion(counts, round(share * len(labels)))
    check(
        share == 0 or bool(((taken > 0) & (taken < counts))[counts > 0].all()),
        f"{name}={share}: must hold out and leave at least one sample of every class, "
        f"the smallest has {counts[counts > 0].min()}",
    )
    rng = np.random.default_rng(stream_seed(seed, name))
    piles = [rng.permutation(np.flatnonzero(labels == c))[:n] for c, n in enumerate(taken)]
    return np.sort(np.concatenate(piles))


def of_the_rest(y: npt.ArrayLike, held_out: np.ndarray, make: Callable[[np.ndarray], list[Split]]) -> list[Split]:
    """The partition of all samples but the held-out ones, in indices into the whole training set."""
    rest = np.delete(np.arange(len(np.asarray(y))), held_out)
    splits = make(np.asarray(y)[rest])
    return [Split(rest[split.labeled], rest[split.unlabeled], split.labeled_classes) for split in splits]


def for_server(y: npt.ArrayLike, count: int, held_out: np.ndarray, seed: int) -> np.ndarray:
    """Sorted indices of `count` samples that the server holds with their labels, as many of every class up to one."""
    check(count >= 0, f"server_labels={count}: must be at least 0")
    labels = np.asarray(y)
    free = np.delete(np.arange(len(labels)), held_out)
    rng = np.random.default_rng(stream_seed(seed, "server labels"))
    piles = [rng.permutation(free[labels[free] == c]) for c in range(int(labels.max()) + 1)]
    wanted = spread(count, len(piles))
    for c, (asked, pile) in enumerate(zip(wanted, piles, strict=True)):
        check(
            asked <= len(pile), f"server_labels={count}: asks for {asked} samples of class {c}, which has {len(pile)}"
        )
    return np.sort(np.concatenate([pile[:n] for pile, n in zip(piles, wanted, strict=True)]))
