"""Data sets of torchvision and Hugging Face, from files that the tests write: nothing is fetched."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pictures
import pytest
import torch
from conftest import ROOT
from omegaconf import OmegaConf
from torchvision import datasets as torchvision_datasets

from fedshvr.data.libraries import huggingface, torchvision
from fedshvr.errors import UserError

SMALL = ["partition.clients=3", "partition.labeled_per_client=3", "client.epochs=1", "model.hidden=[16]"]
FAKE = {"size": 40, "image_size": [3, 8, 8], "num_classes": 3}


def refused(call: Callable[[], object], sentence: str) -> None:
    with pytest.raises(UserError) as error:
        call()
    assert sentence in str(error.value)


# --- torchvision ---


def write_idx(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    header = bytes([0, 0, 8, array.ndim]) + b"".join(int(n).to_bytes(4, "big") for n in array.shape)
    path.write_bytes(header + array.astype(np.uint8).tobytes())


def test_a_data_set_with_an_argument_train(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, x_test = (rng.integers(0, 256, (n, 28, 28), np.uint8) for n in (20, 10))
    for part, images in (("train", x), ("t10k", x_test)):
        write_idx(tmp_path / "KMNIST" / "raw" / f"{part}-images-idx3-ubyte", images)
        write_idx(tmp_path / "KMNIST" / "raw" / f"{part}-labels-idx1-ubyte", np.arange(len(images)) % 10)
    data = torchvision("KMNIST", str(tmp_path), download=False, channels=1, scaling="unit")
    assert (data.x.shape, data.x_test.shape) == ((20, 1, 28, 28), (10, 1, 28, 28))
    assert torch.equal((255 * data.x_test[:, 0]).round().byte(), torch.from_numpy(x_test))
    assert data.y.tolist() == [*range(10)] * 2
    assert data.classes == tuple(torchvision_datasets.KMNIST.classes)


def test_a_data_set_with_an_argument_split(tmp_path: Path) -> None:
    known = torchvision_datasets.Imagenette._WNID_TO_CLASS  # folder -> synonyms
    for split, each in (("train", 4), ("val", 2)):
        pictures.write(tmp_path / "imagenette2" / split, each, sorted(known)[:3], kind="jpeg")
    data = torchvision("Imagenette", str(tmp_path), download=False, size=6)
    assert (data.x.shape, len(data.x_test)) == ((12, 3, 6, 6), 6)
    assert data.classes == tuple(", ".join(known[folder]) for folder in sorted(known)[:3])


def test_a_data_set_of_one_part_is_split() -> None:
    data = torchvision("FakeData", "nowhere", download=False, options=FAKE, test_share=0.25)
    assert (len(data.x), len(data.x_test), data.classes) == (30, 10, ("0", "1", "2"))
    image, label = torchvision_datasets.FakeData(**FAKE)[0]
    raw = torch.from_numpy(np.asarray(image).transpose(2, 0, 1).astype(np.float32)) / 255
    whole = torchvision("FakeData", "nowhere", download=False, options=FAKE, test_share=0.25, scaling="unit")
    rows = (torch.cat([whole.x, whole.x_test]) == raw).flatten(1).all(1).nonzero().flatten().tolist()
    assert [torch.cat([whole.y, whole.y_test])[i].item() for i in rows] == [label]


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("SVNH", None, "data.name=SVNH: must be a class of torchvision.datasets, such as SVHN"),
        ("SVHN", None, "data.name=SVHN: torchvision does not give it ("),
        ("FakeData", {"colour": 1}, "data.name=FakeData: torchvision does not give it ("),
        ("FakeData", FAKE | {"num_classes": 1}, "data.name=FakeData: has 1 class"),
    ],
)
def test_what_torchvision_does_not_give_is_refused(tmp_path: Path, name: str, options: dict, sentence: str) -> None:
    from fedshvr.data.images import checked

    refused(lambda: checked(torchvision(name, str(tmp_path), download=False, options=options)), sentence)


def test_a_run_by_the_name_of_the_data_set(train: Callable) -> None:
    given = "data.options={size:60,image_size:[3,8,8],num_classes:3}"
    run = train("data=torchvision", "data.name=FakeData", given, *SMALL, "rounds=1")
    assert run.summary["status"] == "finished"
    assert run.summary["config"]["data"]["name"] == "FakeData"


# --- Hugging Face ---


def hub(each: int, first: int = 0) -> object:
    library = pytest.importorskip("datasets")
    features = library.Features({"img": library.Image(), "kind": library.ClassLabel(names=list(pictures.NAMES))})
    labels = [label for label in range(3) for _ in range(each)]
    images = [pictures.picture(label, first + i % each) for i, label in enumerate(labels)]
    return library.Dataset.from_dict({"img": images, "kind": labels}, features=features)


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = pytest.importorskip("datasets")
    monkeypatch.setattr(library.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(library.config, "HF_HUB_OFFLINE", True)


@pytest.mark.usefixtures("offline")
def test_a_folder_of_save_to_disk_and_of_parquet_are_the_same(tmp_path: Path) -> None:
    library = pytest.importorskip("datasets")
    parts = library.DatasetDict({"train": hub(4), "test": hub(2, first=4)})
    parts.save_to_disk(str(tmp_path / "disk"))
    for name, part in parts.items():
        part.to_parquet(str(tmp_path / "parquet" / f"{name}.parquet"))
    disk, parquet = (huggingface("pets", str(tmp_path / kind), scaling="unit") for kind in ("disk", "parquet"))
    assert (disk.x.shape, disk.x_test.shape, disk.classes) == ((12, 3, 8, 8), (6, 3, 8, 8), pictures.NAMES)
    assert disk.y.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    raw = np.asarray(pictures.picture(2, 5)).transpose(2, 0, 1).astype(np.float32)
    torch.testing.assert_close(disk.x_test[5], torch.from_numpy(raw) / 255)
    for name in ("x", "y", "x_test", "y_test"):
        assert torch.equal(getattr(disk, name), getattr(parquet, name))
    one = huggingface("pets", str(tmp_path / "parquet" / "train.parquet"), test_share=0.5)
    assert (len(one.x), len(one.x_test)) == (6, 6)


@pytest.mark.usefixtures("offline")
def test_what_hugging_face_does_not_give_is_refused(tmp_path: Path) -> None:
    hub(4).save_to_disk(str(tmp_path / "disk"))  # type: ignore[attr-defined]
    disk = str(tmp_path / "disk")
    refused(lambda: huggingface("pets", None), "data.path=null: must be a folder, a parquet file or a name of the hub")
    refused(lambda: huggingface("pets", disk, image="photo"), "data.image=photo: must be one of the columns img, kind")
    refused(lambda: huggingface("pets", disk, image="kind"), "sample 0 is no image but int")
    (tmp_path / "empty").mkdir()
    refused(lambda: huggingface("pets", str(tmp_path / "empty")), "empty: cannot be read (")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    refused(
        lambda: huggingface("pets", "somewhere"),
        "data=huggingface: needs the package datasets: pip install 'fedshvr[huggingface]'",
    )


@pytest.mark.parametrize("path", sorted((ROOT / "configs" / "data").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_choice_names_a_callable_that_takes_its_options(path: Path) -> None:
    import inspect

    from hydra.utils import get_object

    config = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    assert isinstance(config, dict)
    arguments = {key: value for key, value in config.items() if key not in ("_target_", "_convert_")}
    inspect.signature(get_object(config["_target_"])).bind(**arguments)
    assert "name" in arguments
