"""docs/reproduction.md and the README's headline, from the files under results/ alone: python src/report.py docs=true.

What stands between <!-- name --> and <!-- /name --> is written here, and so are the figures under docs/img.
"""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from omegaconf import DictConfig

from fedshvr.errors import check
from fedshvr.places import TREE
from fedshvr.reporting import figures
from fedshvr.reporting.items import NONE, Item, Table
from fedshvr.reporting.paper import SETTINGS, TABLE1, last_round
from fedshvr.reporting.quotes import (
    SCALES,
    Results,
    demo,
    gpu_cost,
    hours,
    listed,
    overridden,
    quoted,
    searched,
    unmeasured,
)
from fedshvr.reporting.sweeps import Found, Missing, command, find
from fedshvr.reporting.tables import markdown_table
from fedshvr.reporting.verdicts import (
    CLAIMS,
    IN_ORDER,
    NOT,
    REPRODUCED,
    RULES,
    UNMEASURED,
    Claim,
    cell_verdicts,
    column_of,
    shown,
    verdict,
)
from fedshvr.reporting.winners import WINNERS

PAGES = ("docs/reproduction.md", "README.md")
ANSWER = {True: "yes", False: "no", None: "cannot say"}
COLUMNS = [(e, t) for e in SETTINGS for t in (1, 0)]  # of Table I; 0 is the last round
JUDGED: tuple[str, ...] = ("table1", "fig2a", "fig2b", "fig3a", "fig3b", "fig4", "fig5", "fig6a", "fig6b", "theorem1")
JUDGED += ("fig6a_features", "fig6b_features", *WINNERS)
CHOSEN = ", setting=closest (what the text leaves open is chosen by these very cells)"
SHORT = {REPRODUCED: "**met**", IN_ORDER: "in order", NOT: "no", UNMEASURED: ""}


def write_pages(cfg: DictConfig, root: Path = TREE) -> None:
    """Every page's blocks, and the figures that they show."""
    check((root / PAGES[0]).is_file(), "docs=true: writes the pages of a clone of the repository, and this is none")
    results = Results(Path(cfg.results), dict(cfg.landscape))
    for name in PAGES:
        path = root / name
        path.write_text(filled(path.read_text(), results))
    for key in re.findall(r"img/(\w+)\.png", "".join((root / name).read_text() for name in PAGES)):
        name, scale = key.rsplit("_", 1) if "_" in key else (key, "")
        if scale in SCALES:
            figures.draw(results.item(find(name, results.runs, scale)), root / "docs" / "img" / key, ("png",))


def filled(text: str, results: Results) -> str:
    """The page with every block written anew."""

    def block(match: re.Match[str]) -> str:
        name = match[1]
        maker = BLOCKS.get(name, partial(item_block, name))
        return f"<!-- {name} -->\n{maker(results)}\n<!-- /{name} -->"

    return re.sub(r"<!-- (\w+) -->\n.*?<!-- /\1 -->", block, text, flags=re.DOTALL)


def reduced(found: Found) -> bool:
    return found.scale != "paper" or "features" in found.grid.name


def seeds_of(found: Found, setting: str) -> str:
    counts = {len(g.runs) for g in found.groups if not g.variant and g.setting == setting}
    return str(min(counts)) if len(counts) == 1 else f"{min(counts)} to {max(counts)}"


# ---- one item --------------------------------------------------------------------------------------------------------


def item_block(name: str, results: Results) -> str:
    parts = []
    for found in telling(results, name):
        parts += [part for setting in found.settings for part in setting_part(results, found, setting)]
        item = results.item(found)
        if name in WINNERS:
            parts.append("\n".join(markdown_table(item.table)))
        if item.panels or item.surfaces:
            parts.append(f"![{item.title}, scale {found.scale}](img/{name}_{found.scale}.png)")
        parts += [f"{item.note} {', '.join(f'`{c}`' for c in found.commands)}".strip(), *missing_part(found)]
    return "\n\n".join(parts or [unmeasured(name)])


def telling(results: Results, name: str) -> list[Found]:
    """The scales at which anything that the paper says of an item can be compared; if there is none, all with runs."""
    founds = [found for found in results.scales(name) if found.settings]
    return [f for f in founds if name == "table1" or any(claims_of(results, f, s) for s in f.settings)] or founds


def lacking(found: Found) -> list[Missing]:
    """Of the settings that are shown."""
    return [missing for missing in found.missing if missing.setting in found.settings]


def missing_part(found: Found) -> list[str]:
    """The command for what lacks runs; the first of many."""
    if not lacking(found):
        return []
    first, *others = lacking(found)
    more = f" ({1 + len(others)} cells lack seeds; this fills the first)" if others else ""
    return [f"Not measured yet: {first.what}: `{first.command}`{more}"]


def setting_part(results: Results, found: Found, setting: str) -> list[str]:
    seeds = seeds_of(found, setting)
    head = f"Scale {found.scale}, {seeds} seed{'s' * (seeds != '1')}"
    head += f", setting={setting}" if setting != "text" else ""
    if found.grid.name == "table1":
        return [f"**{head}: {table1_verdict(found, setting)}.**", "\n".join(markdown_table(table1(found, setting)))]
    claims = claims_of(results, found, setting)
    if not claims:
        return [f"**{head}.**"]
    rows = [[claim.text + (" (size)" if claim.size else ""), claim.numbers, ANSWER[claim.holds]] for claim in claims]
    table = Table(["the paper says", "ours", "holds"], rows)
    return [f"**{head}: {item_verdict(results, found, setting)}.**", "\n".join(markdown_table(table))]


def claims_of(results: Results, found: Found, setting: str) -> list[Claim]:
    if found.grid.name == "fig5":
        return smoother(results.item(found)) if setting == found.settings[0] else []
    maker = CLAIMS.get(found.grid.name)
    return maker(found, setting) if maker else []


def smoother(item: Item) -> list[Claim]:
    """Fig. 5: with r2 the landscape is smooth."""
    rises = [row[2] for row in item.table.rows]
    if len(rises) < 2 or NONE in rises:
        return []
    without, with_r2 = map(float, rises)
    text = "with r2 (α2 = 0.1) the landscape is smoother: F rises less at distance 0.5"
    return [Claim(text, f"{with_r2:+.4f} against {without:+.4f}", with_r2 < without)]


# ---- Table I ---------------------------------------------------------------------------------------------------------


def table1_cells(found: Found, setting: str) -> list[dict[str, tuple[str, str, str]]]:
    """For each column: row -> the paper's number, ours, verdict."""
    columns = []
    for i, (experiment, t) in enumerate(COLUMNS):
        ours = column_of(found, setting, experiment, t)
        paper = {row: float(values[i + 1]) for row, values in TABLE1.items()}
        judged = cell_verdicts(ours, paper)
        numbers = {row: f"{shown(ours[row])} ({len(ours[row])})" if row in ours else NONE for row in TABLE1}
        columns.append({row: (str(paper[row]), numbers[row], judged[row]) for row in TABLE1})
    return columns


def table1(found: Found, setting: str) -> Table:
    last = last_round(found.groups)
    cells = table1_cells(found, setting)
    header = ["paper / ours (seeds)", *(f"{SETTINGS[e]} T={t or last}" for e, t in COLUMNS)]
    rows = []
    for row, (title, *_) in TABLE1.items():
        texts = [f"{paper} / {ours} {SHORT[judged]}".rstrip() for paper, ours, judged in (c[row] for c in cells)]
        rows.append([title, *texts])
    return Table(header, rows)


def table1_verdict(found: Found, setting: str) -> str:
    judged = [cell[2] for column in table1_cells(found, setting) for cell in column.values()]
    counts = {kind: judged.count(kind) for kind in (REPRODUCED, IN_ORDER, NOT, UNMEASURED)}
    measured = len(judged) - counts[UNMEASURED]
    whole = NOT if counts[NOT] else REPRODUCED if counts[REPRODUCED] == measured and not reduced(found) else IN_ORDER
    detail = f"of {measured} cells {counts[REPRODUCED]} met, {counts[IN_ORDER]} in order, {counts[NOT]} not"
    if counts[UNMEASURED]:
        return f"so far {whole} ({detail}; {counts[UNMEASURED]} not measured yet)"
    return f"{whole} ({detail})"


# ---- the other blocks ------------------------------------------------------------------------------------------------


def overview(results: Results) -> str:
    rows = []
    for name in JUDGED:
        founds = telling(results, name)
        title = results.item(find(name, [])).title.split(":")[0]
        link = f"[{title}](#{anchor(title)})"
        for found in founds:
            for setting in found.settings:
                rows.append(
                    [link, found.scale, setting, seeds_of(found, setting), item_verdict(results, found, setting)]
                )
        if not founds:
            rows.append([link, "", "", "0", UNMEASURED])
    return "\n".join(markdown_table(Table(["item", "scale", "setting", "seeds", "verdict"], rows)))


def anchor(heading: str) -> str:
    """As GitHub makes them."""
    return re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-")


def item_verdict(results: Results, found: Found, setting: str) -> str:
    if found.grid.name == "table1":
        return table1_verdict(found, setting)
    whole = verdict(claims_of(results, found, setting), reduced(found))
    lack = sum(missing.setting == setting for missing in found.missing)
    so_far = "so far " * (lack > 0 and whole != UNMEASURED)
    return so_far + whole + f" ({lack} cells lack seeds)" * (lack > 0)


def fullest(founds: list[Found]) -> Found:
    return max(founds, key=lambda f: (len({str(g.cell) for g in f.groups if not g.variant}), f.scale == "paper"))


def headline(results: Results) -> str:
    """For the README: Table I and Fig. 2b, at the scale that has most of their cells, the paper's if all are alike."""
    founds = results.scales("table1")
    if not founds:
        return f"Table I is {UNMEASURED}: `{command('table1', 'laptop')}`."
    found = fullest(founds)
    setting = found.settings[0]
    parts = [
        f"Test accuracy (%) of Table I, the paper's / ours, scale {found.scale}, {seeds_of(found, setting)} seeds"
        f"{CHOSEN if setting == 'closest' else ''}: {table1_verdict(found, setting)}. "
        "[All items, commands and verdicts](docs/reproduction.md).",
        "\n".join(markdown_table(table1(found, setting))),
    ]
    if drawn := results.scales("fig2b"):
        fig2b = fullest(drawn)
        parts.append(f"![Fig. 2b, scale {fig2b.scale}](docs/img/fig2b_{fig2b.scale}.png)")
    return "\n\n".join(parts)


BLOCKS: dict[str, Callable[[Results], str]] = {
    "rules": lambda results: RULES,
    "overview": overview,
    "headline": headline,
    "demo": demo,
    "cost": gpu_cost,
    "budget": hours,
    "digits": partial(quoted, "digits"),
    "label_view": partial(quoted, "label_view"),
    "table1_further": partial(overridden, "table1"),
    "finalists": partial(listed, "finalists"),
    "tune_mt": partial(listed, "tune_mt"),
    "identify": partial(searched, "identify"),
    "identify_factors": partial(searched, "identify_factors"),
}
