"""The geometric median against what is known of it."""

import pytest
import torch
from torch import Tensor

from fedshvr.algorithms.aggregation import Cohort
from fedshvr.algorithms.robust import GeometricMedian
from fedshvr.errors import UserError


def found(moves: list[list[float]], weights: list[float], steps: int = 200) -> Tensor:
    aggregation, n = GeometricMedian(steps), len(moves)
    w, rows = torch.tensor(weights, dtype=torch.float64), torch.tensor(moves, dtype=torch.float64)
    aggregation.begin(Cohort(list(range(n)), w / w.sum(), w, w, []), torch.zeros_like(rows[0]))
    for k in range(n):
        aggregation.add([k], rows[k : k + 1], -rows[k : k + 1])
    return aggregation.finish()


def test_of_a_triangle_with_equal_sides_it_is_the_centre() -> None:
    corners = [[0.0, 0.0], [1.0, 0.0], [0.5, 0.75**0.5]]
    assert found(corners, [1, 1, 1]).tolist() == pytest.approx([0.5, 0.75**0.5 / 3], abs=1e-9)


def test_on_a_line_it_is_the_weighted_median() -> None:
    assert found([[0.0], [1.0], [7.0]], [1, 1, 3]).item() == pytest.approx(7.0, abs=1e-4)
    assert found([[0.0], [1.0], [7.0]], [1, 3, 1]).item() == pytest.approx(1.0, abs=1e-4)


def test_no_point_near_it_has_a_smaller_sum_of_distances() -> None:
    rng = torch.Generator().manual_seed(0)
    moves, w = torch.randn(7, 3, generator=rng, dtype=torch.float64), torch.arange(1.0, 8, dtype=torch.float64)
    z = found(moves.tolist(), w.tolist())

    def cost(point: Tensor) -> float:
        return float(w @ torch.linalg.vector_norm(moves - point, dim=1))

    assert all(cost(z + 1e-2 * torch.randn(3, generator=rng, dtype=torch.float64)) > cost(z) for _ in range(50))


def test_how_far_off_a_minority_is_does_not_matter() -> None:
    honest = [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.5, 0.2]]
    near, far = (found([*honest, [d, d]], [1] * 5, steps=16) for d in (1e3, 1e9))
    torch.testing.assert_close(near, far, rtol=0, atol=1e-3)
    assert far.abs().max() < 1.01


def test_without_steps_it_is_refused() -> None:
    with pytest.raises(UserError, match=r"algorithm\.aggregation\.steps=0: must be at least 1"):
        GeometricMedian(0)
