"""Non-negative integer vectors and matrices with exact sums: how many samples of which class go to whom."""

import math

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow


def spread(total: int, parts: int) -> np.ndarray:
    """`total` in `parts` integers that differ by at most one."""
    return total // parts + (np.arange(parts) < total % parts).astype(np.int64)


def apportion(shares: np.ndarray, total: int) -> np.ndarray:
    """Integers in proportion to `shares` that sum to `total`: each rounded down, then the largest remainders up."""
    exact = shares * (total / max(shares.sum(), 1e-300))
    whole = np.floor(exact).astype(np.int64)
    whole[np.argsort(whole - exact, kind="stable")[: total - whole.sum()]] += 1
    return whole


def bounded_sizes(total: int, parts: int, low: float, high: float, rng: np.random.Generator) -> np.ndarray:
    """Random integers between `low` and `high` times their mean that sum to `total`."""
    mean = total / parts
    least, most = math.ceil(min(low * mean, total // parts)), math.floor(max(high * mean, -(-total // parts)))
    room = total - parts * least
    wanted = room / max(parts * (most - least), 1)  # the mean of the places in [least, most], as fractions
    place = rng.random(parts)
    if place.mean() > wanted:
        place *= wanted / place.mean()
    else:
        place = 1 - (1 - place) * (1 - wanted) / (1 - place.mean())
    return least + apportion(place, room)


def raise_to_minimum(sizes: np.ndarray, minimum: int) -> np.ndarray:
    """`sizes` with the same sum and none below `minimum`; the largest give, one by one."""
    raised = np.maximum(sizes, minimum)
    for _ in range(raised.sum() - sizes.sum()):
        raised[raised.argmax()] -= 1
    return raised


def choose_evenly(options: int, times: int, count: int, rng: np.random.Generator) -> list[np.ndarray]:
    """`times` random choices of `count` options, the least used first: their use never differs by more than one."""
    used = np.zeros(options, dtype=np.int64)
    choices = []
    for _ in range(times):
        least_used = np.lexsort((rng.random(options), used))[:count]
        used[least_used] += 1
        choices.append(np.sort(least_used))
    return choices


def balanced_counts(choices: list[np.ndarray], sizes: np.ndarray, options: int, rng: np.random.Generator) -> np.ndarray:
    """Row k: `sizes[k]` spread evenly over `choices[k]`, what is left over going to the least used options."""
    counts = np.zeros((len(sizes), options), dtype=np.int64)
    for row, chosen, size in zip(counts, choices, sizes, strict=True):
        order = np.lexsort((rng.random(len(chosen)), counts.sum(0)[chosen]))
        row[chosen[order]] = spread(size, len(chosen))
    return counts


def draw_rows(available: np.ndarray, sizes: np.ndarray, allowed: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Row after row, `sizes[k]` samples drawn blindly from what is left of the allowed classes, as far as they last."""
    left = available.copy()
    counts = np.zeros((len(sizes), len(available)), dtype=np.int64)
    for k in rng.permutation(len(sizes)):
        candidates = left * allowed[k]
        counts[k] = rng.multivariate_hypergeometric(candidates, min(sizes[k], candidates.sum()))
        left -= counts[k]
    return counts


def fit_margins(weights: np.ndarray, rows: np.ndarray, columns: np.ndarray, iterations: int = 500) -> np.ndarray:
    """The integer matrix with sums `rows` and `columns` nearest in shape to positive `weights`.

    Iterative proportional fitting, x_kc = a_k w_kc b_c; rounded down; the few samples missing are added by `complete`.
    """
    x = weights.astype(float)
    for _ in range(iterations):
        x *= (rows / np.maximum(x.sum(1), 1e-300))[:, None]
        x *= (columns / np.maximum(x.sum(0), 1e-300))[None, :]
    x *= np.minimum(1.0, rows / np.maximum(x.sum(1), 1e-300))[:, None]  # now rounding down exceeds no margin
    return complete(np.floor(x).astype(np.int64), rows, columns, np.ones_like(weights, dtype=bool))


def level_columns(shares: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Each row of `shares` in another order, so that the column sums of rows[k] shares[k] come near to `columns`.

    Greedy: row after row, the one with the largest single part first, larger shares to columns with more left.
    """
    left, ordered = columns.astype(float), np.empty_like(shares)
    for k in np.argsort(-rows * shares.max(1), kind="stable"):
        ordered[k, np.argsort(-left, kind="stable")] = -np.sort(-shares[k])
        left -= rows[k] * ordered[k]
    return ordered


def complete(counts: np.ndarray, rows: np.ndarray, columns: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Raise `counts` to the row sums within column capacities and `allowed` cells, by a maximum flow.

    The flow may undo entries (edges back from column to row), so the rows are met whenever any matrix meets them.
    """
    n, m = counts.shape
    row, column, source, sink = np.s_[:n], np.s_[n : n + m], n + m, n + m + 1
    capacity = np.zeros((n + m + 2, n + m + 2), dtype=np.int32)
    capacity[source, row] = rows - counts.sum(1)
    capacity[row, column] = allowed * rows[:, None]
    capacity[column, row] = counts.T
    capacity[column, sink] = columns - counts.sum(0)
    flow = maximum_flow(csr_array(capacity), source, sink).flow.toarray()
    return counts + flow[row, column]
