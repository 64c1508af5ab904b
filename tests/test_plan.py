"""Local steps from the sizes of the data, as they are written."""

import pytest

from fedshvr.plan import LocalSGD, local_steps


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
