"""One W&B run per training run: online when a key is there, offline otherwise, never a prompt."""

from pathlib import Path
from secrets import token_hex
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.loggers.logger import rank_zero_experiment
from torch import Tensor

from fedshvr.errors import Stopped
from fedshvr.rounds.federated import Federated
from fedshvr.running.files import write_atomically
from fedshvr.running.wandb_mode import mode, silent

CHUNK = 2048  # images in one forward pass
ID = "wandb_id"  # the file of the run folder that names its W&B run


class RunLogger(WandbLogger):
    """Ends its W&B run with the job, so that the jobs of a sweep stay separate runs.

    The run is begun where it is first written to: with several processes, in the first of them.
    """

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The W&B run, whose curves are over the rounds."""
        if self._experiment is None:
            self._offline = mode() == "offline"
            run: Any = super().experiment
            run.define_metric("round")
            run.define_metric("*", step_metric="round", step_sync=True)
        return self._experiment

    def finalize(self, status: str) -> None:
        super().finalize(status)
        if self._experiment is not None:
            self._experiment.finish(exit_code=0 if status in ("finished", "stopped", "success") else 1)


def make_logger(
    project: str, experiment: str | None, algorithm: str | None, seed: int, folder: str, tags: list[str] | None = None
) -> RunLogger:
    """The run that the folder names, to be continued, or a new one; experiment and algorithm are among its tags."""
    return RunLogger(
        project=project,
        group=experiment,
        job_type=algorithm,
        name=f"{algorithm}-{seed}",
        tags=[tag for tag in (experiment, algorithm, *(tags or ())) if tag],
        save_dir=folder,
        id=run_id(Path(folder)),
        resume="allow",
        settings=silent(),
    )


def run_id(folder: Path) -> str:
    """The id of the folder's W&B run, made up and written down if there is none."""
    path = folder / ID
    if not path.is_file():
        write_atomically(path, token_hex(4))
    return path.read_text()


def forget(folder: Path) -> None:
    """A run that begins anew in this folder is a new one in W&B too."""
    (folder / ID).unlink(missing_ok=True)


class RunEnd(Callback):
    """Logs the partition figure, the confusion matrix and the accuracy of each class when a run has ended."""

    def __init__(self, folder: Path) -> None:
        self.partition = folder / "partition.png"

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        loggers = [logger for logger in trainer.loggers if isinstance(logger, WandbLogger)]
        if not loggers or not trainer.is_global_zero:
            return
        assert isinstance(pl_module, Federated)
        classes = list(pl_module.federation.images.classes)
        media = media_of(confusion(pl_module, len(classes)), classes, self.partition)
        for logger in loggers:
            logger.experiment.log(media)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Lightning would tell W&B that a run that was stopped has failed."""
        for logger in trainer.loggers if isinstance(exception, Stopped) else ():
            if isinstance(logger, RunLogger):
                logger.finalize("stopped")


@torch.no_grad()
def confusion(module: Federated, classes: int) -> Tensor:
    """counts[true, predicted] over the test set at the last theta."""
    net, (x, y) = module.bench.net, module.test_set
    net.load(module.theta.detach(), module.server.buffers_)
    net.module.eval()
    predicted = torch.cat([net(part).argmax(-1) for part in x.split(CHUNK)])
    return torch.bincount(y * classes + predicted, minlength=classes * classes).view(classes, classes).cpu()


def media_of(counts: Tensor, classes: list[str], partition: Path) -> dict[str, Any]:
    import wandb

    total, correct = counts.sum(1).tolist(), counts.diagonal().tolist()
    rows = [[name, c / n if n else None, n] for name, c, n in zip(classes, correct, total, strict=True)]
    cells = [[t, p, int(counts[i, j])] for i, t in enumerate(classes) for j, p in enumerate(classes)]
    media: dict[str, Any] = {
        "class_accuracy": wandb.Table(columns=["class", "accuracy", "samples"], data=rows),
        "confusion": wandb.Table(columns=["true", "predicted", "samples"], data=cells),
        "confusion_matrix": wandb.Image(confusion_figure(counts, classes)),
    }
    if partition.is_file():
        media["partition"] = wandb.Image(str(partition))
    return media


def confusion_figure(counts: Tensor, classes: list[str]) -> Any:
    """Rows are the true classes; the colour is the share of the row, the number the count."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.8 + 0.5 * len(classes), 1.3 + 0.45 * len(classes)), layout="constrained")
    axes = figure.subplots()
    share = counts / counts.sum(1, keepdim=True).clamp_min(1)
    axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
    for i in range(len(classes)):
        for j in range(len(classes)):
            if counts[i, j]:
                color = "white" if share[i, j] > 0.6 else "black"
                axes.text(j, i, str(int(counts[i, j])), ha="center", va="center", fontsize=8, color=color)
    rotation = 90 if max(map(len, classes)) > 2 else 0
    axes.set_xticks(range(len(classes)), classes, rotation=rotation, parse_math=False)  # a class may be called $x
    axes.set_yticks(range(len(classes)), classes, parse_math=False)
    axes.set(xlabel="predicted", ylabel="true")
    return pil(figure)


def pil(figure: Any) -> Any:
    """A matplotlib figure as an image, without pyplot."""
    from io import BytesIO

    from PIL import Image

    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    return Image.open(buffer)
