"""Fig. 5: the loss around a trained model along two random, filter-normalised directions (Li et al. 2018)."""

from pathlib import Path

import numpy as np

from fedshvr.reporting.collect import Run
from fedshvr.reporting.items import NONE, Item, Surface, Table
from fedshvr.reporting.paper import item
from fedshvr.reporting.sweeps import Found


def fig5(found: Found, caches: list[Path], points: int, samples: int) -> Item:
    """Q(b1, b2) = F(theta + b1 d1 + b2 d2, v) without and with r2, at the last theta of the same seed and setting."""
    surfaces, rows, left_out = [], [], []
    groups = [g for g in found.groups if not g.variant and g.setting == found.settings[0]]
    seed = min(set.intersection(*(set(g.runs) for g in groups)), default=None) if groups else None
    for group in groups:
        alpha2 = group.cell["algorithm.objective.alpha2"]
        run = group.runs.get(min(group.runs) if seed is None else seed)
        assert run is not None
        made = cached_surface(run, caches, points, samples)
        if made is None:
            left_out.append(f"seed {run.seed} with α2 = {alpha2:g} has no checkpoints/last.ckpt any more")
            rows.append([f"α2 = {alpha2:g}", NONE, NONE, NONE])
            continue
        beta, values = made
        surfaces.append(Surface(f"α2 = {alpha2:g}", beta.tolist(), values.tolist()))
        centre, far = values[points // 2, points // 2], near(values, beta, 0.5)
        rows.append([f"α2 = {alpha2:g}", f"{centre:.4f}", f"{far - centre:+.4f}", f"{values.max():.3f}"])
    table = Table(["Fed-SHVR", "F at the centre", "mean rise at distance 0.5", "largest F"], rows)
    which = "Different seeds" if seed is None else f"Seed {seed}"
    notes = [f"{which}, at most {samples} samples of each kind a client, clean images; one scale for both", *left_out]
    whole = item(found, "Fig. 5: loss landscape, MNIST Non-IID", table, note=". ".join(notes) + "." if groups else "")
    whole.surfaces = surfaces
    return whole


def near(values: np.ndarray, beta: np.ndarray, radius: float) -> float:
    """The mean over the grid points whose distance from the centre is about `radius`."""
    distance = np.hypot(*np.meshgrid(beta, beta))
    return float(values[np.abs(distance - radius) <= (beta[1] - beta[0])].mean())


def cached_surface(run: Run, caches: list[Path], points: int, samples: int) -> tuple[np.ndarray, np.ndarray] | None:
    """The surface of one run, or None if its model is gone; kept by the sha256 of theta: it takes up to minutes.

    It is looked for in every cache and written to the last: beta in the first line, then the grid.
    """
    name = f"landscape_{run.summary['theta_sha256'][:16]}_{points}_{samples}.csv"
    path = next((cache / name for cache in caches if (cache / name).is_file()), caches[-1] / name)
    if not path.is_file():
        if not (run.folder / "checkpoints" / "last.ckpt").is_file():
            return None
        from fedshvr.reporting.surface import surface  # torch: only where there is something to compute

        print(f"loss landscape of {run.folder} ({points} x {points} points) ...", flush=True)
        beta, values = surface(run.folder, points, samples)
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savetxt(path, np.vstack([beta, values]), fmt="%.17g", delimiter=",")
    table = np.loadtxt(path, delimiter=",")
    return table[0], table[1:]
