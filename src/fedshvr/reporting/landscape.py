"""Fig. 5: the loss around a trained model along two random, filter-normalised directions (Li et al. 2018)."""

from pathlib import Path

import numpy as np

from fedshvr.reporting.collect import Run
from fedshvr.reporting.items import NONE, Item, Surface, Table
from fedshvr.reporting.paper import item
from fedshvr.reporting.sweeps import Found


def fig5(found: Found, cache: Path, points: int, samples: int) -> Item:
    """Q(b1, b2) = F(theta + b1 d1 + b2 d2, v) without and with r2, at the last theta of the same seed."""
    surfaces, rows, left_out = [], [], []
    groups = [g for g in found.groups if not g.variant]
    seed = min(set.intersection(*(set(g.runs) for g in groups)), default=None) if groups else None
    for group in groups:
        alpha2 = group.cell["algorithm.objective.alpha2"]
        run = group.runs.get(min(group.runs) if seed is None else seed)
        assert run is not None
        if not (run.folder / "checkpoints" / "last.ckpt").is_file():
            left_out.append(f"seed {run.seed} with α2 = {alpha2:g} has no checkpoints/last.ckpt any more")
            rows.append([f"α2 = {alpha2:g}", NONE, NONE, NONE])
            continue
        beta, values = cached_surface(run, cache, points, samples)
        surfaces.append(Surface(f"α2 = {alpha2:g}", beta.tolist(), values.tolist()))
        centre, far = values[points // 2, points // 2], near(values, beta, 0.5)
        rows.append([f"α2 = {alpha2:g}", f"{centre:.4f}", f"{far - centre:+.4f}", f"{values.max():.3f}"])
    table = Table(["Fed-SHVR", "F at the centre", "mean rise at distance 0.5", "largest F"], rows)
    which = "Different seeds" if seed is None else f"Seed {seed}"
    notes = [f"{which}, at most {samples} samples of each kind a client, clean images; one scale for both", *left_out]
    made = item(found, "Fig. 5: loss landscape, MNIST Non-IID", table, note=". ".join(notes) + "." if groups else "")
    made.surfaces = surfaces
    return made


def near(values: np.ndarray, beta: np.ndarray, radius: float) -> float:
    """The mean over the grid points whose distance from the centre is about `radius`."""
    distance = np.hypot(*np.meshgrid(beta, beta))
    return float(values[np.abs(distance - radius) <= (beta[1] - beta[0])].mean())


def cached_surface(run: Run, cache: Path, points: int, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """The surface of one run; kept by the sha256 of theta, because it takes up to minutes."""
    path = cache / f"landscape_{run.summary['theta_sha256'][:16]}_{points}_{samples}.npz"
    if not path.is_file():
        from fedshvr.reporting.surface import surface  # torch: only where there is something to compute

        print(f"loss landscape of {run.folder} ({points} x {points} points) ...", flush=True)
        beta, values = surface(run.folder, points, samples)
        cache.mkdir(parents=True, exist_ok=True)
        np.savez(path, beta=beta, values=values)
    with np.load(path) as saved:
        return saved["beta"], saved["values"]
