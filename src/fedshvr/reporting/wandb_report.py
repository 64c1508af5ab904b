"""The report in W&B: one run with the tables and figures, and a workspace as code."""

from pathlib import Path
from typing import Any

from fedshvr.errors import check
from fedshvr.reporting.items import Item
from fedshvr.running.wandb_mode import has_key, mode, silent

WORKSPACE = "Fed-SHVR"
PANELS = {
    "Accuracy": ("test_acc", "test_loss", "val_acc", "val_loss", "pseudo_label_acc"),
    "Training": ("server_loss", "train_loss", "train_labeled", "train_unlabeled", "alpha0"),
    "Federation": ("drift", "sum_omega_d", "gap", "seconds"),
}


def log_report(items: list[Item], out: Path, project: str) -> None:
    """One W&B run of the job type `report`, complete offline."""
    import wandb

    settings: dict[str, Any] = {"dir": str(out), "mode": mode(), "settings": silent()}
    with wandb.init(project=project, job_type="report", name="report", tags=["report"], **settings) as run:
        for item in items:
            if item.runs:
                log_item(run, item, out)


def log_item(run: Any, item: Item, out: Path) -> None:
    import wandb

    entry: dict[str, Any] = {}
    if item.table.rows:
        entry[f"tables/{item.key}"] = wandb.Table(columns=list(item.table.columns), data=item.table.rows)
    image = out / f"{item.key}.png"
    if image.is_file():
        entry[f"figures/{item.key}"] = wandb.Image(str(image), caption=f"{item.title} [scale: {item.scale}]")
    run.log(entry)


def workspace(entity: str, project: str) -> Any:
    """The dashboard: curves grouped by experiment and algorithm, end-of-run media, and the report run's items."""
    try:
        import wandb_workspaces.reports.v2 as wr
        import wandb_workspaces.workspaces as ws
    except ImportError:
        check(False, "publish=true: needs wandb-workspaces (pip install wandb-workspaces)")
    sections = [
        ws.Section(name=name, is_open=True, panels=[wr.LinePlot(title=y, x="round", y=[y]) for y in metrics])
        for name, metrics in PANELS.items()
    ]
    end: list[Any] = [wr.MediaBrowser(media_keys=[key]) for key in ("partition", "confusion_matrix")]
    sections.append(ws.Section(name="End of the run", panels=end))
    sections.append(ws.Section(name="The paper's figures", panels=[wr.MediaBrowser(media_keys=["figures/*"])]))
    grouping = ws.RunsetSettings(groupby=[ws.Metric("Group"), ws.Metric("JobType")])
    return ws.Workspace(entity=entity, project=project, name=WORKSPACE, sections=sections, runset_settings=grouping)


def publish(project: str, out: Path) -> str:
    """Save the workspace to the project; without a key its specification goes to disk. Returns a line to print."""
    if mode() == "online" and has_key():
        import wandb

        saved = workspace(str(wandb.Api().default_entity), project)
        saved.save()
        return f"W&B workspace: {saved.url}"
    path = out / "workspace.json"
    specification = workspace("entity", project)._to_model()
    path.write_text(specification.model_dump_json(by_alias=True, indent=1))
    return (
        f"no W&B key: the workspace is in {path}; to publish, set WANDB_API_KEY (or run `wandb login`), "
        "then `python src/report.py publish=true` again and `wandb sync` the runs"
    )
