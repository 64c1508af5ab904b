"""Who holds what: pure seeded functions from training labels to each client's labelled and unlabelled indices.

For one seed the labelled sets depend on nothing that is said of the unlabelled ones: sweeps compare like with like.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedshvr.errors import check
from fedshvr.federation.allocation import (
    apportion,
    balanced_counts,
    bounded_sizes,
    choose_evenly,
    complete,
    draw_rows,
    fit_margins,
    level_columns,
    raise_to_minimum,
    spread,
)

UNLABELED_SPLITS = ("dirichlet", "iid", "sizes")


@dataclass(frozen=True)
class Split:
    """What one client holds: sorted indices into the training set."""

    labeled: np.ndarray
    unlabeled: np.ndarray
    labeled_classes: tuple[int, ...]


def iid(
    y: npt.ArrayLike,
    *,
    clients: int,
    labeled_per_client: int | None = None,
    labeled_total: int | None = None,
    labeled_clients: int | None = None,
    unlabeled: int | None = None,
    seed: int,
) -> list[Split]:
    """Every client alike: a class-balanced labelled set and an equal, blindly drawn part of the unlabelled samples."""
    dealer = _Dealer(y, clients, labeled_per_client, labeled_total, seed)
    labeled = dealer.deal_labeled(dealer.every_class())
    sizes = spread(dealer.unlabeled_total(unlabeled), clients)
    return dealer.splits(labeled, dealer.draw(sizes), labeled_clients)


def two_class_labels(
    y: npt.ArrayLike,
    *,
    clients: int,
    labeled_per_client: int | None = None,
    labeled_total: int | None = None,
    classes_per_client: int = 2,
    unlabeled: int | None = None,
    concentration: float = 0.1,
    size_range: Sequence[float] = (0.728, 1.349),
    unlabeled_split: str = "dirichlet",
    seed: int,
) -> list[Split]:
    """The paper's MNIST Non-IID: few labelled classes; class proportions ~ Dir(concentration) client by client.

    The sizes M_k are random within `size_range` times their mean: with 5940 on average, E = 2 and B = 32, the default
    gives tau_k in [270, 500]. As every sample is used once, the draws are fitted to the sizes and the class counts. A
    symmetric Dirichlet does not care which class gets which share, so each client's shares are first given to the
    classes with most samples left: then the fit changes little. On MNIST, 10 clients, seeds 0 to 19, a client's class
    entropy is 0.85 nats on average, as that of Dir(0.1); with the shares left as drawn it is 1.01.

    With unlabeled_split=iid the labelled sets are the same, and the unlabelled ones equal, blindly drawn parts; with
    sizes, blindly drawn parts as large as those of dirichlet.
    """
    check(
        unlabeled_split in UNLABELED_SPLITS,
        f"unlabeled_split={unlabeled_split}: must be one of {', '.join(UNLABELED_SPLITS)}",
    )
    low, high = size_range
    check(0 <= low <= 1 <= high, f"size_range={[low, high]}: must be two factors of the mean size that bracket 1")
    _check_concentration(concentration)
    dealer = _Dealer(y, clients, labeled_per_client, labeled_total, seed)
    labeled = dealer.deal_labeled(dealer.some_classes("classes_per_client", classes_per_client))
    total = dealer.unlabeled_total(unlabeled)
    if unlabeled_split == "iid":
        return dealer.splits(labeled, dealer.draw(spread(total, clients)))
    sizes = bounded_sizes(total, clients, low, high, dealer.rng)
    if unlabeled_split == "sizes":
        return dealer.splits(labeled, dealer.draw(sizes))
    proportions = dealer.rng.dirichlet(np.full(dealer.classes, concentration), clients)
    pool = dealer.pool(total)
    # A proportion may underflow to 0, and then a class could be left that nobody takes.
    return dealer.splits(labeled, fit_margins(level_columns(proportions, sizes, pool) + 1e-9, sizes, pool))


def dirichlet(
    y: npt.ArrayLike,
    *,
    clients: int,
    labeled_per_client: int | None = None,
    labeled_total: int | None = None,
    labeled_clients: int | None = None,
    unlabeled: int | None = None,
    concentration: float,
    min_size: int,
    seed: int,
) -> list[Split]:
    """The usual split: class c of the unlabelled samples is divided over the clients by p_c ~ Dir_K(concentration)."""
    _check_concentration(concentration)
    dealer = _Dealer(y, clients, labeled_per_client, labeled_total, seed)
    labeled = dealer.deal_labeled(dealer.every_class())
    total = dealer.unlabeled_total(unlabeled, min_size)
    shares = dealer.rng.dirichlet(np.full(clients, concentration), dealer.classes)
    pool = dealer.pool(total)
    counts = np.stack([apportion(p, n) for p, n in zip(shares, pool, strict=True)], axis=1)
    resized = _resize(counts, raise_to_minimum(counts.sum(1), min_size), dealer.rng)
    return dealer.splits(labeled, resized, labeled_clients)


def mismatch(
    y: npt.ArrayLike,
    *,
    clients: int,
    labeled_per_client: int | None = None,
    labeled_total: int | None = None,
    labeled_classes: int = 6,
    unlabeled: int | None,
    concentration: float,
    min_size: int,
    mismatch_ratio: float,
    seed: int,
) -> list[Split]:
    """The paper's CIFAR-10: of a client's unlabelled samples `mismatch_ratio` are of classes it has no label of.

    The sizes M_k are those of the usual per-class Dirichlet split, sum_c (unlabeled / C) p_ck with p_c ~ Dir_K.
    """
    check(0 <= mismatch_ratio <= 1, f"mismatch_ratio={mismatch_ratio}: must be between 0 and 1")
    _check_concentration(concentration)
    dealer = _Dealer(y, clients, labeled_per_client, labeled_total, seed)
    known = dealer.some_classes("labeled_classes", labeled_classes)
    labeled = dealer.deal_labeled(known)
    total = dealer.unlabeled_total(unlabeled, min_size)
    shares = dealer.rng.dirichlet(np.full(clients, concentration), dealer.classes).sum(0)
    sizes = raise_to_minimum(apportion(shares, total), min_size)
    others = np.rint(mismatch_ratio * sizes).astype(np.int64)

    # Two rows a client: samples of its labelled classes, and samples of its other classes.
    is_known = np.array([np.isin(np.arange(dealer.classes), chosen) for chosen in known])
    rows, allowed = np.concatenate([sizes - others, others]), np.concatenate([is_known, ~is_known])
    counts = complete(draw_rows(dealer.left, rows, allowed, dealer.rng), rows, dealer.left, allowed)
    check(
        counts.sum() == total,
        f"mismatch_ratio={mismatch_ratio}: with labeled_classes={labeled_classes} the classes supply only "
        f"{counts.sum()} of unlabeled={total}, ask for fewer",
    )
    return dealer.splits(labeled, counts[:clients] + counts[clients:])


def sha256(
    splits: Sequence[Split], held_out: Sequence[int] | np.ndarray = (), server: Sequence[int] | np.ndarray = ()
) -> str:
    """The digest of all index lists, each after its length."""
    digest = hashlib.sha256()
    lists = [indices for split in splits for indices in (split.labeled, split.unlabeled)]
    others = [held_out, server] if len(server) else [held_out] if len(held_out) else []
    for indices in [*lists, *others]:
        digest.update(np.concatenate([[len(indices)], indices]).astype("<i8").tobytes())
    return digest.hexdigest()


def class_counts(splits: Sequence[Split], y: npt.ArrayLike, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """The (K, C) counts of labelled and of unlabelled samples."""
    labels = np.asarray(y)
    return (
        np.stack([np.bincount(labels[split.labeled], minlength=num_classes) for split in splits]),
        np.stack([np.bincount(labels[split.unlabeled], minlength=num_classes) for split in splits]),
    )


def realized_mismatch(split: Split, y: npt.ArrayLike) -> float:
    """The share of the unlabelled samples whose class the client has no label of."""
    if len(split.unlabeled) == 0:
        return 0.0
    return float(np.mean(~np.isin(np.asarray(y)[split.unlabeled], split.labeled_classes)))


class _Dealer:
    """The shuffled samples of each class and the dealing out of them; each sample is dealt at most once."""

    def __init__(
        self, y: npt.ArrayLike, clients: int, labeled_per_client: int | None, labeled_total: int | None, seed: int
    ) -> None:
        self.y = np.asarray(y)
        check(clients >= 1, f"clients={clients}: must be at least 1")
        check(clients <= len(self.y), f"clients={clients}: must be at most the number of samples, {len(self.y)}")
        check(seed >= 0, f"seed={seed}: must be at least 0")
        self.labeled_sizes, self.option = _labeled_sizes(clients, labeled_per_client, labeled_total)
        self.clients, self.classes = clients, int(self.y.max()) + 1
        self.rng = np.random.default_rng(seed)
        self.piles = [self.rng.permutation(np.flatnonzero(self.y == c)) for c in range(self.classes)]

    @property
    def left(self) -> np.ndarray:
        """How many samples of each class are not dealt yet."""
        return np.array([len(pile) for pile in self.piles])

    def deal(self, counts: np.ndarray) -> list[np.ndarray]:
        """Hand client k `counts[k, c]` samples of class c."""
        hands: list[list[np.ndarray]] = [[] for _ in counts]
        for c, column in enumerate(counts.T):
            *shares, self.piles[c] = np.split(self.piles[c], np.cumsum(column))
            for hand, share in zip(hands, shares, strict=True):
                hand.append(share)
        return [np.sort(np.concatenate(hand)) for hand in hands]

    def every_class(self) -> list[np.ndarray]:
        return [np.arange(self.classes)] * self.clients

    def some_classes(self, name: str, count: int) -> list[np.ndarray]:
        """`count` random classes for each client, every class for as many clients as any other."""
        check(1 <= count <= self.classes, f"{name}={count}: must be between 1 and the {self.classes} classes")
        check(self.labeled_sizes.min() >= count, f"{self.option}: must give each client at least {name}={count}")
        return choose_evenly(self.classes, self.clients, count, self.rng)

    def deal_labeled(self, choices: list[np.ndarray]) -> list[np.ndarray]:
        """The labelled sets: each client's size spread evenly over its classes."""
        counts = balanced_counts(choices, self.labeled_sizes, self.classes, self.rng)
        for c, (asked, held) in enumerate(zip(counts.sum(0), self.left, strict=True)):
            check(asked <= held, f"{self.option}: asks for {asked} samples of class {c}, which holds {held}")
        return self.deal(counts)

    def unlabeled_total(self, unlabeled: int | None, min_size: int = 0) -> int:
        """The number of unlabelled samples over all clients; None is all that is left."""
        left = int(self.left.sum())
        total = left if unlabeled is None else unlabeled
        check(0 <= total <= left, f"unlabeled={unlabeled}: must be between 0 and the {left} samples that are left")
        check(
            0 <= min_size * self.clients <= total,
            f"min_size={min_size}: must be between 0 and {total // self.clients}, "
            f"the mean of {total} unlabelled samples over {self.clients} clients",
        )
        return total

    def pool(self, total: int) -> np.ndarray:
        """The class counts of `total` samples drawn blindly from what is left."""
        return self.rng.multivariate_hypergeometric(self.left, total)

    def draw(self, sizes: np.ndarray) -> np.ndarray:
        """The class counts of `sizes[k]` samples for each client, drawn blindly from what is left."""
        return draw_rows(self.left, sizes, np.ones((self.clients, self.classes), dtype=bool), self.rng)

    def splits(
        self, labeled: list[np.ndarray], unlabeled_counts: np.ndarray, labeled_clients: int | None = None
    ) -> list[Split]:
        """What each holds; with labeled_clients the first have all of it labelled, the others nothing (RSCFed)."""
        hands = list(zip(labeled, self.deal(unlabeled_counts), strict=True))
        if labeled_clients is not None:
            valid = 1 <= labeled_clients <= self.clients
            check(valid, f"labeled_clients={labeled_clients}: must be null or between 1 and the {self.clients} clients")
            whole = [np.sort(np.concatenate(hand)) for hand in hands]
            hands = [(all_, all_[:0]) if k < labeled_clients else (all_[:0], all_) for k, all_ in enumerate(whole)]
        return [Split(own, others, tuple(np.unique(self.y[own]).tolist())) for own, others in hands]


def _labeled_sizes(clients: int, per_client: int | None, total: int | None) -> tuple[np.ndarray, str]:
    """N_k for each client, and the option that set it, as the user wrote it."""
    check(
        (per_client is None) != (total is None),
        f"labeled_per_client={per_client}, labeled_total={total}: exactly one of the two must be given",
    )
    if per_client is not None:
        check(per_client >= 0, f"labeled_per_client={per_client}: must be at least 0")
        return np.full(clients, per_client), f"labeled_per_client={per_client}"
    assert total is not None
    check(total >= clients, f"labeled_total={total}: must be at least 1 for each of the {clients} clients")
    return spread(total, clients), f"labeled_total={total}"


def _check_concentration(concentration: float) -> None:
    check(0 < concentration < math.inf, f"concentration={concentration}: must be greater than 0 and finite")


def _resize(counts: np.ndarray, sizes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Move random samples from the clients above their `sizes` to those below."""
    excess = np.maximum(counts.sum(1) - sizes, 0)
    given = np.stack([rng.multivariate_hypergeometric(row, n) for row, n in zip(counts, excess, strict=True)])
    kept = counts - given
    missing = sizes - kept.sum(1)
    return kept + draw_rows(given.sum(0), missing, np.ones_like(counts, dtype=bool), rng)
