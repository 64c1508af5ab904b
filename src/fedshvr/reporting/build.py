"""From the runs under logs/ to the files under reports/."""

from functools import partial
from pathlib import Path

from omegaconf import DictConfig, ListConfig

from fedshvr.errors import check
from fedshvr.places import INSTALLED, RESULTS
from fedshvr.reporting import figures, tables
from fedshvr.reporting.archive import add_archived, archive
from fedshvr.reporting.attacks import attacks
from fedshvr.reporting.collect import Collection, collect
from fedshvr.reporting.compare import compare
from fedshvr.reporting.finalists import finalists
from fedshvr.reporting.identify import SEARCH, search
from fedshvr.reporting.items import Item
from fedshvr.reporting.landscape import fig5
from fedshvr.reporting.others import other_items
from fedshvr.reporting.page import EMPTY, page
from fedshvr.reporting.paper import ITEMS
from fedshvr.reporting.sweeps import SCALES, find
from fedshvr.reporting.winners import WINNERS

PAPER = ("table1", "fig2a", "fig2b", "fig3a", "fig3b", "fig4", "fig5", "fig6a", "fig6b", "theorem1")
OURS: tuple[str, ...] = ("fig6a_features", "fig6b_features", "label_view")  # in another setting; what it leaves open
OURS += ("finalists", "tune_mt", "who_wins_mnist", "who_wins_cifar")  # its settings; a fair comparison
SWEEPS = (*PAPER, *OURS)


def report(cfg: DictConfig) -> list[Item]:
    """Everything that `python src/report.py` does; returns what was written."""
    if cfg.compare:
        print(compare(list(cfg.compare)))
        return []
    logs, out = Path(cfg.logs), Path(cfg.out)
    check(cfg.scale in (None, *SCALES), f"scale={cfg.scale}: must be null or one of {', '.join(SCALES)}")
    collection = add_archived(collect(logs), committed(cfg))
    if cfg.docs:
        from fedshvr.reporting.reproduction import write_pages

        write_pages(cfg)
        return []
    if cfg.archive:
        add_to_archive(cfg, collection)
        return []
    items = make_items(cfg, collection)
    out.mkdir(parents=True, exist_ok=True)
    for item in items:
        write(item, out)
    (out / "index.html").write_text(page(items, collection, str(cfg.logs), out))
    print(summary(items, collection, cfg.logs, out))
    if collection.runs and cfg.wandb:
        from fedshvr.reporting.wandb_report import log_report

        log_report(items, out, cfg.project)
    if cfg.publish:
        from fedshvr.reporting.wandb_report import publish

        print(publish(cfg.project, out))
    return items


def committed(cfg: DictConfig) -> Path:
    """Where the committed runs are; where there is no such folder, those that the package brings if it is installed."""
    own = Path(cfg.results)
    return own if own.is_dir() or not INSTALLED else RESULTS


def make_items(cfg: DictConfig, collection: Collection) -> list[Item]:
    """The items asked for: the paper's, ours, and one for each other experiment that has runs."""
    found = {name: find(name, collection.runs, cfg.scale) for name in SWEEPS}
    found["attacks"] = find("attacks", collection.runs, cfg.scale)
    found |= dict.fromkeys(SEARCH, search(collection.runs, cfg.scale))
    claimed = set().union(*(of_one.claimed for of_one in found.values()))
    others = {i.key: i for i in other_items([r for r in collection.runs if r.folder not in claimed], cfg.scale)}
    names = wanted(cfg["items"], [*found, *others])
    fig5s = partial(fig5, caches=[surfaces(cfg), Path(cfg.out) / "cache"], **cfg.landscape)
    makers = ITEMS | WINNERS | SEARCH | {"fig5": fig5s, "attacks": attacks, "finalists": finalists}
    return [others[name] if name in others else makers[name](found[name]) for name in names]


def add_to_archive(cfg: DictConfig, collection: Collection) -> None:
    """Runs of the sweeps named by `archive`, and Fig. 5's surfaces, for which the models themselves are needed."""
    for name in [cfg.archive] if isinstance(cfg.archive, str) else cfg.archive:
        print(*archive(name, collection.runs, Path(cfg.results)), sep="\n")
        if name == "fig5":
            fig5(find(name, collection.runs, cfg.scale), [surfaces(cfg)], **cfg.landscape)


def surfaces(cfg: DictConfig) -> Path:
    return Path(cfg.results) / "landscape"


def wanted(items: str | ListConfig, known: list[str]) -> list[str]:
    if items == "all":
        return known
    names = [items] if isinstance(items, str) else list(items)
    for name in names:
        check(name in known, f"items={name}: must be all, or of {', '.join(known)}")
    return names


def write(item: Item, out: Path) -> None:
    """CSV, Markdown, LaTeX, and PNG and PDF if there is anything to draw."""
    stem = out / item.key
    stem.with_suffix(".csv").write_text(tables.csv_text(item))
    stem.with_suffix(".md").write_text(tables.markdown(item))
    stem.with_suffix(".tex").write_text(tables.latex(item))
    if item.runs:
        figures.draw(item, stem)
    else:  # a figure of runs that are gone would be taken for a new one
        for suffix in (".png", ".pdf"):
            stem.with_suffix(suffix).unlink(missing_ok=True)


def summary(items: list[Item], collection: Collection, logs: str, out: Path) -> str:
    if not collection.runs:
        lines = [EMPTY.format(logs=logs).replace("`", "")]
    else:
        own = sum(run.own for run in collection.runs)
        lines = [f"{own} finished runs of your own, {len(collection.runs) - own} committed ones"]
        for item in items:
            state = f"{len(item.runs)} runs, scale {item.scale}, {item.origin}" if item.runs else "no run"
            gap = f"; {len(item.missing)} missing, first: {item.missing[0].command}" if item.missing else ""
            lines.append(f"  {item.key:<18} {state}{gap}")
    lines += [f"damaged, skipped: {folder}: {why}" for folder, why in collection.damaged]
    lines += [f"not finished: {folder}: {why}" for folder, why in collection.unfinished]
    return "\n".join([*lines, f"report: {out / 'index.html'}"])
