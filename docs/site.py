"""Pages of the site that no file of docs/ is: the README as its start, the figures, and the reference."""

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
ORDER: tuple[str, ...] = ("using.md", "model.md", "extending.md", "algorithms.md", "reports.md")
ORDER += ("reproduction.md", "performance.md", "architecture.md")
REFERENCE = {
    "The library": ("fedshvr.library.compose", "fedshvr.library.run", "fedshvr.library.read_runs"),
    "Models": ("fedshvr.running.loading.load", "fedshvr.running.loading.Model"),
    "Evaluation": ("fedshvr.running.evaluation.evaluate", "fedshvr.running.evaluation.Evaluation"),
    "Partitions": ("fedshvr.federation.partition",),
    "Interfaces": (
        "fedshvr.algorithms.objectives.base.Objective",
        "fedshvr.algorithms.corrections.Correction",
        "fedshvr.algorithms.aggregation.Average",
    ),
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """First what a newcomer reads; a page that is not named comes before the figures and the reference."""
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    first = [name for name in ORDER if name in pages]
    config.nav = [{"Start": "index.md"}, *first, *sorted(pages - set(first)), "gallery.md", "reference.md"]
    return config


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    for name, text in {"index.md": start(), "gallery.md": gallery(), "reference.md": reference()}.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Files of the repository that are not on the site are named without a link."""
    return re.sub(r"\[([^\]]+)\]\(\.\./[^)]+\)", r"\1", markdown)


def start() -> str:
    """The README, with links from where it is on the site."""
    text = (ROOT / "README.md").read_text().replace("](docs/", "](")
    return re.sub(r"\[([^\]]+)\]\((?!http|#|\w+\.md|img/)[^)]+\)", r"\1", text)


def gallery() -> str:
    """Every figure of docs/img, with the pages that explain it."""
    pages = {path.name: path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))}
    parts = ["# Figures\n\nAll from committed results; `python src/report.py` draws them from runs of your own.\n"]
    for path in sorted((ROOT / "docs" / "img").glob("*.png")):
        where = ", ".join(f"[{name}]({name})" for name, text in pages.items() if f"img/{path.name}" in text)
        parts.append(f"## {path.stem.replace('_', ', ')}\n\n![{path.stem}](img/{path.name})\n\n{where}\n")
    return "\n".join(parts)


def reference() -> str:
    sections = (f"## {title}\n\n" + "\n\n".join(f"::: {name}" for name in names) for title, names in REFERENCE.items())
    return "# Reference\n\n" + "\n\n".join(sections) + "\n"
