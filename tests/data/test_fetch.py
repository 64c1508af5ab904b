"""Originals are decoded exactly, and only from files with the right checksum; nothing here leaves this machine."""

import gzip
import hashlib
import http.server
import io
import json
import socket
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedshvr.data import fetch
from fedshvr.data.fetch import Arrays, Origin


def small(shape: tuple[int, int, int] = (28, 28, 1)) -> Arrays:
    rng = np.random.default_rng(0)
    images, labels = partial(rng.integers, 0, 256, dtype=np.uint8), partial(rng.integers, 0, 10, dtype=np.uint8)
    return Arrays(images(size=(20, *shape)), labels(size=20), images(size=(10, *shape)), labels(size=10))


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def idx_files(arrays: Arrays) -> dict[str, bytes]:
    x, y, x_test, y_test = arrays
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return {f"{n}-ubyte": idx(a) for n, a in zip(names, (x[..., 0], y, x_test[..., 0], y_test), strict=True)}


def tarball(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(f"package/data/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def equal(one: Arrays, other: Arrays) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


# --- decoding ---


def test_idx_parser() -> None:
    data = bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 10, 11, 12, 13, 14, 15])
    assert fetch.parse_idx(data).tolist() == [[10, 11, 12], [13, 14, 15]]


@pytest.mark.parametrize("cut", [-1, 3, 6, 12])
def test_idx_parser_refuses_a_cut_file(cut: int) -> None:
    with pytest.raises(ValueError, match="idx file"):
        fetch.parse_idx(idx(np.ones((2, 3), np.uint8))[:cut])


def test_idx_parser_refuses_another_type() -> None:
    with pytest.raises(ValueError, match="unsigned bytes"):
        fetch.parse_idx(bytes([0, 0, 13, 1, 0, 0, 0, 1, 0, 0, 0, 0]))


def test_gzipped_idx_files_are_read(tmp_path: Path) -> None:
    arrays, files = small(), {}
    for name, data in idx_files(arrays).items():
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(data))
        files[f"{name}.gz"] = hashlib.md5((tmp_path / f"{name}.gz").read_bytes()).hexdigest()
    assert equal(Origin("", files, lambda folder: None, fetch.decode_idx).read(tmp_path), arrays)


@pytest.mark.fault("a hostile or altered file")
def test_a_tarball_is_read_only_with_the_right_checksum(tmp_path: Path) -> None:
    arrays = small()
    data = tarball(idx_files(arrays))
    (tmp_path / "a.tgz").write_bytes(data)
    right, wrong = hashlib.sha256(data).hexdigest(), "0" * 64
    assert equal(Origin("", {"a.tgz": right}, lambda folder: None, fetch.decode_idx).read(tmp_path), arrays)
    with pytest.raises(ValueError, match=f"a.tgz has checksum {right} instead of {wrong}"):
        Origin("", {"a.tgz": wrong}, lambda folder: None, fetch.decode_idx).read(tmp_path)


def test_both_forms_of_cifar_decode_to_the_same_arrays() -> None:
    arrays = small(shape=(32, 32, 3))
    binary, png = {}, {}
    for i, part in enumerate([*(slice(4 * i, 4 * i + 4) for i in range(5)), None]):
        x, y = (arrays.x[part], arrays.y[part]) if part else (arrays.x_test, arrays.y_test)
        name = f"data_batch_{i + 1}" if part else "test_batch"
        channels = x.transpose(0, 3, 1, 2).reshape(len(x), 3072)
        binary[f"{name}.bin"] = np.concatenate([y[:, None], channels], 1).tobytes()
        Image.fromarray(x.reshape(len(x), 1024, 3)).save(buffer := io.BytesIO(), "png")
        png[f"{name}.png"] = buffer.getvalue()
    png["train_lables.json"] = json.dumps(arrays.y.tolist()).encode()
    png["test_lables.json"] = json.dumps(arrays.y_test.tolist()).encode()
    assert equal(fetch.decode_cifar_binary(binary), arrays)
    assert equal(fetch.decode_cifar_png(png), arrays)


# --- over the network ---


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """A web host on this machine that serves tmp_path/host."""
    monkeypatch.setenv("no_proxy", "*")
    (tmp_path / "host").mkdir()
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path / "host")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def test_a_file_comes_from_the_first_mirror_that_has_it(host: str, tmp_path: Path) -> None:
    (tmp_path / "host" / "a.gz").write_bytes(b"abc")
    fetch.download({"a.gz": hashlib.md5(b"abc").hexdigest()}, [f"{host}nowhere/", host], tmp_path)
    assert (tmp_path / "a.gz").read_bytes() == b"abc"
    assert socket.getdefaulttimeout() is None


@pytest.mark.fault("a hostile or altered file")
def test_a_mirror_with_an_altered_file_is_refused(host: str, tmp_path: Path) -> None:
    (tmp_path / "host" / "a.gz").write_bytes(b"abX")
    with pytest.raises(OSError, match=f"{host}a.gz: File not found or corrupted"):
        fetch.download({"a.gz": hashlib.md5(b"abc").hexdigest()}, [host], tmp_path)


def npm_that(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str) -> None:
    """Put a program called npm in the place of the real one."""
    program = tmp_path / "npm"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(fetch.shutil, "which", lambda name: str(program))


def test_npm_failing_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    npm_that(monkeypatch, tmp_path, "echo 'npm error code E404' >&2; exit 1")
    with pytest.raises(OSError, match="code E404"):
        fetch.npm_pack("p@1", 10, tmp_path)


def test_npm_standing_still_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(fetch, "NPM_TIMEOUT", 0.3)
    npm_that(monkeypatch, tmp_path, "exec sleep 60")
    with pytest.raises(OSError, match="nothing arrived"):
        fetch.npm_pack("p@1", 10, tmp_path)


@pytest.mark.fault("a hostile or altered file")
def test_an_archive_cannot_write_outside_its_folder(tmp_path: Path) -> None:
    """Names that climb and absolute ones are read in memory by their bare names; links are not followed."""
    folder = tmp_path / "inside"
    folder.mkdir()
    with tarfile.open(folder / "evil.tgz", "w:gz") as archive:
        for name in ("../../climbed", str(tmp_path / "absolute"), "package/good"):
            info = tarfile.TarInfo(name)
            info.size = 4
            archive.addfile(info, io.BytesIO(b"data"))
        link = tarfile.TarInfo("package/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    assert dict(fetch.unpack(folder / "evil.tgz")) == dict.fromkeys(("climbed", "absolute", "good"), b"data")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["evil.tgz", "inside"]
    assert not (tmp_path.parent / "climbed").exists()
