"""Partitions over random sizes: disjoint, nothing used twice, counts exact, the seed decides."""

from collections.abc import Callable
from functools import partial

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedshvr.federation.partition import Split, class_counts, dirichlet, iid, mismatch, sha256, two_class_labels


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, dict]:
    """Labels, and the options that all four partitions share; there are always enough samples of each class."""
    classes, clients = draw(st.integers(2, 12)), draw(st.integers(1, 15))
    per_client = draw(st.integers(1, 3 * classes))
    counts = draw(
        st.lists(st.integers(clients * per_client + 10, clients * per_client + 200), min_size=classes, max_size=classes)
    )
    y = np.random.default_rng(draw(st.integers(0, 99))).permutation(np.repeat(np.arange(classes), counts))
    rest = len(y) - clients * per_client
    unlabeled = draw(st.one_of(st.none(), st.integers(0, rest)))
    return y, {"clients": clients, "labeled_per_client": per_client, "unlabeled": unlabeled}


def assert_exact(make: Callable[..., list[Split]], y: np.ndarray, options: dict, seed: int) -> list[Split]:
    """Right counts, nothing used twice, same seed same split, other seed other split."""
    splits = make(y, **options, seed=seed)
    labeled, clients = options["labeled_per_client"], options["clients"]
    rest = len(y) - labeled * clients
    lists = [indices for split in splits for indices in (split.labeled, split.unlabeled)]
    assert len(np.unique(np.concatenate(lists))) == sum(map(len, lists))
    assert all(indices.dtype == np.int64 and (np.diff(indices) > 0).all() for indices in lists)
    assert [len(split.labeled) for split in splits] == [labeled] * clients
    assert sum(len(split.unlabeled) for split in splits) == (
        rest if options["unlabeled"] is None else options["unlabeled"]
    )
    assert all(split.labeled_classes == tuple(np.unique(y[split.labeled])) for split in splits)
    assert sha256(make(y, **options, seed=seed)) == sha256(splits)
    # A single other seed may agree by chance where there is next to nothing to choose; ten do not.
    assert any(sha256(make(y, **options, seed=seed + other)) != sha256(splits) for other in range(1, 11))
    return splits


@settings(max_examples=60, deadline=None)
@given(problems(), st.integers(0, 2**32))
def test_property_iid(problem: tuple[np.ndarray, dict], seed: int) -> None:
    y, options = problem
    splits = assert_exact(iid, y, options, seed)
    labeled, unlabeled = class_counts(splits, y, int(y.max()) + 1)
    assert np.ptp(labeled, axis=1).max() <= 1
    assert np.ptp(labeled.sum(0)) <= 1
    assert np.ptp(unlabeled.sum(1)) <= 1


@settings(max_examples=60, deadline=None)
@given(problems(), st.integers(1, 12), st.floats(0.01, 50), st.floats(0, 1), st.floats(1, 4), st.integers(0, 99))
def test_property_two_class_labels(
    problem: tuple[np.ndarray, dict], per_client: int, concentration: float, low: float, high: float, seed: int
) -> None:
    y, options = problem
    classes = int(y.max()) + 1
    per_client = min(per_client, classes, options["labeled_per_client"])
    make = partial(two_class_labels, classes_per_client=per_client, concentration=concentration, size_range=(low, high))
    splits = assert_exact(make, y, options, seed)
    labeled, unlabeled = class_counts(splits, y, classes)
    assert ((labeled > 0).sum(1) == per_client).all()
    assert np.ptp((labeled > 0).sum(0)) <= 1
    assert all(np.ptp(row[row > 0]) <= 1 for row in labeled)
    mean = unlabeled.sum() / len(splits)
    assert unlabeled.sum(1).min() >= min(low * mean, np.floor(mean))
    assert unlabeled.sum(1).max() <= max(high * mean, np.ceil(mean))


@settings(max_examples=60, deadline=None)
@given(problems(), st.floats(1e-3, 50), st.floats(0, 1), st.integers(0, 99))
def test_property_dirichlet(problem: tuple[np.ndarray, dict], concentration: float, minimum: float, seed: int) -> None:
    y, options = problem
    clients, labeled = options["clients"], options["labeled_per_client"]
    total = len(y) - clients * labeled if options["unlabeled"] is None else options["unlabeled"]
    min_size = int(minimum * (total // clients))
    splits = assert_exact(partial(dirichlet, concentration=concentration, min_size=min_size), y, options, seed)
    assert min(len(split.unlabeled) for split in splits) >= min_size
    assert np.ptp(class_counts(splits, y, int(y.max()) + 1)[0], axis=1).max() <= 1


@settings(max_examples=60, deadline=None)
@given(problems(), st.integers(1, 11), st.floats(1e-3, 50), st.floats(0, 1), st.floats(0, 1), st.integers(0, 99))
def test_property_mismatch(
    problem: tuple[np.ndarray, dict], known: int, concentration: float, minimum: float, ratio: float, seed: int
) -> None:
    y, options = problem
    classes, clients, per_client = int(y.max()) + 1, options["clients"], options["labeled_per_client"]
    known = min(known, classes - 1, per_client)
    # What fits into any single class can always be placed, whatever the ratio.
    options["unlabeled"] = max(0, np.bincount(y).min() - clients * -(-per_client // known))
    min_size = int(minimum * (options["unlabeled"] // clients))
    make = partial(
        mismatch, labeled_classes=known, concentration=concentration, min_size=min_size, mismatch_ratio=ratio
    )
    splits = assert_exact(make, y, options, seed)
    labeled, unlabeled = class_counts(splits, y, classes)
    assert ((labeled > 0).sum(1) == known).all()
    assert np.ptp((labeled > 0).sum(0)) <= 1
    assert unlabeled.sum(1).min() >= min_size
    assert np.abs((unlabeled * (labeled == 0)).sum(1) - ratio * unlabeled.sum(1)).max() <= 0.5 + 1e-6
