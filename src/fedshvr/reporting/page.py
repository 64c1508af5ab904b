"""reports/index.html: one self-contained page with the tables, the figures to play with, and where they come from."""

import base64
import json
from collections.abc import Iterable
from html import escape
from math import isfinite
from pathlib import Path
from typing import Any

from fedshvr.reporting import style
from fedshvr.reporting.collect import Collection, Run, settings
from fedshvr.reporting.items import Item, Panel, Series, Surface, Table

HERE = Path(__file__).parent
MOST_POINTS = 500  # of a curve on the page; the CSV files have all
FIRST = "python src/train.py -m sweep=smoke"
EMPTY = (
    f"No finished run under {{logs}} yet. To see a report in a minute: `{FIRST}`; for the paper's items at laptop "
    "size: `make reproduce SCALE=laptop`, or one of them: `python src/train.py -m sweep=table1 scale=laptop`. "
    "Then `python src/report.py` again."
)


def page(items: list[Item], collection: Collection, logs: str, out: Path) -> str:
    parts = [head(collection, logs), navigation(items)]
    parts += [section(item, out) for item in items]
    parts += [partitions(collection.runs), left_out(collection)]
    data = {item.key: {"panels": panels(item), "surfaces": surfaces(item.surfaces)} for item in items}
    payload = json.dumps(data, allow_nan=False).replace("<", "\\u003c")
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Fed-SHVR: tables and figures</title><link rel="icon" href="data:,">
<style>{(HERE / "page.css").read_text()}</style></head>
<body>{"".join(parts)}
<script type="application/json" id="data">{payload}</script>
<script>{(HERE / "page.js").read_text()}</script></body></html>
"""


def head(collection: Collection, logs: str) -> str:
    own = sum(run.own for run in collection.runs)
    count = f"{own} finished runs under {escape(logs)}, {len(collection.runs) - own} committed ones. "
    hint = "Hover over a figure for every seed's value, drag to zoom, press a name to hide it."
    text = count + hint if collection.runs else code_spans(EMPTY.format(logs=logs))
    return f"<h1>Fed-SHVR: the paper's tables and figures</h1><p>{text}</p>"


def code_spans(text: str) -> str:
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))


def navigation(items: list[Item]) -> str:
    links = (f'<a href="#{item.key}">{escape(item.title.split(":")[0])}</a>' for item in items)
    return f"<nav>{''.join(links)}</nav>"


def section(item: Item, out: Path) -> str:
    figures = [f'<figure data-panel="{item.key}/{i}"></figure>' for i, p in enumerate(item.panels) if any_point(p)]
    figures += [f'<figure data-surface="{item.key}/{i}"></figure>' for i in range(len(item.surfaces))]
    png = out / f"{item.key}.png"
    if item.surfaces and png.is_file():
        figures.append(f"<figure><figcaption>contour and surface</figcaption>{image(png, item.title)}</figure>")
    badges = [f"scale: {item.scale}", *([item.origin] if item.runs else [])]
    badge = "".join(f'<span class="badge">{escape(text)}</span>' for text in badges)
    body = [f'<section id="{item.key}"><h2>{escape(item.title)}{badge}</h2>']
    body += [f'<p class="soft">{escape(item.note)}</p>' if item.note else ""]
    body += [f'<div class="figures">{"".join(figures)}</div>' if figures else ""]
    body += [table(item.table) if item.table.rows else '<p class="warn">No finished run yet.</p>', missing(item)]
    return "".join([*body, origin(item), "</section>"])


def any_point(panel: Panel) -> bool:
    return any(series.x for series in panel.series)


def table(data: Table) -> str:
    header = "".join(f"<th>{escape(text)}</th>" for text in data.columns)
    rows = ("".join(f"<td>{escape(text)}</td>" for text in row) for row in data.rows)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table></div>'


def missing(item: Item) -> str:
    if not item.missing:
        return ""
    lines = "".join(f"<li>{escape(m.what)}: <code>{escape(m.command)}</code></li>" for m in item.missing)
    opened = " open" if len(item.missing) <= 3 else ""
    return f'<details{opened}><summary class="warn">missing: {len(item.missing)}</summary><ul>{lines}</ul></details>'


def origin(item: Item) -> str:
    """Where the numbers come from: command, configuration, versions, runs, files."""
    if not item.runs:
        return ""
    links = " ".join(f'<a href="{item.key}.{kind}">{kind}</a>' for kind in ("csv", "md", "tex", "png", "pdf"))
    runs = "\n".join(f"{run.folder}  seed {run.seed}  {accuracy(run)}" for run in item.runs)
    versions = "\n".join(sorted({", ".join(f"{k} {v}" for k, v in versions_of(run).items()) for run in item.runs}))
    shared, varied = shared_settings(item.runs)
    config = "\n".join([*(f"{k}: {v}" for k, v in shared.items()), *(f"{k}: varies" for k in varied)])
    return (
        f"<p>Command: <code>{escape(item.command)}</code></p>"
        f"<details><summary>configuration of these runs</summary><pre>{escape(config)}</pre></details>"
        f"<details><summary>{len(item.runs)} runs, and versions</summary>"
        f"<pre>{escape(versions)}\n\n{escape(runs)}</pre></details><p>{links}</p>"
    )


def accuracy(run: Run) -> str:
    value = run.summary.get("test_acc")
    return "" if value is None else f"{100 * value:.2f} %"


def versions_of(run: Run) -> dict[str, str]:
    return run.summary.get("versions") or {}


def shared_settings(runs: list[Run]) -> tuple[dict[str, Any], list[str]]:
    """The settings that all runs share, and the names of those they do not."""
    configs = [settings(run.config) for run in runs]
    names = dict.fromkeys(name for config in configs for name in config)
    values = {name: {str(config.get(name)) for config in configs} for name in names}
    shared = {name: configs[0].get(name) for name in names if len(values[name]) == 1}  # null, or an option of others
    return shared, [name for name in names if name not in shared]


def partitions(runs: Iterable[Run]) -> str:
    """One heat map per experiment and scale: that of the lowest seed."""
    chosen: dict[tuple[str, str], Run] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        if (run.folder / "partition.png").is_file():
            chosen.setdefault((str(run.choices["experiment"]), str(run.choices["scale"])), run)
    if not chosen:
        return ""
    figures = []
    for (experiment, scale), run in sorted(chosen.items()):
        caption = f"{experiment}, scale {scale}, seed {run.seed}"
        picture = image(run.folder / "partition.png", caption)
        figures.append(f"<figure><figcaption>{escape(caption)}</figcaption>{picture}</figure>")
    return f'<section id="partitions"><h2>Who holds what</h2><div class="partitions">{"".join(figures)}</div></section>'


def image(path: Path, text: str) -> str:
    encoded = base64.b64encode(path.read_bytes()).decode()
    return f'<img alt="{escape(text)}" src="data:image/png;base64,{encoded}">'


def left_out(collection: Collection) -> str:
    entries = [(folder, f"damaged, skipped: {why}") for folder, why in collection.damaged]
    entries += [(folder, f"not finished: {why}") for folder, why in collection.unfinished]
    if not entries:
        return ""
    lines = "".join(f"<li><code>{escape(str(folder))}</code> {escape(why)}</li>" for folder, why in entries)
    return f'<section id="left-out"><h2>Left out</h2><ul>{lines}</ul></section>'


# ---- what the script draws -------------------------------------------------------------------------------------------


def panels(item: Item) -> list[dict[str, Any]]:
    """A caption only where there are several: one alone has the item's title above it."""
    return [panel(p) | {"caption": len(item.panels) > 1} for p in item.panels]


def panel(p: Panel) -> dict[str, Any]:
    guide = p.guide and {"label": p.guide[0], "x": numbers(p.guide[1]), "y": numbers(p.guide[2])}
    names = {"title": p.title, "xlabel": p.xlabel, "ylabel": p.ylabel, "log": p.log, "points": p.points}
    return names | {"series": [line(s) for s in p.series if s.x], "guide": guide}


def line(s: Series) -> dict[str, Any]:
    look: dict[str, Any] = {"label": s.label, "color": style.color(s.algorithm), "marker": style.marker(s.algorithm)}
    look |= {"n": s.n, "dash": s.dash + style.dash(s.algorithm)}
    values = {"x": numbers(s.x), "mean": numbers(s.mean), "std": numbers(s.std) if s.std else None}
    return look | values | {"seeds": {seed: numbers(v) for seed, v in s.seeds.items()}}


def numbers(values: list[float]) -> list[float | None]:
    """Six digits; long curves thinned, with their last point kept."""
    step = -(-len(values) // MOST_POINTS)
    thin = values[::-1][::step][::-1] if step > 1 else values
    return [float(f"{v:.6g}") if isfinite(v) else None for v in thin]


def surfaces(found: list[Surface]) -> list[dict[str, Any]]:
    return [{"title": s.title, "beta": numbers(s.beta), "values": [numbers(row) for row in s.values]} for s in found]
