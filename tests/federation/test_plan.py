"""Local steps from the sizes of the data, as they are written."""

import methods
import numpy as np
import pytest
import tiny
import torch

from fedshvr.algorithms.objectives.base import Objective
from fedshvr.algorithms.objectives.supervised import Supervised
from fedshvr.compute.streams import Draws
from fedshvr.data.batches import Batcher
from fedshvr.errors import UserError
from fedshvr.federation.partition import Split
from fedshvr.federation.plan import LocalSGD, epoch_starts, local_steps, make_plan


@pytest.mark.parametrize(
    ("labeled", "unlabeled", "epochs", "batch", "tau"),
    [
        (60, 5940, 2, 32, 371),  # the paper's MNIST IID: 371.25
        (60, 0, 2, 32, 3),
        (60, 0, 2.14, 32, 4),
        (100, 0, 0.58, 29, 2),  # 1.9999999999999998 in floating point
        (10, 3, 0.1, 32, 1),
    ],
)
def test_tau_is_the_floor_and_at_least_one(labeled: int, unlabeled: int, epochs: float, batch: int, tau: int) -> None:
    local = LocalSGD(eta=0.1, epochs=epochs, batch_labeled=batch, batch_unlabeled=batch)
    assert local_steps(labeled, unlabeled, local) == tau


@pytest.mark.parametrize(
    ("labeled", "unlabeled", "epochs", "batch", "tau"),
    [
        (60, 0, 2, 32, 4),  # the paper's FedAvg with the last batch kept: 2 batches an epoch
        (60, 5940, 2, 32, 372),  # 186 an epoch
        (64, 0, 2, 32, 4),  # nothing is left over
        (65, 0, 2, 32, 6),  # not ceil(65 * 2 / 32) = 5
        (10, 0, 3, 32, 3),  # less than a batch
        (60, 0, 0.5, 32, 1),
        (0, 0, 1, 32, 1),  # one at least
        (70, 0, 1.5, 32, 5),  # ceil(1.5 * 3)
        (100, 0, 0.58, 1, 58),  # 57.99.. in floating point
    ],
)
def test_ceil_keeps_the_last_batch_of_an_epoch(
    labeled: int, unlabeled: int, epochs: float, batch: int, tau: int
) -> None:
    local = LocalSGD(eta=0.1, epochs=epochs, batch_labeled=batch, batch_unlabeled=batch, rounding="ceil")
    assert local_steps(labeled, unlabeled, local) == tau


@pytest.mark.parametrize(
    ("tau", "epochs", "starts"),
    [
        (371, 2, {186: 1}),  # 185.5
        (12, 3, {4: 1, 8: 2}),
        (5, 1.5, {4: 1}),
        (7, 1, {}),
        (7, 0.5, {}),
        (2, 5, {1: 2}),  # epochs 1 and 2 begin before step 1, 3 and 4 after it
        (1, 3, {}),
        (58, 0.58, {}),
    ],
)
def test_where_the_epochs_of_a_round_begin(tau: int, epochs: float, starts: dict[int, int]) -> None:
    assert epoch_starts(tau, epochs) == starts


def test_a_supervised_client_counts_its_labels_alone() -> None:
    splits = [Split(np.arange(60), np.arange(60, 6000), (0,))]
    for rounding, tau in (("floor", (371, 3)), ("ceil", (372, 4))):
        local = LocalSGD(eta=0.1, epochs=2, batch_labeled=32, batch_unlabeled=32, rounding=rounding)
        plans = make_plan(splits, local), make_plan(splits, local, uses_unlabeled=False)
        assert tuple(plan.tau[0] for plan in plans) == tau
        assert plans[0].tau_labeled == plans[1].tau_labeled == [tau[1]]


def test_an_unknown_rounding_is_refused() -> None:
    with pytest.raises(UserError, match=r"client\.rounding=up: must be one of floor, ceil"):
        LocalSGD(eta=0.1, epochs=1, batch_labeled=1, batch_unlabeled=1, rounding="up")


def batches(rounding: str, size: int, clients: int = 1) -> torch.Tensor:
    """Labelled samples of two shuffled epochs in batches of 4: (clients, steps, 4)."""
    local = LocalSGD(0.1, 2, 4, 4, sampling="shuffle", rounding=rounding)
    splits = [Split(np.arange(100 * k, 100 * k + size), np.arange(0), (0,)) for k in range(clients)]
    plan = make_plan(splits, local, uses_unlabeled=False)
    objective: Objective = Supervised()
    batcher = Batcher(plan, local, objective, tiny.AUGMENTS)
    return batcher.choose(Draws(0, 0, torch.arange(clients)), plan.tau[0]).labeled


@pytest.mark.parametrize("size", [5, 10, 11])
def test_shuffled_passes_with_ceil_use_every_sample_and_fill_the_last_batch(size: int) -> None:
    per_pass = -(-size // 4)
    for client, drawn in enumerate(batches("ceil", size, clients=2)):
        assert drawn.shape == (2 * per_pass, 4)
        for epoch in drawn.split(per_pass):
            assert epoch.unique().tolist() == [100 * client + i for i in range(size)]
            assert all(len(batch.unique()) == 4 for batch in epoch)
            assert len(epoch[:-1].unique()) == 4 * (per_pass - 1)  # only the last batch repeats samples


def test_ceil_changes_nothing_when_nothing_is_left_over() -> None:
    assert torch.equal(batches("ceil", 12), batches("floor", 12))
    assert torch.equal(batches("ceil", 10)[:, :2], batches("floor", 10)[:, :2])


def test_labelled_samples_are_augmented_or_left_as_they_are() -> None:
    module = tiny.federated(methods.MADE["soft"](), augments=tiny.AUGMENTS | {"labeled": tiny.AUGMENTS["clean"]})
    pool = module.federation.pool(torch.device("cpu"), torch.float64, pseudo_labels=True)
    for augments, left in ((module.augments, True), (tiny.AUGMENTS, False)):
        batcher = Batcher(module.plan, module.method.local, module.method.objective, augments)
        choices = batcher.choose(Draws(0, 0, torch.arange(3)), 4)
        batch = batcher.gather(choices, pool)
        assert torch.equal(batch.x, pool.x[choices.labeled]) == left
        assert not torch.equal(batch.u[0], pool.x[choices.unlabeled])


@pytest.mark.parametrize("sampling", ["replacement", "shuffle"])
def test_both_engines_take_the_steps_of_ceil(sampling: str) -> None:
    local = LocalSGD(0.1, 1, 4, 5, sampling=sampling, rounding="ceil")
    one, many = (
        tiny.fit(methods.MADE["soft"](), local=local, engine=engine) for engine in ("sequential", "vectorized")
    )
    assert one.plan.tau == [3, 4, 5]  # of 12, 18 and 24 unlabelled samples
    torch.testing.assert_close(many.theta, one.theta, rtol=0, atol=1e-12)
