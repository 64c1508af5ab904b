"""A run's model on a test set: accuracy, by class, by client, and what is taken for what. python src/evaluate.py"""

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from fedshvr.data.images import ImageData
from fedshvr.errors import check
from fedshvr.rounds.federated import CHUNK
from fedshvr.running.loading import CARD, TRUSTED, Model, load, read_card, scaling
from fedshvr.running.trust import DATA, check_targets

MIXED = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


@dataclass(frozen=True)
class ClientScore:
    """What a client gets from the model: the test accuracy under its own class distribution, and of its labels'."""

    samples: int
    labeled_classes: list[int]
    own: float | None  # sum_c p_kc accuracy_c, p_kc = the share of class c in its labelled and unlabelled samples
    labeled: float  # on the test samples of the classes that it has labels of


@dataclass(frozen=True)
class Evaluation:
    """counts[true, predicted] over a test set, and what follows from them."""

    data: str
    classes: tuple[str, ...]
    counts: Tensor
    clients: list[ClientScore] = field(default_factory=list)

    @property
    def accuracy(self) -> float:
        return int(self.counts.diagonal().sum()) / int(self.counts.sum())

    @property
    def of_class(self) -> list[float]:
        """The share of each class that is recognised; nan where the test set has none."""
        return (self.counts.diagonal().double() / self.counts.sum(1)).tolist()

    def __str__(self) -> str:
        head = f"accuracy {100 * self.accuracy:.2f} % of {int(self.counts.sum())} samples of {self.data}"
        tables = [self.class_table(), self.client_table() if self.clients else "", self.confusion_table()]
        return "\n\n".join([head, *(table for table in tables if table)])

    def class_table(self) -> str:
        predicted, right = self.counts.sum(0).tolist(), self.counts.diagonal().tolist()
        rows = [["class", "samples", "accuracy", "precision"]]
        for c, name in enumerate(self.classes):
            precision = right[c] / predicted[c] if predicted[c] else float("nan")
            rows.append([name, str(int(self.counts[c].sum())), percent(self.of_class[c]), percent(precision)])
        return text_table(rows)

    def client_table(self) -> str:
        """`own classes`: test samples weigh as the client's own samples do, by their class."""
        rows = [["client", "samples", "own classes", "labelled classes", "which"]]
        for k, score in enumerate(self.clients):
            names = " ".join(self.classes[c] for c in score.labeled_classes)
            rows.append([str(k), str(score.samples), percent(score.own), percent(score.labeled), names])
        own = sorted(score.own for score in self.clients if score.own is not None)
        if own:
            rows.append(["mean", "", percent(sum(own) / len(own)), "", ""])
            rows.append(["worst", "", percent(own[0]), "", ""])
        return text_table(rows, left=(0, 4))

    def confusion_table(self) -> str:
        rows = [[str(int(n)) for n in row] for row in self.counts]
        named = [[name, *row] for name, row in zip(self.classes, rows, strict=True)]
        return "true \\ predicted\n" + text_table([["", *self.classes], *named])


def percent(share: float | None) -> str:
    return "-" if share is None or share != share else f"{100 * share:.2f} %"


def text_table(rows: list[list[str]], left: tuple[int, ...] = (0,)) -> str:
    """Columns of text, those of `left` to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = zip(row, widths, strict=True)
        lines.append("  ".join(c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(cells)).rstrip())
    return "\n".join(lines)


def evaluate(
    run: str | Path, data: dict[str, Any] | None = None, weights: str | Path | None = None, trust: bool = False
) -> Evaluation:
    """Test a run's model as the run did: on its own test set, or on that of another `data` with the same classes."""
    model = load(run, weights, trust)
    card = model.card
    if data is None and not trust:
        check_targets(f"run={run}: {CARD}", card["data"]["config"], DATA, TRUSTED)
    images = instantiate({"_target_": "fedshvr.data.sources.load"} | (card["data"]["config"] if data is None else data))
    check(
        images.classes == model.classes,
        f"data={images.name}: has the classes {', '.join(images.classes)}, but the model {', '.join(model.classes)}",
    )
    predicted = predictions(model, rescaled(images, card["preprocessing"]))
    n = len(images.classes)
    counts = torch.bincount(images.y_test * n + predicted, minlength=n * n).view(n, n)
    known = images.y if images.name == card["data"]["name"] else None
    return Evaluation(images.name, images.classes, counts, client_scores(Path(run), counts, known))


def rescaled(images: ImageData, how: dict[str, Any]) -> Tensor:
    """The test images with the model's scaling, which is another one if the model comes from other data."""
    own, wanted = scaling(images.preprocessing), scaling(how)
    if not images.preprocessing or all(torch.equal(a, b) for a, b in zip(own, wanted, strict=True)):
        return images.x_test
    return (images.x_test * own[1] + own[0] - wanted[0]) / wanted[1]


@torch.no_grad()
def predictions(model: Model, x: Tensor) -> Tensor:
    """The classes of scaled images, passed in the portions that the run's processes had: the same bits."""
    how = model.card["evaluated"]
    found = torch.empty(len(x), dtype=torch.long)
    mixed = torch.autocast("cpu", MIXED[how["precision"]]) if how["precision"] in MIXED else nullcontext()
    with threads(how["threads"]), mixed:
        for rank in range(how["processes"]):
            for index in torch.arange(rank, len(x), how["processes"]).split(CHUNK):
                found[index] = model.logits(x[index]).argmax(-1)
    return found


@contextmanager
def threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def client_scores(run: Path, counts: Tensor, y: Tensor | None) -> list[ClientScore]:
    """From partition.json; a client's own distribution needs the labels of the run's training set."""
    path = run / "partition.json"
    if not path.is_file():
        return []
    total, right = counts.sum(1).double(), counts.diagonal().double()
    of_class = right / total.clamp_min(1)
    scores = []
    for client in json.loads(path.read_text())["clients"]:
        samples = torch.tensor([*client["labeled"], *client["unlabeled"]], dtype=torch.long)
        share = None if y is None else torch.bincount(y[samples], minlength=len(total)).double() / len(samples)
        known = client["labeled_classes"]
        labeled = float(right[known].sum() / total[known].sum()) if known else float("nan")
        own = None if share is None else float(share @ of_class)
        scores.append(ClientScore(len(samples), known, own, labeled))
    return scores


def evaluate_command(cfg: DictConfig) -> None:
    """Everything that `python src/evaluate.py` does."""
    check(cfg.run is not None, "run=null: must be the folder of a run that has finished or was stopped")
    data = OmegaConf.to_container(cfg.data, resolve=True) if cfg.get("data") else None
    found = evaluate(cfg.run, data, cfg.weights, cfg.trust)  # type: ignore[arg-type]
    print(found)
    said = read_card(Path(cfg.run))["test_acc"]
    if data is None and cfg.weights is None and said is not None and said != found.accuracy:
        print(f"\nThe run itself found {100 * said:.4f} %: on another machine or device the last bits differ.")
    if cfg.onnx:
        load(cfg.run, cfg.weights, cfg.trust).to_onnx(cfg.onnx)
        print(f"\n{cfg.onnx}: raw images in, logits out")
