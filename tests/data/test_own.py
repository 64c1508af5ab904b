"""Own data by `_target_`: a folder of images, arrays, and a sentence for everything that is wrong with them."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pictures
import pytest
import torch
from PIL import Image

from fedshvr.data.images import ImageData, checked
from fedshvr.data.own import image_folder, npz
from fedshvr.errors import UserError

SMALL = ["partition.clients=3", "partition.labeled_per_client=3", "client.epochs=1", "model.hidden=[16]"]


def refused(call: Callable[[], object], sentence: str) -> None:
    with pytest.raises(UserError) as error:
        call()
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


# --- a folder of images ---


def test_a_folder_with_both_parts_is_read_in_the_order_of_its_paths(tmp_path: Path) -> None:
    root = pictures.write_parts(tmp_path, train=4, test=2)
    data = image_folder("pets", str(root), scaling="unit")
    assert (data.name, data.classes) == ("pets", ("cat", "dog", "owl"))
    assert (data.x.shape, data.x_test.shape) == ((12, 3, 8, 8), (6, 3, 8, 8))
    assert data.y.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    pixels = np.asarray(pictures.picture(1, 2))  # the third dog
    torch.testing.assert_close(data.x[6], torch.from_numpy(pixels.transpose(2, 0, 1).astype(np.float32)) / 255)
    assert data.preprocessing == {"peak": 255, "mean": None, "std": None, "size": None, "channels": 3}


def test_images_are_scaled_by_the_training_part_alone(tmp_path: Path) -> None:
    root = str(pictures.write_parts(tmp_path, train=4, test=2))
    unit, data = (image_folder("pets", root, scaling=s) for s in ("unit", "normalized"))
    mean, std = unit.x.mean((0, 2, 3)), unit.x.std((0, 2, 3), correction=0)
    torch.testing.assert_close(data.x_test, (unit.x_test - mean[:, None, None]) / std[:, None, None])
    assert data.preprocessing["mean"] == mean.tolist()
    assert data.preprocessing["std"] == std.tolist()


def test_one_tree_is_split_by_class_and_seed(tmp_path: Path) -> None:
    root = str(pictures.write(tmp_path, 10))
    make = partial(image_folder, "pets", root, scaling="unit", test_share=0.3)
    first, again, other = make(), make(), make(seed=1)
    assert first.y_test.bincount().tolist() == [3, 3, 3]
    assert first.y.bincount().tolist() == [7, 7, 7]
    assert torch.equal(first.x_test, again.x_test)
    assert not torch.equal(first.x_test, other.x_test)
    whole = torch.cat([first.x, first.x_test]).flatten(1)
    assert len(whole.unique(dim=0)) == 30  # every image once


def test_images_of_any_size_become_one_and_grey_if_asked(tmp_path: Path) -> None:
    pictures.write(tmp_path, 4)
    pictures.picture(0, 9, size=(20, 12)).save(tmp_path / "cat" / "9.png")
    data = image_folder("pets", str(tmp_path), size=[6, 10], channels=1)
    assert data.x.shape[1:] == (1, 6, 10)
    assert data.preprocessing["size"] == [6, 10]
    assert image_folder("pets", str(tmp_path), size=5).x.shape[1:] == (3, 5, 5)
    refused(lambda: image_folder("pets", str(tmp_path)), "9.png 20x12; give a size")


def test_other_files_and_hidden_folders_are_no_images(tmp_path: Path) -> None:
    pictures.write(tmp_path, 4)
    (tmp_path / "cat" / "notes.txt").write_text("nice cats")
    (tmp_path / ".cache").mkdir()
    (tmp_path / "cat" / "more").mkdir()
    pictures.picture(0, 9).save(tmp_path / "cat" / "more" / "9.PNG")
    data = image_folder("pets", str(tmp_path))
    assert (len(data.x) + len(data.x_test), len(data.classes)) == (13, 3)


def broken(root: Path) -> None:
    (root / "dog" / "1.png").write_bytes(b"no picture")


def truncated(root: Path) -> None:
    path = root / "dog" / "1.png"
    path.write_bytes(path.read_bytes()[:80])


def deep(root: Path) -> None:
    Image.fromarray(np.full((8, 8), 1000, np.uint16)).save(root / "dog" / "1.png")


def empty(root: Path) -> None:
    (root / "fox").mkdir()


def half(root: Path) -> None:
    (root / "train").mkdir()


@pytest.mark.parametrize(
    ("damage", "options", "sentence"),
    [
        (broken, {}, "1.png cannot be read as an image (cannot identify image file"),
        (truncated, {}, "1.png cannot be read as an image ("),
        (deep, {}, "1.png cannot be read as an image (mode I;16 has more than 8 bits a pixel"),
        (empty, {}, "fox has no image"),
        (half, {}, "has only one of the folders train and test"),
        (None, {"root": None}, "data.root=null: must be the folder of the images"),
        (None, {"root": "nowhere"}, "data.root=nowhere: there is no such folder"),
        (None, {"channels": 4}, "data.channels=4: must be 1 (grey) or 3 (RGB)"),
        (None, {"size": 0}, "data.size=0: must be a side in pixels, [height, width] or null"),
        (None, {"size": [8]}, "data.size=[8]: must be a side in pixels"),
        (None, {"scaling": "zca"}, "data.scaling=zca: must be one of normalized, unit"),
        (None, {"test_share": 0}, "data.test_share=0: must be above 0 and below 1"),
        (None, {"test_share": 0.9}, "data.test_share=0.9: must hold out and leave at least one sample of every class"),
    ],
)
def test_a_bad_folder_is_refused(tmp_path: Path, damage: Callable | None, options: dict, sentence: str) -> None:
    pictures.write(tmp_path, 3)
    if damage:
        damage(tmp_path)
    refused(lambda: image_folder(**{"name": "pets", "root": str(tmp_path)} | options), sentence)


def test_a_class_of_the_test_alone_is_refused(tmp_path: Path) -> None:
    pictures.write_parts(tmp_path, train=2, test=1)
    pictures.write(tmp_path / "test", 1, names=["wolf"])
    refused(lambda: image_folder("pets", str(tmp_path)), "test has the class wolf, which train has not")


def test_images_of_one_colour_cannot_be_normalised(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        for i in range(4):
            Image.new("L", (4, 4), 7).save(tmp_path / name / f"{i}.png")
    refused(lambda: image_folder("flat", str(tmp_path)), "all training images are the same")
    assert image_folder("flat", str(tmp_path), scaling="unit").x.unique().tolist() == [pytest.approx(7 / 255)]


# --- arrays ---


def save(path: Path, **changes: object) -> str:
    """Bytes of 6 training and 3 test images, in three classes."""
    rng = np.random.default_rng(0)
    arrays = {
        "x": rng.integers(0, 256, (6, 5, 4), np.uint8),
        "y": np.array([0, 1, 2, 0, 1, 2]),
        "x_test": rng.integers(0, 256, (3, 5, 4), np.uint8),
        "y_test": np.array([0, 1, 2], np.uint8),
    } | changes
    np.savez(path / "arrays.npz", **{key: value for key, value in arrays.items() if value is not None})
    return str(path / "arrays.npz")


def test_bytes_are_images(tmp_path: Path) -> None:
    data = npz("mine", save(tmp_path, classes=["a", "b", "$c^"]), scaling="unit")
    assert (data.x.shape, data.x.dtype, data.y_test.dtype) == ((6, 1, 5, 4), torch.float32, torch.int64)
    assert data.classes == ("a", "b", "$c^")
    assert data.preprocessing == {"peak": 255, "mean": None, "std": None, "size": None, "channels": 1}
    assert npz("mine", save(tmp_path)).x.mean().item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("shape", [(7,), (4, 2), (3, 6, 6)])
def test_other_numbers_are_taken_as_they_are(tmp_path: Path, shape: tuple[int, ...]) -> None:
    x, x_test = (np.random.default_rng(1).normal(5, 3, (n, *shape)) for n in (6, 3))
    data = npz("mine", save(tmp_path, x=x, x_test=x_test))
    assert torch.equal(data.x, torch.from_numpy(x).float())
    assert data.classes == ("0", "1", "2")
    images = {"peak": 1, "mean": None, "std": None, "size": None, "channels": 3}
    assert data.preprocessing == (images if len(shape) == 3 else {})


FLOATS = {"x": np.zeros((6, 4)), "x_test": np.zeros((3, 4))}
NAN = {"x": np.full((6, 4), np.nan), "x_test": np.zeros((3, 4))}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"x_test": None, "y_test": None}, "has no x_test, y_test; must have x, y, x_test and y_test"),
        ({"x": np.zeros(6)}, "x has shape (6,) and type float64; must be numbers (N, features)"),
        ({"x": np.full((6, 5, 4), "a")}, "x has shape (6, 5, 4) and type <U1; must be numbers"),
        ({"x": np.array([None] * 6)}, "cannot be read (Object arrays cannot be loaded"),
        ({"y": np.zeros(6)}, "y has shape (6,) and type float64; must be (N,) integers"),
        ({"y": np.zeros((6, 3), int)}, "y has shape (6, 3) and type int64; must be (N,) integers"),
        ({"x": np.zeros((6, 5, 4, 2), np.uint8)}, "with C 1 or 3"),
        ({"x": np.zeros((6, 5, 4))}, "x is of type float64, but x_test of uint8"),
        ({"x_test": np.zeros((3, 5, 5), np.uint8)}, "x has shape (6, 5, 4), but x_test (3, 5, 5)"),
        ({"x": np.zeros((6, 32, 32, 3)), "x_test": np.zeros((3, 32, 32, 3))}, "must have their channels first"),
        (FLOATS | {"y": np.arange(5)}, "6 training samples, but labels of shape (5,)"),
        (
            FLOATS | {"y_test": np.array([0, 1, 3])},
            "test labels are torch.int64 from 0 to 3; must be int64 from 0 to 2",
        ),
        (FLOATS | {"y": np.array([0, 1, 2, 0, 1, -1])}, "training labels are torch.int64 from -1 to 2"),
        (FLOATS | {"y": np.array([0, 1, 3, 0, 1, 3])}, "the class 2 has no training sample"),
        (FLOATS | {"x_test": np.zeros((3, 5))}, "test samples have shape (3, 5)"),
        (NAN, "a training sample holds a number that is not finite"),
    ],
)
def test_bad_arrays_are_refused(tmp_path: Path, changes: dict, sentence: str) -> None:
    file = save(tmp_path, **changes)
    refused(lambda: checked(npz("mine", file)), sentence)


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "arrays.npz").write_bytes(b"no archive")
    refused(lambda: npz("mine", str(tmp_path / "arrays.npz")), "arrays.npz: cannot be read (")
    refused(lambda: npz("mine", "nothing.npz"), "data.file=nothing.npz: there is no such file")
    refused(lambda: npz("mine", None), "data.file=null: must be a file of numpy.savez")


# --- what a source may return ---


def test_what_is_no_data_set_is_refused() -> None:
    refused(lambda: checked([1, 2]), "data._target_: must return an ImageData, not list")
    x, y = torch.zeros(4, 3), torch.tensor([0, 1, 0, 1])
    good = ImageData("mine", x, y, x, y, ("a", "b"))
    assert checked(good) is good
    refused(lambda: checked(replace(good, y=y.int())), "training labels are torch.int32 from 0 to 1; must be int64")
    refused(
        lambda: checked(replace(good, x=x.long())), "samples have shape (4, 3) and type torch.int64; must be floats"
    )
    refused(lambda: checked(replace(good, classes=("a",))), "has 1 class; must have at least two")


# --- runs ---


def test_a_run_on_a_folder_and_its_report(train: Callable, tmp_path: Path) -> None:
    from omegaconf import OmegaConf

    from fedshvr.reporting.build import report

    names = ["cat & <dog>", "$x^", "eule, ü"]
    for part, each, first in (("train", 20, 0), ("test", 5, 20)):
        pictures.write(tmp_path / "pets" / part, each, names, first=first)
    options = ["data=image_folder", f"data.root={tmp_path / 'pets'}", "validation=0.2", *SMALL]
    run = train(*options, folder="logs/a")
    assert run.summary["status"] == "finished"
    assert run.summary["test_acc"] > 0.9
    assert (run.folder / "partition.png").is_file()
    train(*options, "data.size=4", "rounds=1", folder="logs/b")
    train(*SMALL, "rounds=1", folder="logs/0")  # has no data.size at all
    cfg = OmegaConf.load(Path(__file__).parents[2] / "configs" / "report.yaml")
    folders = {"logs": str(tmp_path / "logs"), "out": str(tmp_path / "out"), "results": str(tmp_path), "wandb": False}
    (item,) = [item for item in report(OmegaConf.merge(cfg, folders)) if item.runs]  # type: ignore[arg-type]
    assert len(item.runs) == 3  # they are not taken for one experiment
    text = str(item.table.rows)
    assert f"data.name={tmp_path / 'pets'}" in text
    assert "data.size=4" in text


def test_a_run_on_sequences(train: Callable, tmp_path: Path) -> None:
    y, y_test = (np.arange(n) % 3 for n in (60, 15))
    x, x_test = (
        np.random.default_rng(0).normal(label[:, None, None], 0.1, (len(label), 4, 2)) for label in (y, y_test)
    )
    file = save(tmp_path, x=x, y=y, x_test=x_test, y_test=y_test)
    options = ["data=npz", f"data.file={file}", *SMALL]
    with pytest.raises(UserError, match=re.escape(f"data.name={file} has sequences; use augment=none")):
        train(*options)
    run = train(*options, "augment=none", "augment_strong=none", "client.epochs=20", "rounds=6")
    assert run.summary["test_acc"] > 0.9


def test_a_shift_beyond_the_image_is_refused(train: Callable, tmp_path: Path) -> None:
    pictures.write(tmp_path / "pets", 10)
    with pytest.raises(UserError, match=r"augment.pixels=4: must be below 3, the side of the images"):
        train("data=image_folder", f"data.root={tmp_path / 'pets'}", "data.size=3", "augment=crop_flip", *SMALL)


def test_a_network_of_other_classes_is_refused(train: Callable) -> None:
    with pytest.raises(UserError, match=r"model: MLP makes \(2, 11\) of 2 samples; must be logits \(2, 10\)"):
        train("model._target_=test_own.eleven", *SMALL)


def eleven(input_shape: list[int], classes: int, **options: object) -> object:
    from fedshvr.models.mlp import MLP

    return MLP(tuple(input_shape), classes + 1, [])
