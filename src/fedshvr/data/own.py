"""Data of the user's own, from files: a folder of images, or arrays of numbers."""

import os
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from fedshvr.data.fetch import Arrays
from fedshvr.data.images import ImageData, check_scaling, scaled
from fedshvr.data.pixels import Look, picture_data
from fedshvr.errors import UserError, check

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
CHANNELS = (1, 3)


def image_folder(
    name: str,
    root: str | None,
    size: int | list[int] | None = None,
    channels: int = 3,
    scaling: str = "normalized",
    test_share: float = 0.2,
    seed: int = 0,
) -> ImageData:
    """root/train/class/* and root/test/class/*, or root/class/* from which `test_share` of every class is split off."""
    look = Look(size, channels, scaling)
    check(root is not None, "data.root=null: must be the folder of the images")
    folder = Path(str(root)).expanduser()
    check(folder.is_dir(), f"data.root={root}: there is no such folder")
    parts = [folder / part for part in ("train", "test") if (folder / part).is_dir()]
    check(len(parts) != 1, f"data.root={root}: has only one of the folders train and test")
    classes = _folders((parts or [folder])[0])
    check(len(classes) >= 2, f"data.root={root}: must hold a folder for each of at least two classes")
    for part in parts[1:]:
        unknown = sorted(set(_folders(part)) - set(classes))
        check(not unknown, f"data.root={root}: test has the class {', '.join(unknown)}, which train has not")
    pictures = [list(_pictures(part, classes)) for part in parts or [folder]]
    names = [os.fsencode(label).decode(errors="replace") for label in classes]
    return picture_data(name, pictures, names, look, test_share, seed)


def _folders(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _pictures(folder: Path, classes: list[str]) -> Iterator[Any]:
    """The images of each class in the order of their paths."""
    for label, name in enumerate(classes):
        files = sorted(path for path in (folder / name).rglob("*") if path.suffix.lower() in SUFFIXES)
        check(bool(files) or folder.name == "test", f"data.root: the class {folder / name} has no image")
        yield from ((path, partial(_open, path, label)) for path in files)


def _open(path: Path, label: int) -> tuple[Image.Image, int]:
    with Image.open(path) as picture:
        picture.load()
    return picture, label


def npz(name: str, file: str | None, scaling: str = "normalized") -> ImageData:
    """x, y, x_test, y_test of a file: bytes (N, H, W) or (N, H, W, C) are images, other numbers taken as they are."""
    check_scaling(scaling)
    check(file is not None, "data.file=null: must be a file of numpy.savez")
    arrays, classes = _arrays(Path(str(file)).expanduser())
    y, y_test = (_labels(f"data.file={file}", key, getattr(arrays, key)) for key in ("y", "y_test"))
    names = tuple(map(str, classes)) if classes is not None else tuple(map(str, range(int(y.max()) + 1)))
    x, x_test, preprocessing = _samples(f"data.file={file}", arrays, scaling)
    return ImageData(name, x, y, x_test, y_test, names, preprocessing)


def _arrays(path: Path) -> tuple[Arrays, np.ndarray | None]:
    check(path.is_file(), f"data.file={path}: there is no such file")
    try:
        with np.load(path, allow_pickle=False) as file:
            missing = [key for key in Arrays._fields if key not in file]
            check(not missing, f"data.file={path}: has no {', '.join(missing)}; must have x, y, x_test and y_test")
            return Arrays(**{key: file[key] for key in Arrays._fields}), file.get("classes")
    except UserError:
        raise
    except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile) as problem:
        raise UserError(f"data.file={path}: cannot be read ({problem})") from None


def _labels(option: str, key: str, y: np.ndarray) -> torch.Tensor:
    check(
        y.ndim == 1 and len(y) > 0 and np.issubdtype(y.dtype, np.integer),
        f"{option}: {key} has shape {y.shape} and type {y.dtype}; must be (N,) integers",
    )
    return torch.from_numpy(y.astype(np.int64))


def _samples(option: str, arrays: Arrays, scaling: str) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    x, x_test = arrays.x, arrays.x_test
    for key, array in (("x", x), ("x_test", x_test)):
        real = np.issubdtype(array.dtype, np.floating) or np.issubdtype(array.dtype, np.integer)
        check(
            2 <= array.ndim <= 4 and real,
            f"{option}: {key} has shape {array.shape} and type {array.dtype}; must be numbers (N, features), "
            "(N, time, features), (N, C, H, W), or bytes (N, H, W) or (N, H, W, C)",
        )
    check(x.dtype == x_test.dtype, f"{option}: x is of type {x.dtype}, but x_test of {x_test.dtype}")
    if x.dtype == np.uint8 and x.ndim > 2:
        return _images(option, x, x_test, scaling)
    channels = x.shape[1] if x.ndim == 4 else 0
    check(
        x.ndim < 4 or channels in CHANNELS or x.shape[3] not in CHANNELS,
        f"{option}: x has shape {x.shape}; images that are no bytes must have their channels first, (N, C, H, W)",
    )
    how = {"peak": 1, "mean": None, "std": None, "size": None, "channels": channels} if channels else {}
    a, b = (torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32)) for array in (x, x_test))
    return a, b, how


def _images(
    option: str, x: np.ndarray, x_test: np.ndarray, scaling: str
) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    images = [array[..., None] if array.ndim == 3 else array for array in (x, x_test)]
    check(
        all(part.shape[3] in CHANNELS for part in images),
        f"{option}: x has shape {x.shape} and x_test {x_test.shape}; images must be bytes (N, H, W) or (N, H, W, C) "
        "with C 1 or 3",
    )
    check(x.shape[1:] == x_test.shape[1:], f"{option}: x has shape {x.shape}, but x_test {x_test.shape}")
    return scaled((images[0], images[1]), 255, scaling)
