"""Options of the mathematics that cannot be, with their sentences, and their bounds, which can; no run is needed."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from fedshvr.algorithms.aggregation import Normalized
from fedshvr.algorithms.corrections import ControlVariates, Proximal
from fedshvr.algorithms.objectives.ramp import Ramp
from fedshvr.algorithms.objectives.soft_pseudo_label import SoftPseudoLabel
from fedshvr.errors import UserError
from fedshvr.federation.partition import Split
from fedshvr.federation.plan import LocalSGD, make_plan

Make = Callable[..., Any]


def soft(**options: Any) -> SoftPseudoLabel:
    return SoftPseudoLabel(**{"alpha0": 1.0, "alpha1": 0.75, "alpha2": 0.1, "ramp": Ramp(0)} | options)


def local(**options: Any) -> LocalSGD:
    return LocalSGD(**{"eta": 0.1, "epochs": 1, "batch_labeled": 4, "batch_unlabeled": 5} | options)


def plan(*sizes: tuple[int, int], **options: Any) -> Any:
    """Clients with so many labelled and unlabelled samples."""
    own = {k: options.pop(k) for k in ("sampling", "steps", "epochs") if k in options}
    ends = np.cumsum([0, *(n for pair in sizes for n in pair)])
    parts = [np.arange(a, b) for a, b in pairwise(ends)]
    splits = [Split(parts[i], parts[i + 1], (0,)) for i in range(0, len(parts), 2)]
    return make_plan(splits, local(**own), **options)


REFUSED: list[tuple[Make, dict[str, Any], str]] = [
    (Proximal, {"mu": -0.5}, "algorithm.correction.mu=-0.5: must be at least 0"),
    (ControlVariates, {"option": "III"}, "algorithm.correction.option=III: must be one of I, II"),
    (Normalized, {"tau_bar": "mean"}, "algorithm.aggregation.tau_bar=mean: must be one of effective, steps"),
    (soft, {"alpha0": -1.0}, "algorithm.objective.alpha0=-1.0: must be at least 0"),
    (soft, {"alpha1": -1.0}, "algorithm.objective.alpha1=-1.0: must be at least 0"),
    (soft, {"alpha2": -1.0}, "algorithm.objective.alpha2=-1.0: must be at least 0"),
    (soft, {"exponent": "first"}, "algorithm.objective.exponent=first: must be one of final, current"),
    (local, {"eta": 0.0}, "client.eta=0.0: must be positive"),
    (local, {"epochs": 0}, "client.epochs=0: must be positive and finite"),
    (local, {"epochs": float("inf")}, "client.epochs=inf: must be positive and finite"),
    (local, {"batch_labeled": 0}, "client.batch_labeled=0: must be at least 1"),
    (local, {"batch_unlabeled": 0}, "client.batch_unlabeled=0: must be at least 1"),
    (local, {"momentum": -0.1}, "client.momentum=-0.1: must be at least 0 and below 1"),
    (local, {"momentum": 1.0}, "client.momentum=1.0: must be at least 0 and below 1"),
    (local, {"weight_decay": -0.1}, "client.weight_decay=-0.1: must be at least 0"),
    (local, {"sampling": "all"}, "client.sampling=all: must be one of replacement, shuffle"),
    (local, {"steps": "many"}, "client.steps=many: must be one of paper, step_matched"),
    (local, {"rounding": "up"}, "client.rounding=up: must be one of floor, ceil"),
]
REFUSED_PLANS: list[tuple[list[tuple[int, int]], dict[str, Any], str]] = [
    ([(4, 5)], {"weighting": "size"}, "weighting=size: must be one of samples, labeled, uniform"),
    (
        [(0, 5), (0, 6)],
        {"uses_unlabeled": False},
        "algorithm/objective: it learns from labels alone, but no client has one",
    ),
    (
        [(0, 5), (0, 6)],
        {"weighting": "labeled"},
        "weighting=labeled: no client has a label; must be samples or uniform",
    ),
    ([(4, 5), (0, 0)], {}, "client 1 has no sample: the partition must give every client at least one"),
    ([(4, 0), (6, 0)], {}, "algorithm/objective: no client has an unlabelled sample; use supervised"),
    (
        [(4, 5), (3, 5)],
        {"sampling": "shuffle"},
        "client.batch_labeled=4: client.sampling=shuffle needs at most 3, the labeled samples of client 1",
    ),
    (
        [(0, 5), (3, 5), (3, 5)],
        {"sampling": "shuffle"},
        "client.batch_labeled=4: client.sampling=shuffle needs at most 3, the labeled samples of client 1",
    ),
    (
        [(4, 5), (1, 5)],
        {"sampling": "shuffle"},
        "client.batch_labeled=4: client.sampling=shuffle needs at most 1, the labeled samples of client 1",
    ),
    (
        [(4, 5), (0, 7), (5, 4)],
        {"sampling": "shuffle"},
        "client.batch_unlabeled=5: client.sampling=shuffle needs at most 4, the unlabeled samples of client 2",
    ),
]


@pytest.mark.parametrize(("make", "options", "sentence"), REFUSED)
def test_what_cannot_be_is_said_word_by_word(make: Make, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        make(**options)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(("sizes", "options", "sentence"), REFUSED_PLANS)
def test_so_is_a_plan_that_cannot_be(sizes: list[tuple[int, int]], options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        plan(*sizes, **options)
    assert str(caught.value) == sentence


def test_the_bounds_themselves_can_be() -> None:
    assert Proximal(0).mu == 0
    assert [ControlVariates(option).option for option in ("I", "II")] == ["I", "II"]
    assert ControlVariates().option == "II"
    assert Normalized().tau_bar == "effective"
    least = soft(alpha0=0.0, alpha1=0.0, alpha2=0.0, exponent="current")
    assert (least.weight, least.alpha1, least.alpha2, least.exponent) == (0, 0, 0, "current")
    assert soft().exponent == "final"
    assert (soft().label_views, soft().pseudo_labels, soft().labels_each_epoch) == (("weak",), True, False)
    smallest = local(eta=1e-9, epochs=1e-9, batch_labeled=1, batch_unlabeled=1, momentum=0.0, weight_decay=0.0)
    assert smallest.batch_labeled == smallest.batch_unlabeled == 1
    assert local(momentum=0.99, weight_decay=1.0).momentum == 0.99
    plan((4, 5), (5, 6), sampling="shuffle")  # exactly a batch
    plan((0, 5), (4, 6), sampling="shuffle")  # who has no label draws none


def test_weights_and_steps_by_hand() -> None:
    """tau_k = max(floor(M_k / 5), floor(N_k / 4)), at least 1; omega_k in proportion to what is counted."""
    sizes = [(4, 10), (0, 6), (2, 28)]
    made = plan(*sizes)
    assert made.tau == [2, 1, 5]
    assert made.tau_labeled == [1, 1, 1]
    assert made.omega.tolist() == [14 / 50, 6 / 50, 30 / 50]
    assert (made.clients, made.able, made.with_labels, made.lacking) == (3, [0, 1, 2], [0, 2], [1])
    assert [made.labeled[k].tolist() for k in range(3)] == [[0, 1, 2, 3], [], [20, 21]]
    assert made.unlabeled[1].tolist() == [14, 15, 16, 17, 18, 19]
    assert made.labeled.or_else(made.unlabeled)[1].tolist() == made.unlabeled[1].tolist()
    assert made.labeled.or_else(made.unlabeled)[2].tolist() == [20, 21]

    labels_count = plan(*sizes, weighting="labeled")
    assert labels_count.omega.tolist() == [4 / 6, 0, 2 / 6]
    assert labels_count.tau == [2, 0, 5]  # who has no weight takes no part
    assert (labels_count.able, labels_count.lacking) == ([0, 2], [])
    assert plan(*sizes, weighting="uniform").omega.tolist() == [1 / 3] * 3

    supervised = plan(*sizes, uses_unlabeled=False)
    assert supervised.tau == supervised.tau_labeled == [1, 0, 1]
    assert supervised.omega.tolist() == [14 / 44, 0, 30 / 44]
    assert plan(*sizes, uses_unlabeled=False, steps="step_matched").tau == [2, 0, 5]
    assert plan((0, 40), (4, 5), epochs=10).tau_labeled == [1, 10]
    revealed = plan(*sizes, uses_unlabeled=False, reveal_labels=True)
    assert revealed.tau == [3, 1, 7]
    assert revealed.labeled[0].tolist() == list(range(14))
    assert revealed.unlabeled.size.tolist() == [0, 0, 0]
