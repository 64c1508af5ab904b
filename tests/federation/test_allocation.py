"""Integer matrices with exact margins."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedshvr.federation import allocation


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 30), st.integers(1, 12), st.floats(0.05, 1), st.integers(0, 2**32))
def test_an_allocation_is_found_whenever_there_is_one(rows: int, columns: int, density: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    allowed = rng.random((rows, columns)) < density
    solution = rng.integers(0, 50, (rows, columns)) * allowed  # uses up every column: no slack at all
    sizes, capacities = solution.sum(1), solution.sum(0)
    drawn = allocation.draw_rows(capacities, sizes, allowed, rng)
    found = allocation.complete(drawn, sizes, capacities, allowed)
    assert (found >= 0).all()
    assert (found[~allowed] == 0).all()
    assert (found.sum(1) == sizes).all()
    assert (found.sum(0) == capacities).all()


def test_fitting_margins_keeps_the_shape() -> None:
    """Fitting x_kc = a_k w_kc b_c keeps the cross ratios of w."""
    weights = np.array([[0.6, 0.3, 0.1], [0.2, 0.2, 0.6]])
    fitted = allocation.fit_margins(weights, np.array([400_000, 600_000]), np.array([300_000, 300_000, 400_000]))
    assert fitted.sum(1).tolist() == [400_000, 600_000]
    assert fitted.sum(0).tolist() == [300_000, 300_000, 400_000]
    assert fitted[0, 0] * fitted[1, 2] / (fitted[0, 2] * fitted[1, 0]) == pytest.approx(
        0.6 * 0.6 / (0.1 * 0.2), rel=1e-3
    )


def test_level_columns_by_hand() -> None:
    """Row 1 comes first with 0.9 * 20 = 18 and finds 18, 17, 5 left; then 0, 16, 4 are left for row 0."""
    shares, rows, columns = np.array([[0.8, 0.2, 0.0], [0.05, 0.05, 0.9]]), np.array([20, 20]), np.array([17, 5, 18])
    ordered = allocation.level_columns(shares, rows, columns)
    np.testing.assert_array_equal(ordered, [[0.8, 0.2, 0.0], [0.05, 0.05, 0.9]])
    swapped = allocation.level_columns(shares[:, ::-1], rows, columns)
    np.testing.assert_array_equal(swapped, ordered)
