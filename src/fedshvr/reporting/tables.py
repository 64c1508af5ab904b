"""An item's table and points as CSV, Markdown and LaTeX."""

import csv
import io
from math import isfinite

from fedshvr.reporting.items import NONE, Item, Panel, Table

LATEX = {
    "&": r"\&",
    "%": r"\%",
    "_": r"\_",
    "#": r"\#",
    "±": r"$\pm$",
    "—": "---",
    "≤": r"$\le$",
    "\\": r"$\backslash$",
}
LATEX |= {"α": r"$\alpha$", "−": "$-$", "√": r"$\surd$", "{": r"\{", "}": r"\}", "$": r"\$"}
LATEX |= {"<": "$<$", ">": "$>$", "^": r"\^{}", "~": r"\~{}", "\n": " ", "\r": " "}


def csv_text(item: Item) -> str:
    """Every point of the figures, or the table where there is none."""
    if item.surfaces:
        header, rows = surface_points(item)
    elif item.panels:
        header, rows = series_points(item.panels)
    else:
        table = item.points or item.table
        header, rows = table.columns, table.rows
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return out.getvalue()


def series_points(panels: list[Panel]) -> tuple[list[str], list[list[str]]]:
    seeds = sorted({seed for panel in panels for series in panel.series for seed in series.seeds})
    header = ["panel", "series", "x", "mean", "std", "seeds", *(f"seed {seed}" for seed in seeds)]
    rows = []
    for panel in panels:
        for s in panel.series:
            for i, (x, mean) in enumerate(zip(s.x, s.mean, strict=True)):
                values = [s.seeds[seed][i] if seed in s.seeds else float("nan") for seed in seeds]
                std = repr(s.std[i]) if s.std else ""
                known = [repr(v) if isfinite(v) else "" for v in values]
                count = sum(map(isfinite, values))
                rows.append([panel.title, s.label, f"{x:g}", repr(mean), std, str(count), *known])
    return header, rows


def surface_points(item: Item) -> tuple[list[str], list[list[str]]]:
    rows = [
        [surface.title, repr(b1), repr(b2), repr(value)]
        for surface in item.surfaces
        for b2, line in zip(surface.beta, surface.values, strict=True)
        for b1, value in zip(surface.beta, line, strict=True)
    ]
    return ["surface", "b1", "b2", "F"], rows


def markdown(item: Item) -> str:
    whose = f" Runs: {item.origin}." if item.runs else ""
    lines = [f"## {item.title}", "", f"Scale: {item.scale}.{whose} {item.note}".rstrip(), ""]
    lines += markdown_table(item.table) if item.table.rows else ["No finished run yet."]
    lines += ["", f"All of it: `{item.command}`"]
    if item.missing:
        lines += ["", "Missing:", *(f"- {m.what}: `{m.command}`" for m in item.missing)]
    return "\n".join(lines) + "\n"


def markdown_table(table: Table) -> list[str]:
    rows = [table.columns, ["---"] * len(table.columns), *table.rows]
    return ["| " + " | ".join(text.replace("|", r"\|") for text in row) + " |" for row in rows]


def latex(item: Item) -> str:
    """A tabular to \\input; the missing cells' commands are comments above it."""
    lines = [comment(f"{item.title}; scale: {item.scale}; {item.command}")]
    lines += [comment(f"missing: {m.what}: {m.command}") for m in item.missing]
    lines += [rf"\begin{{tabular}}{{l{'r' * (len(item.table.columns) - 1)}}}", r"\hline"]
    lines += [latex_row(item.table.columns), r"\hline"]
    lines += [latex_row(row) for row in item.table.rows or [[NONE] * len(item.table.columns)]]
    return "\n".join([*lines, r"\hline", r"\end{tabular}"]) + "\n"


def comment(text: str) -> str:
    return f"% {' '.join(text.split())}"


def latex_row(row: list[str]) -> str:
    return " & ".join("".join(LATEX.get(c, c) for c in text) for text in row) + r" \\"
