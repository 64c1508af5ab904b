"""Partitions: the paper's exact numbers, the defaults on the digits, and one sentence for each bad input."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import yaml
from scipy.special import digamma
from scipy.stats import entropy

from fedshvr.errors import UserError
from fedshvr.federation.partition import (
    Split,
    class_counts,
    dirichlet,
    iid,
    mismatch,
    realized_mismatch,
    sha256,
    two_class_labels,
)

PARTITIONS = {"iid": iid, "two_class_labels": two_class_labels, "dirichlet": dirichlet, "mismatch": mismatch}
MNIST_CLASSES = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]


def labels(counts: list[int], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))


MNIST, CIFAR, DIGITS = (
    labels(MNIST_CLASSES),
    labels([5000] * 10),
    labels([142, 146, 142, 146, 145, 145, 145, 143, 139, 144]),
)

mnist_iid = partial(iid, MNIST, clients=10, labeled_per_client=60)
mnist_noniid = partial(two_class_labels, MNIST, clients=10, labeled_per_client=60)
mnist_dirichlet = partial(dirichlet, MNIST, clients=10, labeled_per_client=60, concentration=0.1, min_size=500)
cifar = partial(mismatch, CIFAR, clients=40, labeled_per_client=100, unlabeled=20_000, concentration=0.025, min_size=64)
SETTINGS: list[Callable[..., list[Split]]] = [
    mnist_iid,
    mnist_noniid,
    mnist_dirichlet,
    partial(cifar, mismatch_ratio=0.5),
]


def used(splits: list[Split]) -> np.ndarray:
    """Every index, as often as it is used."""
    return np.concatenate([indices for split in splits for indices in (split.labeled, split.unlabeled)])


def classes_for_nine_tenths(counts: np.ndarray) -> float:
    """How many of its largest classes make up 90 % of a client's samples, on average."""
    cumulated = -np.sort(-counts, axis=1).cumsum(1)
    return float((cumulated < 0.9 * cumulated[:, -1:]).sum(1).mean() + 1)


# The paper's settings


def test_mnist_iid_is_six_labels_a_class_and_5940_unlabelled() -> None:
    splits = mnist_iid(seed=0)
    labeled, unlabeled = class_counts(splits, MNIST, 10)
    assert (labeled == 6).all()
    assert unlabeled.sum(1).tolist() == [5940] * 10
    assert (unlabeled.sum(1) * 2 // 32 == 371).all()
    assert np.sort(used(splits)).tolist() == list(range(60_000))
    expected = unlabeled.sum(0) / 10  # a blind draw of a tenth: the standard deviation is about 22
    assert np.abs(unlabeled - expected).max() < 120


def test_two_class_labels_beside_iid_unlabelled_samples() -> None:
    splits, skewed = mnist_noniid(unlabeled_split="iid", seed=3), mnist_noniid(seed=3)
    assert all(np.array_equal(a.labeled, b.labeled) for a, b in zip(splits, skewed, strict=True))
    unlabeled = class_counts(splits, MNIST, 10)[1]
    assert unlabeled.sum(1).tolist() == [5940] * 10
    assert np.sort(used(splits)).tolist() == list(range(60_000))
    assert np.abs(unlabeled - unlabeled.sum(0) / 10).max() < 120
    with pytest.raises(UserError, match="unlabeled_split=even: must be one of dirichlet, iid, sizes"):
        mnist_noniid(unlabeled_split="even", seed=3)


def test_two_class_labels_beside_blindly_drawn_samples_of_unequal_number() -> None:
    splits, skewed = mnist_noniid(unlabeled_split="sizes", seed=3), mnist_noniid(seed=3)
    assert all(np.array_equal(a.labeled, b.labeled) for a, b in zip(splits, skewed, strict=True))
    assert [len(s.unlabeled) for s in splits] == [len(s.unlabeled) for s in skewed]
    assert np.sort(used(splits)).tolist() == list(range(60_000))
    unlabeled = class_counts(splits, MNIST, 10)[1]
    expected = unlabeled.sum(0) * unlabeled.sum(1, keepdims=True) / unlabeled.sum()
    assert np.abs(unlabeled - expected).max() < 120


@pytest.mark.parametrize("seed", range(20))
def test_mnist_noniid(seed: int) -> None:
    splits = mnist_noniid(seed=seed)
    labeled, unlabeled = class_counts(splits, MNIST, 10)
    assert (np.sort(labeled, axis=1) == [0] * 8 + [30, 30]).all()
    assert ((labeled > 0).sum(0) == 2).all()
    tau = unlabeled.sum(1) * 2 // 32
    assert tau.min() >= 270
    assert tau.max() <= 500
    assert unlabeled.sum() == 59_400
    assert (unlabeled.sum(0) == np.array(MNIST_CLASSES) - 60).all()
    assert np.sort(used(splits)).tolist() == list(range(60_000))
    assert tau.max() - tau.min() > 50
    assert (
        classes_for_nine_tenths(unlabeled)
        < 4
        < 9
        == classes_for_nine_tenths(class_counts(mnist_iid(seed=0), MNIST, 10)[1])
    )


def test_mnist_noniid_is_as_skewed_as_the_dirichlet_draws() -> None:
    """The mean entropy of Dir_10(0.1) is psi(2) - psi(1.1) = 0.846 nats; fitting the margins must not blur it."""
    counts = np.concatenate([class_counts(mnist_noniid(seed=seed), MNIST, 10)[1] for seed in range(20)])
    assert entropy(counts, axis=1).mean() == pytest.approx(digamma(2) - digamma(1.1), abs=0.05)


@pytest.mark.parametrize("ratio", [0, 0.25, 0.5, 0.75, 1])
@pytest.mark.parametrize("seed", range(6))
def test_cifar_mismatch(seed: int, ratio: float) -> None:
    splits = cifar(mismatch_ratio=ratio, seed=seed)
    labeled, unlabeled = class_counts(splits, CIFAR, 10)
    assert len(np.unique(used(splits))) == 4000 + 20_000
    assert labeled.sum(1).tolist() == [100] * 40
    assert (np.sort(labeled, axis=1) == [0] * 4 + [16, 16, 17, 17, 17, 17]).all()
    assert ((labeled > 0).sum(0) == 24).all()
    assert len({split.labeled_classes for split in splits}) > 20
    assert unlabeled.sum() == 20_000
    assert unlabeled.sum(1).min() >= 64
    for split, known, counts in zip(splits, labeled > 0, unlabeled, strict=True):
        assert split.labeled_classes == tuple(np.flatnonzero(known))
        assert realized_mismatch(split, CIFAR) == counts[~known].sum() / counts.sum()
        assert abs(counts[~known].sum() - ratio * counts.sum()) <= 0.5


def test_cifar_sizes_are_those_of_the_per_class_dirichlet_split() -> None:
    sizes = np.array([[len(s.unlabeled) for s in cifar(mismatch_ratio=0, min_size=0, seed=s)] for s in range(30)])
    variance = 10 * 2000**2 * (1 / 40) * (39 / 40) / (40 * 0.025 + 1)  # of ten draws of 2000 p, p ~ Dir_40(0.025)
    assert sizes.std() == pytest.approx(np.sqrt(variance), rel=0.1)


@pytest.mark.parametrize("seed", range(5))
def test_dirichlet_is_skewed_and_keeps_the_minimum(seed: int) -> None:
    splits = mnist_dirichlet(seed=seed)
    labeled, unlabeled = class_counts(splits, MNIST, 10)
    assert (labeled == 6).all()
    assert unlabeled.sum(1).min() >= 500
    assert np.sort(used(splits)).tolist() == list(range(60_000))
    assert classes_for_nine_tenths(unlabeled) < 5


def test_dirichlet_divides_each_class_by_its_own_draw() -> None:
    """With K = 10 clients a share has the variance (1/K)(1-1/K)/(K a + 1)."""
    y = labels([1000] * 10)
    draws = [dirichlet(y, clients=10, labeled_per_client=10, concentration=0.5, min_size=0, seed=s) for s in range(40)]
    shares = np.concatenate([class_counts(splits, y, 10)[1] / 990 for splits in draws])
    assert shares.var() == pytest.approx(0.1 * 0.9 / 6, rel=0.1)


def test_dirichlet_with_an_extreme_concentration_ends() -> None:
    splits = dirichlet(MNIST, clients=10, labeled_per_client=60, concentration=1e-6, min_size=5940, seed=0)
    assert [len(split.unlabeled) for split in splits] == [5940] * 10


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_seed_and_only_the_seed_decides(setting: Callable[..., list[Split]]) -> None:
    assert sha256(setting(seed=3)) == sha256(setting(seed=3)) != sha256(setting(seed=4))


def test_labelled_sets_do_not_depend_on_the_unlabelled_ones() -> None:
    def labeled(splits: list[Split]) -> list[list[int]]:
        return [split.labeled.tolist() for split in splits]

    assert labeled(cifar(mismatch_ratio=0, seed=0)) == labeled(cifar(mismatch_ratio=1, unlabeled=8000, seed=0))
    assert labeled(mnist_iid(seed=0)) == labeled(mnist_iid(unlabeled=100, seed=0))
    assert labeled(mnist_noniid(seed=0)) == labeled(mnist_noniid(unlabeled=100, concentration=9.0, seed=0))


# The defaults suit the embedded digits


@pytest.mark.parametrize("name", PARTITIONS)
@pytest.mark.parametrize("ratio", [0, 0.25, 0.5, 0.75, 1])
def test_config_defaults_fit_the_digits(name: str, ratio: float) -> None:
    text = (Path(__file__).parents[2] / "configs" / "partition" / f"{name}.yaml").read_text()
    options = yaml.safe_load(text)
    assert options.pop("_target_") == f"fedshvr.federation.partition.{name}"
    assert options.pop("_partial_") is True
    assert options.pop("seed") == "${seed}"
    if name == "mismatch":
        assert options.pop("mismatch_ratio") == 0.5
        options["mismatch_ratio"] = ratio
    for seed in range(10):
        splits = PARTITIONS[name](DIGITS, **options, seed=seed)
        labeled, unlabeled = options["labeled_per_client"], options["unlabeled"] or 1437 - 100
        assert {len(split.labeled) for split in splits} == {labeled}
        assert len(np.unique(used(splits))) == 10 * labeled + unlabeled == len(used(splits))


# Totals, odd sizes, helpers


@pytest.mark.parametrize("make", [iid, two_class_labels, partial(dirichlet, concentration=0.5, min_size=0)])
def test_a_labelled_total_is_exact_and_spread_evenly(make: Callable[..., list[Split]]) -> None:
    splits = make(DIGITS, clients=7, labeled_total=100, seed=0)
    assert sorted(len(split.labeled) for split in splits) == [14, 14, 14, 14, 14, 15, 15]
    assert np.sort(used(splits)).tolist() == list(range(1437))


def test_fewer_labels_than_classes_rotate_over_the_classes() -> None:
    labeled, _ = class_counts(iid(DIGITS, clients=10, labeled_per_client=3, unlabeled=0, seed=0), DIGITS, 10)
    assert labeled.max() == 1
    assert labeled.sum(0).tolist() == [3] * 10


def test_labels_may_be_a_tensor() -> None:
    torch = pytest.importorskip("torch")
    assert sha256(iid(torch.from_numpy(DIGITS), clients=3, labeled_per_client=10, seed=0)) == sha256(
        iid(DIGITS, clients=3, labeled_per_client=10, seed=0)
    )


def test_the_digest_sees_whose_each_index_is() -> None:
    a, b, none = np.array([1]), np.array([2]), np.array([], dtype=np.int64)
    digests = {
        sha256([Split(*sets, (0,))]) for sets in [(a, b), (b, a), (np.array([1, 2]), none), (none, np.array([1, 2]))]
    }
    assert len(digests) == 4


def test_realized_mismatch() -> None:
    y = np.array([0, 0, 1, 2, 2, 2])
    assert realized_mismatch(Split(np.array([0]), np.array([1, 2, 3, 4]), (0,)), y) == 0.75
    assert realized_mismatch(Split(np.array([0]), np.array([], dtype=np.int64), (0,)), y) == 0.0


def test_an_impossible_mismatch_is_refused_and_the_last_possible_one_found() -> None:
    """One client and 100 samples a class: its other four classes hold 400."""
    make = partial(mismatch, labels([100] * 10), clients=1, labeled_per_client=12, concentration=1, min_size=0, seed=0)
    assert realized_mismatch(make(mismatch_ratio=1, unlabeled=400)[0], labels([100] * 10)) == 1
    with pytest.raises(UserError, match="supply only 400 of unlabeled=401"):
        make(mismatch_ratio=1, unlabeled=401)


# One sentence for each bad input

ANY = {"clients": 10, "labeled_per_client": 20, "seed": 0}
SIZED = ANY | {"unlabeled": 500, "concentration": 0.5, "min_size": 10}
VALID = {"iid": ANY, "two_class_labels": ANY, "dirichlet": SIZED, "mismatch": SIZED | {"mismatch_ratio": 0.5}}
BAD_INPUT = """
iid clients=0                         | clients=0: must be at least 1
iid clients=1438                      | clients=1438: must be at most the number of samples, 1437
iid seed=-1                           | seed=-1: must be at least 0
iid labeled_per_client=-1             | labeled_per_client=-1: must be at least 0
iid labeled_clients=0                 | labeled_clients=0: must be null or between 1 and the 10 clients
dirichlet labeled_clients=11          | labeled_clients=11: must be null or between 1 and the 10 clients
iid labeled_per_client=140            | labeled_per_client=140: asks for 140 samples of class 8, which holds 139
iid labeled_total=100                 | labeled_per_client=20, labeled_total=100: exactly one of the two must be given
iid labeled_per_client=null | labeled_per_client=None, labeled_total=None: exactly one of the two must be given
iid labeled_per_client=null labeled_total=9    | labeled_total=9: must be at least 1 for each of the 10 clients
iid labeled_per_client=null labeled_total=1430 | labeled_total=1430: asks for 143 samples of class 0, which holds 142
iid unlabeled=1238                    | unlabeled=1238: must be between 0 and the 1237 samples that are left
iid unlabeled=-1                      | unlabeled=-1: must be between 0 and the 1237 samples that are left
two_class_labels labeled_per_client=1 | labeled_per_client=1: must give each client at least classes_per_client=2
two_class_labels classes_per_client=0 | classes_per_client=0: must be between 1 and the 10 classes
two_class_labels concentration=0      | concentration=0: must be greater than 0 and finite
two_class_labels size_range=[1.1,2]   | size_range=[1.1, 2]: must be two factors of the mean size that bracket 1
two_class_labels size_range=[0.5,0.9] | size_range=[0.5, 0.9]: must be two factors of the mean size that bracket 1
dirichlet concentration=.inf          | concentration=inf: must be greater than 0 and finite
dirichlet min_size=51   | min_size=51: must be between 0 and 50, the mean of 500 unlabelled samples over 10 clients
mismatch min_size=51    | min_size=51: must be between 0 and 50, the mean of 500 unlabelled samples over 10 clients
mismatch min_size=-1    | min_size=-1: must be between 0 and 50, the mean of 500 unlabelled samples over 10 clients
mismatch concentration=-1             | concentration=-1: must be greater than 0 and finite
mismatch labeled_per_client=5         | labeled_per_client=5: must give each client at least labeled_classes=6
mismatch labeled_classes=11           | labeled_classes=11: must be between 1 and the 10 classes
mismatch mismatch_ratio=1.5           | mismatch_ratio=1.5: must be between 0 and 1
mismatch mismatch_ratio=-0.1          | mismatch_ratio=-0.1: must be between 0 and 1
mismatch mismatch_ratio=.nan          | mismatch_ratio=nan: must be between 0 and 1
"""


@pytest.mark.parametrize("line", BAD_INPUT.strip().splitlines())
def test_bad_input_gets_one_sentence(line: str) -> None:
    (name, *overrides), sentence = line.split("|")[0].split(), line.split("|")[1].strip()
    options = VALID[name] | {key: yaml.safe_load(value) for key, value in (each.split("=") for each in overrides)}
    with pytest.raises(UserError) as error:
        PARTITIONS[name](DIGITS, **options)
    assert str(error.value) == sentence
