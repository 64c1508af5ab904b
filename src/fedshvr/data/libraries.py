"""Data sets of torchvision and of the Hugging Face library, by name."""

import difflib
import inspect
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from fedshvr.data import cache
from fedshvr.data.images import ImageData
from fedshvr.data.pixels import Look, Pictures, picture_data
from fedshvr.errors import UserError, check

TRAIN, TEST = ("train", "trainval"), ("test", "val", "valid", "validation")  # what libraries call the two parts
NOT_TO_BE_HAD = (OSError, RuntimeError, ValueError, TypeError, ImportError)


def torchvision(
    name: str,
    root: str,
    download: bool = True,
    options: dict[str, Any] | None = None,
    size: int | list[int] | None = None,
    channels: int = 3,
    scaling: str = "normalized",
    test_share: float = 0.2,
    seed: int = 0,
) -> ImageData:
    """A class of torchvision.datasets: its training and test part, or one part from which the test is split off."""
    from torchvision import datasets

    look = Look(size, channels, scaling)
    names = [known for known in datasets.__all__ if inspect.isclass(getattr(datasets, known))]
    near = difflib.get_close_matches(name, names, 3, 0.4) or ["CIFAR100", "EMNIST", "SVHN"]
    check(name in names, f"data.name={name}: must be a class of torchvision.datasets, such as {', '.join(near)}")
    with cache.locked(Path(root), name) if download else nullcontext():
        parts = _parts(getattr(datasets, name), {"root": root, "download": download}, options or {})
    pictures = [_items(part, part.__getitem__) for part in parts]
    classes = [
        c if isinstance(c, str) else ", ".join(c) for c in getattr(parts[0], "classes", ())
    ]  # ImageNet: synonyms
    return picture_data(name, pictures, classes, look, test_share, seed)


def _parts(kind: type, where: dict[str, Any], options: dict[str, Any]) -> list[Any]:
    """The two parts of a data set, told apart by its argument `train` or `split`; one if it has neither."""
    accepted = _accepted(kind)
    make = partial(kind, **{name: value for name, value in where.items() if name in accepted}, **options)
    try:
        if "train" in accepted:
            return [make(train=True), make(train=False)]
        if "split" in accepted and "split" not in options:
            return [_first(make, names) for names in (TRAIN, TEST)]
        return [make()]
    except NOT_TO_BE_HAD as problem:
        raise UserError(f"data.name={kind.__name__}: torchvision does not give it ({problem})") from None


def _accepted(kind: type) -> set[str]:
    """The arguments of a class, and of its bases as far as it passes on what it does not know itself."""
    accepted: set[str] = set()
    for base in kind.__mro__:
        parameters = inspect.signature(base.__init__).parameters  # type: ignore[misc]
        accepted |= set(parameters)
        if all(parameter.kind != parameter.VAR_KEYWORD for parameter in parameters.values()):
            break
    return accepted


def _first(make: Callable[..., Any], names: tuple[str, ...]) -> Any:
    """The part by the first of these names that it has."""
    for name in names[:-1]:
        try:
            return make(split=name)
        except ValueError:
            pass
    return make(split=names[-1])


def _items(part: Any, get: Callable[[int], tuple[Any, Any]]) -> Pictures:
    return [(f"sample {i}", partial(get, i)) for i in range(len(part))]


def huggingface(
    name: str,
    path: str | None,
    image: str | None = None,
    label: str | None = None,
    size: int | list[int] | None = None,
    channels: int = 3,
    scaling: str = "normalized",
    test_share: float = 0.2,
    seed: int = 0,
) -> ImageData:
    """The splits train and test of a data set with a column of images and one of labels; one split is divided."""
    look = Look(size, channels, scaling)
    check(path is not None, "data.path=null: must be a folder, a parquet file or a name of the hub")
    datasets = _package()
    try:
        splits = _splits(datasets, str(path))
    except NOT_TO_BE_HAD as problem:
        raise UserError(f"data.path={path}: cannot be read ({problem})") from None
    known = [next((key for key in names if key in splits), None) for names in (TRAIN, TEST)]
    check(known[0] is not None, f"data.path={path}: has the splits {', '.join(splits)}; must have train")
    parts = [splits[key] for key in known if key]
    features = parts[0].features
    columns = _column("image", image, features, datasets.Image), _column("label", label, features, datasets.ClassLabel)
    pictures = [_items(part, partial(_row, part, *columns)) for part in parts]
    return picture_data(name, pictures, getattr(features[columns[1]], "names", None), look, test_share, seed)


def _package() -> Any:
    try:
        import datasets
    except ImportError:
        raise UserError("data=huggingface: needs the package datasets: pip install 'fedshvr[huggingface]'") from None
    return datasets


def _splits(datasets: Any, path: str) -> dict[str, Any]:
    """Of a folder of save_to_disk, of parquet files, or of a data set of the hub."""
    place = Path(path).expanduser()
    if place.is_file():
        return datasets.load_dataset("parquet", data_files=str(place))  # a file of this machine  # nosec B615
    if any((place / note).is_file() for note in ("dataset_dict.json", "state.json")):
        found = datasets.load_from_disk(str(place))
        return found if isinstance(found, datasets.DatasetDict) else {"train": found}
    return datasets.load_dataset(str(place) if place.is_dir() else path)  # data, no code, as asked for  # nosec B615


def _column(option: str, asked: str | None, features: dict[str, Any], kind: type) -> str:
    """The column asked for, else the first of this kind, else the one that is called so."""
    fitting = [name for name, feature in features.items() if isinstance(feature, kind)]
    chosen = asked or next(iter(fitting), option)
    check(chosen in features, f"data.{option}={asked}: must be one of the columns {', '.join(features)}")
    return chosen


def _row(part: Any, image: str, label: str, i: int) -> tuple[Any, Any]:
    row = part[i]
    return row[image], row[label]
