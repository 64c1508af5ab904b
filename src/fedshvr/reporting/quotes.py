"""The blocks of docs/reproduction.md that judge nothing: tables as they are, costs, what was searched and chosen."""

import csv
import re
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from fedshvr.errors import check
from fedshvr.reporting import cost
from fedshvr.reporting.archive import add_archived
from fedshvr.reporting.collect import Collection, Run
from fedshvr.reporting.finalists import finalists
from fedshvr.reporting.identify import SEARCH, search
from fedshvr.reporting.items import Item, Table
from fedshvr.reporting.landscape import fig5
from fedshvr.reporting.paper import ITEMS
from fedshvr.reporting.reproduce import budget
from fedshvr.reporting.sweeps import Found, command, find, grid
from fedshvr.reporting.tables import markdown_table
from fedshvr.reporting.verdicts import UNMEASURED
from fedshvr.reporting.winners import WINNERS

SCALES = ("paper", "laptop")  # those that the page shows


@dataclass
class Results:
    """The committed runs, sorted into the sweeps' cells once for each sweep and scale."""

    folder: Path
    landscape: dict[str, int]

    @cached_property
    def runs(self) -> list[Run]:
        collection = add_archived(Collection(), self.folder)
        check(not collection.damaged, f"results={self.folder}: damaged: {collection.damaged}")
        return collection.runs

    def scales(self, name: str) -> list[Found]:
        """At every scale that has runs, the paper's first."""
        found = [find(name, self.runs, scale) for scale in SCALES]
        return [f for f in found if f.groups]

    def item(self, found: Found) -> Item:
        if found.grid.name == "fig5":
            return fig5(found, [self.folder / "landscape"], **self.landscape)
        return (ITEMS | WINNERS | {"finalists": finalists})[found.grid.name](found)


def unmeasured(name: str) -> str:
    return f"**Verdict: {UNMEASURED}.** `{command(name, 'laptop')}`, then `python src/report.py archive={name}`"


def quoted(name: str, results: Results) -> str:
    """A table of results/ as it is, accuracies in %."""
    with (results.folder / f"{name}.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    percent = [[f"{100 * float(v):.1f} %" if re.fullmatch(r"0\.\d+", v) else v for v in row] for row in rows]
    return "\n".join(markdown_table(Table(header, percent)))


def listed(name: str, results: Results) -> str:
    """An item that the paper has no numbers for: its table and its command."""
    parts = [part for found in results.scales(name) for part in table_part(results.item(found), found)]
    return "\n\n".join(parts or [unmeasured(name)])


def overridden(name: str, results: Results) -> str:
    """An item's runs with further options: they fill none of its cells."""
    parts = []
    for found in results.scales(name):
        known = len(results.item(replace(found, groups=[])).table.rows)  # lines that are there without a run
        table = results.item(replace(found, groups=[group for group in found.groups if group.variant])).table
        if rows := table.rows[known:]:
            parts += [f"Scale {found.scale}:", "\n".join(markdown_table(Table(table.columns, rows)))]
    return "\n\n".join(parts or ["None so far."])


def searched(name: str, results: Results) -> str:
    """The table of the search for the settings of Table I at T=1, at the paper's size."""
    found = search(results.runs, "paper")
    return "\n\n".join(table_part(SEARCH[name](found), found) if found.groups else [unmeasured("identify")])


def table_part(item: Item, found: Found) -> list[str]:
    return ["\n".join(markdown_table(item.table)), f"{item.note} `{found.command}`"]


def gpu_cost(results: Results) -> str:
    """Forward and backward passes of the local steps, as the framework counts them."""
    header, rows = cost.table(results.folder / "cost.csv")
    runs = len(grid("fig6a").cells()) * len(grid("fig6a").seeds)
    assumed = f"Hours at an assumed {cost.RATE / 1e12:g} TFLOP/s in float32, a quarter of the {cost.GPU}'s peak"
    return "\n".join([*markdown_table(Table(header, rows)), "", f"{assumed}; not measured. Fig. 6a is {runs} runs."])


def hours(results: Results) -> str:
    """What `make reproduce SCALE=laptop` takes; which jobs have runs changes too often for the page."""
    table = budget("laptop", results.runs)
    return "\n".join(
        markdown_table(Table([*table.columns[:2], table.columns[3]], [[*r[:2], r[3]] for r in table.rows]))
    )


def demo(results: Results) -> str:
    """For the README: what the embedded digits give without Fed-SHVR."""
    with (results.folder / "digits.csv").open(newline="") as file:
        _, matched, plain = (100 * float(row["test_acc"]) for row in csv.DictReader(file))
    return (
        f"Ten clients know one label a class each. Supervised FedAvg in the same setting reaches {plain:.1f} %, and "
        f"{matched:.1f} % with as many local steps as Fed-SHVR takes."
    )
