"""The coefficients of the moves by hand, and sums that stay on the clients' device."""

import pytest
import torch
from torch import Tensor

from fedshvr.algorithms.aggregation import Average, Cohort, Normalized, effective_steps


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


COHORT = Cohort([4, 1], numbers(0.25, 0.75), numbers(2.0, 5.0), torch.tensor([2, 6]), [])


@pytest.mark.parametrize(
    ("aggregation", "wanted"),
    [
        (Average(), [0.25, 0.75]),
        (Normalized(), [4.25 * 0.25 / 2, 4.25 * 0.75 / 5]),  # tau_bar = 0.25 * 2 + 0.75 * 5
        (Normalized("steps"), [5 * 0.25 / 2, 5 * 0.75 / 5]),  # tau_bar = 0.25 * 2 + 0.75 * 6
    ],
)
def test_coefficients_by_hand(aggregation: Average, wanted: list[float]) -> None:
    assert aggregation.coefficients(COHORT).tolist() == pytest.approx(wanted, abs=1e-15)
    theta, move = numbers(0.0, 0.0), torch.tensor([[1.0, 2.0], [3.0, -4.0]], dtype=torch.float64)
    aggregation.begin(COHORT, theta)
    aggregation.add([1], move[1:], theta - move[1:])
    aggregation.add([4], move[:1], theta - move[:1])
    (direction,) = aggregation.sums()
    assert direction.tolist() == pytest.approx([wanted[0] + 3 * wanted[1], 2 * wanted[0] - 4 * wanted[1]], abs=1e-15)
    assert aggregation.finish() is direction


def test_those_who_are_left_share_the_weights() -> None:
    aggregation, theta, move = Average(), numbers(0.0), torch.tensor([[8.0]], dtype=torch.float64)
    aggregation.begin(COHORT, theta)
    aggregation.add([1], move, theta - move)
    aggregation.keep(Cohort([1], numbers(1.0), numbers(5.0), torch.tensor([6]), []))
    assert aggregation.finish().item() == 8
    assert Average().assign(3, 0, 0) == []


def test_sums_lie_where_the_model_does_in_its_precision() -> None:
    aggregation, theta = Average(), torch.zeros(3, dtype=torch.float32, device="meta")
    aggregation.begin(COHORT, theta)
    aggregation.add([1, 4], theta.expand(2, -1), theta.expand(2, -1))
    (direction,) = aggregation.sums()
    assert (direction.device.type, direction.dtype, direction.shape) == ("meta", torch.float32, (3,))


@pytest.mark.parametrize(
    ("tau", "momentum", "mu", "moved"),
    [
        (3, 0.0, 0.0, 3.0),
        (3, 0.5, 0.0, 1 + 1.5 + 1.75),
        (2, 0.0, 2.0, 1 + (1 - 0.1 * 2 * 1)),
        (3, 0.5, 2.0, 1 + (1.5 - 0.2) + (0.5 * 1.3 + 1 - 0.2 * 2.3)),
    ],
)
def test_how_far_a_unit_gradient_moves_a_client(tau: int, momentum: float, mu: float, moved: float) -> None:
    assert effective_steps(tau, 0.1, momentum, mu) == pytest.approx(moved, abs=1e-15)
