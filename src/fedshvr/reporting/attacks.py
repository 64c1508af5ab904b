"""What attackers do to the accuracy, by the way in which the server aggregates."""

from dataclasses import replace

from fedshvr.reporting.items import NONE, Item, Panel, Series, Table, cell, curves, final
from fedshvr.reporting.paper import ACCURACY, ROUND, item, last_round
from fedshvr.reporting.sweeps import Found

ROWS = {  # of configs/row: its name, and the method whose colour and marker it borrows
    "average": ("mean", "fedavg"),
    "median": ("median", "fed_shvr"),
    "trimmed_mean": ("trimmed mean", "fed_mt"),
    "geometric_median": ("geometric median", "fed_pseudo"),
}
ATTACKS = {
    "none": "no attack",
    "garbage": "garbage: Gaussian noise",
    "sign_flip": "sign flip: the move backwards",
    "scale": "scale: 100 times the move",
}


def attacks(found: Found) -> Item:
    cells: dict[tuple[str, str], str] = {}
    panels = {name: Panel(title, ROUND, ACCURACY, []) for name, title in ATTACKS.items()}
    for group in found.groups:
        (text, look), attack = ROWS[group.cell["row"]], group.cell["attack"]
        text += group.further
        cells[text, attack] = cell(list(final(group).values()))
        panels[attack].series += [looking(series, text, look) for series in curves([group], "test_acc", 100)]
    rows = [[text, *(cells.get((text, name), NONE) for name in ATTACKS)] for text in dict.fromkeys(t for t, _ in cells)]
    note = (
        f"FedAvg on digits, ten clients of which two attack: accuracy (%) after round {last_round(found.groups)}, "
        "mean ± population std (number of seeds)."
    )
    title = "Attacks: two of ten clients send something else"
    return item(found, title, Table(["aggregation", *ATTACKS], rows), [*panels.values()], note)


def looking(series: Series, text: str, like: str) -> Series:
    return replace(series, label=text, algorithm=like)
