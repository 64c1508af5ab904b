"""Data sets as scaled tensors: cached, verified, and fetched or computed once if need be."""

import http.client
import json
import logging
import tempfile
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from fedshvr.data import cache, features
from fedshvr.data.cache import CacheError
from fedshvr.data.fetch import Arrays, origins
from fedshvr.data.images import ImageData, scaled
from fedshvr.data.pixels import Look
from fedshvr.errors import UserError, check

log = logging.getLogger(__name__)

DIGIT_NAMES = tuple("0123456789")
CIFAR_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FEATURES = "cifar10_features"  # vectors computed from cifar10
RECIPE = features.Recipe()
CLASSES = {
    "digits": DIGIT_NAMES,
    "mnist": DIGIT_NAMES,
    "cifar10": CIFAR_NAMES,
    FEATURES: CIFAR_NAMES,
    "fashion_mnist": (
        *("T-shirt/top", "trouser", "pullover", "dress", "coat"),
        *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
    ),
}
# Mean and standard deviation of each channel of the training images, scaled to [0, 1].
MOMENTS = {
    "mnist": ([0.1307], [0.3081]),
    "cifar10": ([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
    "fashion_mnist": ([0.2860], [0.3530]),
}
# SHA-256 of x, y, x_test, y_test as uint8, the same whichever way they came. A data set that is not listed is compared
# with the sums that its cache file noted when it was decoded from the checked originals.
DIGESTS: dict[str, tuple[str, ...]] = {
    "mnist": (
        "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
        "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
        "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
        "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
    ),
    "cifar10": (
        "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
        "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
        "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
        "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
    ),
}
FETCH_ERRORS = (OSError, RuntimeError, ValueError, http.client.HTTPException)


def load(
    name: str,
    root: str | Path,
    download: bool = True,
    scaling: str = "normalized",
    size: int | list[int] | None = None,
) -> ImageData:
    """A data set by name, from root/name.npz or, if that is missing, from wherever it can be had."""
    check(name in CLASSES, f"data.name={name}: must be one of {', '.join(CLASSES)}")
    look = Look(size, 3, scaling)
    if name == FEATURES:
        check(scaling == "normalized", f"data.scaling={scaling}: must be normalized for {FEATURES}")
        check(size is None, f"data.size={size}: must be null for {FEATURES}, which are vectors")
        x, y, x_test, y_test = map(torch.from_numpy, cached_features(Path(root), download).values())
        return ImageData(name, x, y.long(), x_test, y_test.long(), CLASSES[name])
    raw = digits() if name == "digits" else cached(name, Path(root), download)
    peak = 16 if name == "digits" else 255
    moments = None if look.sides else MOMENTS.get(name)
    x, x_test, how = scaled((look.resized(raw.x), look.resized(raw.x_test)), peak, scaling, moments)
    y, y_test = (torch.from_numpy(labels.astype(np.int64)) for labels in (raw.y, raw.y_test))
    return ImageData(name, x, y, x_test, y_test, CLASSES[name], how | {"size": look.sides})


def digits() -> Arrays:
    """scikit-learn's 1,797 images of 8x8, part of its wheel: 1,437 to train, 360 to test, always the same."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    data = load_digits()
    images, labels = data.images.astype(np.uint8)[..., None], data.target.astype(np.uint8)
    x, x_test, y, y_test = train_test_split(images, labels, test_size=360, stratify=labels, random_state=0)
    return Arrays(x, y, x_test, y_test)


def cached(name: str, root: Path, download: bool) -> Arrays:
    """The arrays in root/name.npz; if need be they are gathered and written first, by one process at a time."""
    path = root / f"{name}.npz"
    try:
        return read_cache(path, name)
    except CacheError as problem:
        if not download and not (root / name).is_dir():
            raise UserError(_refusal(name, root, download, [str(problem)])) from None
    with cache.locked(root, name):
        try:
            return read_cache(path, name)  # another process may have written it while this one waited
        except CacheError as problem:
            if path.exists():
                log.warning("%s; getting it again", problem)
            arrays = gather(name, root, download, [str(problem)])
        write_cache(path, arrays)
        return arrays


def gather(name: str, root: Path, download: bool, failures: list[str]) -> Arrays:
    """What the first origin delivers: put by hand into root/name or, if allowed, fetched over the network."""
    for origin in origins(name):
        try:
            return _checked(name, origin.read(root / name))
        except FETCH_ERRORS as problem:
            failures.append(f"by hand: {problem}")
    for origin in origins(name) if download else ():
        try:
            with tempfile.TemporaryDirectory(prefix="fedshvr-") as folder:
                origin.fetch(Path(folder))
                return _checked(name, origin.read(Path(folder)))
        except FETCH_ERRORS as problem:
            failures.append(f"{origin.label}: {problem}")
    raise UserError(_refusal(name, root, download, failures))


def _refusal(name: str, root: Path, download: bool, failures: list[str]) -> str:
    """Each source with the reason why it failed, and what to put where by hand."""
    network = "no source delivers it" if download else "data.download=false forbids the network"
    files = ", or ".join(" + ".join(origin.files) for origin in origins(name))
    return "\n  ".join([f"data.name={name}: {network}", *failures, f"by hand, put into {root / name}/: {files}"])


def digest(arrays: Arrays) -> tuple[str, ...]:
    return cache.sums(arrays)


def _checked(name: str, arrays: Arrays) -> Arrays:
    if name in DIGESTS and digest(arrays) != DIGESTS[name]:
        raise ValueError(f"the decoded {name} has other SHA-256 sums than the original")
    return arrays


def read_cache(path: Path, name: str) -> Arrays:
    return Arrays(**cache.read(path, Arrays._fields, known=DIGESTS.get(name, ())))


def write_cache(path: Path, arrays: Arrays) -> None:
    cache.write(path, arrays._asdict())


def cached_features(root: Path, download: bool) -> dict[str, np.ndarray]:
    """x, y, x_test, y_test of root/cifar10_features.npz; if need be they are computed and written first.

    The last bits of a float32 product differ between machines, so no sum can be listed for all of them: the file is
    compared with the sums noted when it was computed, and with what it would be computed from now.
    """
    path = root / f"{FEATURES}.npz"
    provenance = json.dumps(asdict(RECIPE) | {"cifar10": DIGESTS["cifar10"]})
    try:
        return cache.read(path, Arrays._fields, provenance=provenance)
    except CacheError as problem:
        try:
            raw = cached("cifar10", root, download)
        except UserError as refusal:
            raise UserError(f"data.name={FEATURES}: {problem}, and it is computed from cifar10\n{refusal}") from None
    with cache.locked(root, FEATURES):
        try:
            return cache.read(path, Arrays._fields, provenance=provenance)  # another process may have written it
        except CacheError as problem:
            log.warning("%s; computing it, which takes minutes, once", problem)
        x, x_test = features.compute(raw.x, raw.x_test, RECIPE)
        arrays = Arrays(x.numpy(), raw.y, x_test.numpy(), raw.y_test)._asdict()
        cache.write(path, arrays, provenance)
        return arrays
