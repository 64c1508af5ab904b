"""sweep=finalists: settings that are near Table I at T=1, followed to its T=100."""

from fedshvr.reporting.items import Item, Table, at_round, cell, mean_std
from fedshvr.reporting.paper import SETTINGS, TABLE1, item, last_round
from fedshvr.reporting.sweeps import Found, Group, Variant, describe

Place = tuple[str, str]  # a row of Table I and an experiment


def finalists(found: Found) -> Item:
    """A line a setting: at T=1 and at the last round the mean distance to the paper, and the last accuracies."""
    lines: dict[Variant, dict[Place, Group]] = {}
    for group in found.groups:
        setting = tuple((k, v) for k, v in group.cell.items() if k not in ("row", "experiment")) + group.variant
        lines.setdefault(setting, {})[group.cell["row"], group.cell["experiment"]] = group
    places = [place for place in paper(0) if any(place in line for line in lines.values())]
    ranked = sorted(completed(lines).items(), key=lambda line: (-len(line[1]), distance(line[1], 0)))
    rows = [["the paper", "0.0", "0.0", *(f"{paper(0)[place]:.1f}" for place in places)]]
    for setting, groups in ranked:
        ends = [cell(ours(groups[place], 0)) if place in groups else cell([]) for place in places]
        rows.append([describe(setting), *(f"{distance(groups, t):.1f}" for t in (1, 0)), *ends])
    columns = [f"{row}, {SETTINGS[experiment]}" for row, experiment in places]
    note = (
        f"Accuracy in % at T={last_round(found.groups)} (seeds), nearest first; the distance is the mean of |ours - "
        "the paper's| over these cells."
    )
    table = Table(["setting", "distance at T=1", "distance at the end", *columns], rows)
    return item(found, "From T=1 to T=100", table, note=note)


def completed(lines: dict[Variant, dict[Place, Group]]) -> dict[Variant, dict[Place, Group]]:
    """A cell that a setting lacks is that of another one which differs from it in nothing that concerns the cell.

    A line that is then a part of another one is left out.
    """
    known = {(concerning(place, setting), place): g for setting, line in lines.items() for place, g in line.items()}
    whole = {
        setting: {place: known[key, place] for key, place in known if key == concerning(place, setting)}
        for setting in lines
    }
    parts = {setting: {(place, id(group)) for place, group in line.items()} for setting, line in whole.items()}
    return {setting: line for setting, line in whole.items() if not any(parts[setting] < p for p in parts.values())}


def concerning(place: Place, setting: Variant) -> frozenset[tuple[str, object]]:
    """An IID partition is not split by classes, and labels without r1 are hard: they have no exponent."""
    row, experiment = place
    without = ("partition.",) * (experiment == "mnist_iid") + ("algorithm.objective.exponent",) * ("r1" not in row)
    return frozenset((k, v) for k, v in setting if not k.startswith(without))


def paper(t: int) -> dict[Place, float]:
    """The paper's accuracies after round 1, or the last (0)."""
    first = (1, 3) if t else (2, 4)
    return {(row, e): float(TABLE1[row][i]) for e, i in zip(SETTINGS, first, strict=True) for row in TABLE1}


def ours(group: Group, t: int) -> list[float]:
    return list(at_round(group, "test_acc", t, 100).values())


def distance(groups: dict[Place, Group], t: int) -> float:
    return mean_std([abs(mean_std(ours(group, t))[0] - paper(t)[place]) for place, group in groups.items()])[0]
