"""The feature recipe step by step on small images, and its cache file."""

import inspect
import os
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import compose_train

from fedshvr.data import features, sources
from fedshvr.data.features import Affine, Recipe
from fedshvr.data.fetch import Arrays
from fedshvr.errors import UserError
from fedshvr.reporting.sweeps import SCALES

REPOSITORY = Path(__file__).parents[2]
SMALL = Recipe(patch=3, filters=8, components=12, sample=500)


def images(n: int, seed: int = 0, side: int = 8) -> np.ndarray:
    """Smooth noise: neighbouring pixels are alike, as in photographs."""
    coarse = np.random.default_rng(seed).integers(0, 256, (n, side // 2, side // 2, 3))
    fine = np.random.default_rng(seed + 1).integers(-30, 30, (n, side, side, 3))
    return (coarse.repeat(2, 1).repeat(2, 2) + fine).clip(0, 255).astype(np.uint8)


# --- the recipe ---


def test_a_patch_is_normalised_by_its_own_mean_and_variance() -> None:
    patches = torch.tensor([[1.0, 3.0, 5.0, 7.0], [4.0, 4.0, 4.0, 4.0]])
    torch.testing.assert_close(
        features.normalized(patches, contrast=4.0), torch.tensor([[-1.0, -1 / 3, 1 / 3, 1.0], [0.0] * 4])
    )
    maps = patches.T[None]  # (1, values, places), as unfold gives them: the values of a patch along dimension 1
    torch.testing.assert_close(features.normalized(patches.T.contiguous().T, 4.0), features.normalized(maps, 4.0)[0].T)


def test_whitened_patches_have_the_identity_as_covariance() -> None:
    patches = features.normalized(features.random_patches(images(50), SMALL), 10.0)
    mean, w = features.whitening(patches, epsilon=0.1)
    covariance = torch.cov(patches.T, correction=0) + 0.1 * torch.eye(27)
    torch.testing.assert_close(w @ covariance @ w, torch.eye(27, dtype=torch.float64))
    torch.testing.assert_close(w, w.T)  # ZCA: of all whitenings the one that changes the patches least
    free = torch.randn(400, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).cumsum(1)
    mean, w = features.whitening(free, epsilon=0.0)
    torch.testing.assert_close(torch.cov(((free - mean) @ w).T, correction=0), torch.eye(5, dtype=torch.float64))


def test_patches_are_windows_of_training_images() -> None:
    x = images(3)
    windows = {
        x[i, r : r + 3, c : c + 3].transpose(2, 0, 1).tobytes() for i in range(3) for r in range(6) for c in range(6)
    }
    drawn = features.random_patches(x, SMALL).numpy().astype(np.uint8)
    assert {row.tobytes() for row in drawn} <= windows
    assert len({row.tobytes() for row in drawn}) > 90  # of 108 places


def test_both_signs_pass_a_threshold_and_are_averaged_over_quadrants() -> None:
    """One filter that reads the middle of a normalised 3x3 grey patch."""
    recipe = replace(SMALL, filters=1, contrast=0.0)
    x = np.random.default_rng(0).integers(0, 256, (2, 6, 6, 1)).astype(np.uint8)
    out = features.respond(x, Affine(torch.eye(9)[4:5], torch.tensor([0.1])), recipe)
    assert out.shape == (2, 2 * 1 * 4)
    z = np.empty((2, 4, 4))
    for i, r, c in np.ndindex(z.shape):
        patch = x[i, r : r + 3, c : c + 3, 0].astype(float)
        z[i, r, c] = (patch[1, 1] - patch.mean()) / patch.std() + 0.1
    for row, half in enumerate((np.maximum(0, z - 0.6), np.maximum(0, -z - 0.6))):
        quadrants = half.reshape(2, 2, 2, 2, 2).mean((2, 4)).reshape(2, 4)
        np.testing.assert_allclose(out[:, 4 * row : 4 * row + 4], quadrants, rtol=1e-4, atol=1e-6)


def test_filters_are_whitened_patches_of_length_one() -> None:
    patches = features.random_patches(images(50), SMALL)
    bank = features.filter_bank(patches, SMALL)
    p = features.normalized(patches, SMALL.contrast)
    mean, w = features.whitening(p, SMALL.epsilon)
    white = (p - mean) @ w
    z = torch.nn.functional.normalize(white[:8], dim=1) @ white.T  # scalar products with all whitened patches
    torch.testing.assert_close(bank.matrix @ p.float().T + bank.offset[:, None], z.float(), rtol=1e-4, atol=1e-4)


def test_components_are_uncorrelated_the_largest_first_with_one_scale() -> None:
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(0))
    x = draw(3000, 6) @ draw(6, 9) * torch.arange(1, 10) + 5
    to = features.principal(x, 4)
    scores = x @ to.matrix.T + to.offset
    covariance = torch.cov(scores.T, correction=0)
    variances = covariance.diag()
    assert variances.mean().item() == pytest.approx(1, abs=1e-4)
    assert variances.tolist() == sorted(variances.tolist(), reverse=True)
    torch.testing.assert_close(covariance, variances.diag(), rtol=0, atol=1e-4)
    torch.testing.assert_close(scores.mean(0), torch.zeros(4), rtol=0, atol=1e-4)
    from sklearn.decomposition import PCA

    standard = ((x - x.mean(0)) / x.std(0, correction=0)).numpy()
    theirs = PCA(4).fit_transform(standard)
    np.testing.assert_allclose(np.abs(scores), np.abs(theirs / np.sqrt(theirs.var(0).mean())), atol=1e-3)


def test_the_features_are_the_same_each_time_and_the_test_images_decide_nothing() -> None:
    x, x_test = images(60), images(10, seed=5)
    train, test = features.compute(x, x_test, SMALL)
    assert (train.shape, test.shape, train.dtype) == ((60, 12), (10, 12), torch.float32)
    assert train.var(0, correction=0).mean().item() == pytest.approx(1, abs=1e-4)
    again, other = features.compute(x, x[:10], SMALL)
    assert torch.equal(train, again)
    torch.testing.assert_close(other, train[:10], rtol=1e-3, atol=1e-4)
    assert not torch.allclose(features.compute(x, x_test, replace(SMALL, seed=1))[0], train)


def test_no_label_can_reach_the_features() -> None:
    assert list(inspect.signature(features.compute).parameters) == ["x", "x_test", "recipe"]


# --- the cache ---


@pytest.fixture
def cifar(monkeypatch: pytest.MonkeyPatch) -> Arrays:
    """Small images in the place of CIFAR-10's, and a small recipe."""
    labels = partial(np.random.default_rng(0).integers, 0, 10, dtype=np.uint8)
    arrays = Arrays(images(400), labels(size=400), images(10, seed=5), labels(size=10))
    monkeypatch.setitem(sources.DIGESTS, "cifar10", sources.digest(arrays))
    monkeypatch.setattr(sources, "gather", lambda *_: arrays)
    monkeypatch.setattr(sources, "RECIPE", SMALL)
    return arrays


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[Recipe]:
    """Grows by one each time the features are computed."""
    recipes, compute = [], features.compute
    monkeypatch.setattr(features, "compute", lambda x, t, recipe: (recipes.append(recipe), compute(x, t, recipe))[1])
    return recipes


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def test_features_are_computed_once_and_then_need_no_images(
    cifar: Arrays, computed: list[Recipe], tmp_path: Path
) -> None:
    first = sources.load("cifar10_features", tmp_path)
    (tmp_path / "cifar10.npz").unlink()
    second = sources.load("cifar10_features", tmp_path, download=False)
    assert len(computed) == 1
    assert torch.equal(first.x, second.x)
    assert torch.equal(first.x_test, second.x_test)
    assert (first.x.shape, first.x_test.shape, first.x.dtype) == ((400, 12), (10, 12), torch.float32)
    assert (second.y.tolist(), second.y_test.tolist()) == (cifar.y.tolist(), cifar.y_test.tolist())
    assert (second.y.dtype, second.classes[3]) == (torch.int64, "cat")
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("damage", [flip_a_bit, truncate])
def test_a_damaged_file_is_noticed_and_computed_again(
    damage: Callable[[Path], None], cifar: Arrays, computed: list[Recipe], tmp_path: Path
) -> None:
    first = sources.load("cifar10_features", tmp_path)
    damage(tmp_path / "cifar10_features.npz")
    assert torch.equal(sources.load("cifar10_features", tmp_path).x, first.x)
    assert len(computed) == 2
    sources.load("cifar10_features", tmp_path)
    assert len(computed) == 2


def test_another_recipe_makes_the_file_outdated(
    cifar: Arrays,
    computed: list[Recipe],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    sources.load("cifar10_features", tmp_path)
    monkeypatch.setattr(sources, "RECIPE", replace(SMALL, version=2))
    caplog.clear()
    sources.load("cifar10_features", tmp_path)
    assert [recipe.version for recipe in computed] == [1, 2]
    assert "is outdated (made by another recipe" in caplog.text


def test_a_failure_leaves_no_file(cifar: Arrays, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np, "savez", lambda file, **_: (file.write(b"half"), 1 / 0))
    monkeypatch.setattr(sources, "cached", lambda *_: cifar)
    with pytest.raises(ZeroDivisionError):
        sources.load("cifar10_features", tmp_path)
    assert not (tmp_path / "cifar10_features.npz").exists()


def test_without_network_and_images_the_refusal_names_both(tmp_path: Path) -> None:
    root = tmp_path / "data"
    with pytest.raises(UserError) as error:
        sources.load("cifar10_features", root, download=False)
    assert str(error.value).startswith(f"data.name=cifar10_features: {root / 'cifar10_features.npz'} is missing")
    assert "data.name=cifar10: data.download=false forbids the network" in str(error.value)
    assert not root.exists()


def test_vectors_have_one_scaling(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data\.scaling=unit: must be normalized for cifar10_features"):
        sources.load("cifar10_features", tmp_path, scaling="unit")


# --- runs ---

TINY = ["scale=smoke", "partition.clients=4", "partition.unlabeled=120", "model.width=0.1"]


@pytest.fixture
def start(cifar: Arrays, tmp_path: Path, train: Callable) -> Callable:
    """A run on the features of small images."""
    return partial(train, "experiment=cifar_features_mismatch1", f"paths.data={tmp_path}", *TINY)


@pytest.mark.parametrize(("ratio", "name"), [(0, "0"), (0.25, "025"), (0.5, "05"), (0.75, "075"), (1, "1")])
def test_an_experiment_is_the_papers_federation_on_vectors(ratio: float, name: str) -> None:
    vectors, paper = (compose_train(f"experiment=cifar_{kind}mismatch{name}") for kind in ("features_", ""))
    assert vectors.partition == paper.partition
    assert (vectors.partition.mismatch_ratio, vectors.partition.unlabeled) == (ratio, 20000)
    assert (vectors.data.name, list(vectors.model.hidden)) == ("cifar10_features", [200])
    rounds = [compose_train(f"experiment=cifar_features_mismatch{name}", f"scale={s}").rounds for s in SCALES]
    assert rounds == [200, 100, 2]


@pytest.mark.parametrize("algorithm", ["fed_shvr", "fed_mt", "fed_mixmatch", "fed_vat", "fedmatch"])
def test_methods_run_on_vectors(start: Callable, algorithm: str) -> None:
    run = start(f"algorithm={algorithm}", "rounds=2")
    assert run.summary["status"] == "finished"
    assert [float(row["test_acc"]) >= 0 for row in run.rows] == [True, True]
    assert (run.folder / "partition.png").is_file()


VECTORS = "changes images, but data.name=cifar10_features has vectors"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["augment=translate2"], f"augment: Shift {VECTORS}; use augment=none"),
        (
            ["algorithm=fed_fixmatch", "augment_strong=randaugment"],
            f"augment_strong: RandAugment {VECTORS}; use augment_strong=none",
        ),
        (["model=cnn13"], "model=cnn13: needs images, not vectors of 12 (use model=mlp)"),
    ],
)
def test_what_needs_images_is_refused_in_one_sentence(start: Callable, options: list[str], sentence: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(sentence)}$"):
        start(*options)


def test_a_view_that_nobody_asks_for_is_no_reason_to_refuse(start: Callable) -> None:
    assert start("algorithm=fedavg", "augment_strong=randaugment").summary["status"] == "finished"


@pytest.mark.network
@pytest.mark.slow
def test_the_real_features_teach_fedavg(train: Callable) -> None:
    root = os.environ.get("DATA_DIR", REPOSITORY / "data")
    data = sources.load("cifar10_features", root)
    assert (data.x.shape, data.x_test.shape) == ((50000, 512), (10000, 512))
    assert data.x.mean(0).abs().max() < 1e-3
    assert data.x.var(0, correction=0).mean().item() == pytest.approx(1, abs=1e-4)
    run = train("experiment=cifar_features_mismatch0", "algorithm=fedavg", f"paths.data={root}", "rounds=20")
    assert run.summary["test_acc"] > 0.4
