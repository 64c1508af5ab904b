"""What the paper says of each item, whether our runs show it, and the verdict: rules that are printed on the page."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from math import sqrt
from statistics import fmean, stdev

import numpy as np

from fedshvr.reporting.items import at_round, final, last_known, mean_std
from fedshvr.reporting.paper import LEVELS, TABLE1, first_reach, slope, theorem1
from fedshvr.reporting.style import name
from fedshvr.reporting.sweeps import Found, Group

REPRODUCED = "reproduced"
IN_ORDER = "reproduced in order but not in size"
NOT = "not reproduced"
UNDECIDED = "cannot be decided from the text"
UNMEASURED = "not measured yet"

POINTS = 1.5  # of accuracy: closer than this is the same size, and rows that the paper has closer have no order
SLIGHT = 3.0  # points of accuracy: the "slight change" of Fig. 3b
SSL = ("fed_shvr", "fed_mt", "fed_pseudo")
Values = dict[int, float]  # of each seed

RULES = f"""\
- Size: a number is met if it differs from the paper's by at most 2 std over our seeds or {POINTS} points, whichever is
  more.
- Order: "A above B" holds if the mean difference over the seeds that both have is more than its standard error (for one
  seed: more than 0). Rows of Table I that the paper has within {POINTS} points of each other have no order.
- A cell of Table I is met if its size is; else in order if it stands in its column above and below the same rows as in
  the paper (by the means, and at least one other row has runs); else not reproduced.
- An item is *{REPRODUCED}* if everything that the paper says of it holds, sizes included; *{IN_ORDER}*
  if all but sizes holds, and at best this where network or data are not the paper's; *{NOT}* if something
  else fails; *{UNDECIDED}* if nothing that the paper says of it can be compared;
  *{UNMEASURED}* if there is no run."""


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, our numbers for it, and whether they show it (None: they cannot say)."""

    text: str
    numbers: str
    holds: bool | None
    size: bool = False


def verdict(claims: list[Claim], reduced: bool) -> str:
    """Of an item; `reduced` where network or data are not the paper's."""
    if not claims:
        return UNMEASURED
    known = [claim for claim in claims if claim.holds is not None]
    if not known:
        return UNDECIDED
    order = [claim.holds for claim in known if not claim.size]
    if not order:  # sizes alone: the runs that they are to be compared with are not there yet
        return UNMEASURED
    if not all(order):
        return NOT
    return REPRODUCED if all(claim.holds for claim in known) and not reduced else IN_ORDER


def above(a: Values, b: Values) -> bool:
    """Whether a - b, paired by seed, is positive by more than its standard error."""
    differences = [a[seed] - b[seed] for seed in a if seed in b]
    error = stdev(differences) / sqrt(len(differences)) if len(differences) > 1 else 0.0
    return bool(differences) and fmean(differences) > error


def met(ours: Values, paper: float) -> bool:
    mean, std = mean_std(list(ours.values()))
    return abs(mean - paper) <= max(2 * std, POINTS) + 1e-9


def cell_verdicts(ours: dict[str, Values], paper: dict[str, float]) -> dict[str, str]:
    """Of one column of Table I: a verdict for each row."""
    right, wrong = set[str](), set[str]()
    for a, b in combinations([row for row in paper if ours.get(row)], 2):
        gap = paper[a] - paper[b]
        if abs(gap) > POINTS:
            (right if (mean(ours[a]) - mean(ours[b])) * gap > 0 else wrong).update((a, b))
    return {row: cell_verdict(ours.get(row), paper[row], row in right - wrong) for row in paper}


def cell_verdict(ours: Values | None, paper: float, in_order: bool) -> str:
    if not ours:
        return UNMEASURED
    return REPRODUCED if met(ours, paper) else IN_ORDER if in_order else NOT


def mean(values: Values) -> float:
    return fmean(values.values())


def shown(values: Values, digits: int = 1) -> str:
    average, std = mean_std(list(values.values()))
    return f"{average:.{digits}f}" + (f" ± {std:.{digits}f}" if len(values) > 1 else "")


# ---- what the paper says ---------------------------------------------------------------------------------------------


def lines(found: Found, setting: str) -> dict[str, Group]:
    """The groups of a figure with one line an algorithm."""
    return {g.algorithm: g for g in found.groups if not g.variant and g.setting == setting}


def ends_above(a: Group, b: Group, where: str = "") -> Claim:
    text = f"{name(a.algorithm)} ends above {name(b.algorithm)}{where}"
    return Claim(text, f"{shown(final(a))} against {shown(final(b))}", above(final(a), final(b)))


def pairs(groups: dict[str, Group], where: str = "") -> list[Claim]:
    """Fed-SHVR above the other Fed-SSL methods, and all of them above FedAvg."""
    wanted = [("fed_shvr", "fed_mt"), ("fed_shvr", "fed_pseudo"), *((a, "fedavg") for a in SSL)]
    return [ends_above(groups[a], groups[b], where) for a, b in wanted if a in groups and b in groups]


def size_claim(group: Group, paper: float) -> Claim:
    ours = final(group)
    return Claim(f"{name(group.algorithm)} ends at {paper} %", shown(ours), met(ours, paper), size=True)


def fig2(column: int) -> Callable[[Found, str], list[Claim]]:
    """The order of the curves' ends, and the two ends that Table I prints."""

    def claims(found: Found, setting: str) -> list[Claim]:
        groups = lines(found, setting)
        sizes = {"fed_shvr": TABLE1["r1_r2"][column], "fedavg": TABLE1["fedavg"][column]}
        return [*pairs(groups), *(size_claim(groups[a], float(v)) for a, v in sizes.items() if a in groups)]

    return claims


def by_x(found: Found, setting: str, key: str) -> dict[str, dict[float, Group]]:
    """algorithm -> x -> group, x increasing"""
    table: dict[str, dict[float, Group]] = {}
    for g in found.groups:
        if not g.variant and g.setting == setting:
            table.setdefault(g.algorithm, {})[float(g.some_run.config[key])] = g
    return {algorithm: dict(sorted(points.items())) for algorithm, points in table.items()}


def everywhere(text: str, table: dict[str, dict[float, Group]], a: str, b: str) -> list[Claim]:
    """One claim: `a` ends above `b` at every x that both have."""
    common = [x for x in table.get(a, {}) if x in table.get(b, {})]
    holds = [above(final(table[a][x]), final(table[b][x])) for x in common]
    numbers = f"at {sum(holds)} of {len(holds)}"
    return [Claim(text.format(a=name(a), b=name(b)), numbers, all(holds))] if holds else []


def fig3a(found: Found, setting: str) -> list[Claim]:
    table = by_x(found, setting, "partition.unlabeled")
    claims = []
    for other in ("fed_mt", "fed_pseudo", "fedavg"):
        claims += everywhere("{a} ends above {b} at every number of unlabelled samples", table, "fed_shvr", other)
    for algorithm in SSL:
        points = list(table.get(algorithm, {}).values())
        if len(points) > 1:
            few, many = final(points[0]), final(points[-1])
            text = f"more unlabelled samples improve {name(algorithm)}"
            claims.append(Claim(text, f"{shown(few)} with the fewest, {shown(many)} with the most", above(many, few)))
    return claims


def fig3b(found: Found, setting: str) -> list[Claim]:
    table = by_x(found, setting, "partition.clients")
    claims = []
    for algorithm in SSL:
        claims += everywhere("{a} ends above {b} at every number of clients", table, algorithm, "fedavg")
        means = [mean(final(g)) for g in table.get(algorithm, {}).values()]
        if len(means) > 1:
            spread = max(means) - min(means)
            text = f"the number of clients changes {name(algorithm)} slightly (at most {SLIGHT:g} points)"
            claims.append(Claim(text, f"{min(means):.1f} to {max(means):.1f}", spread <= SLIGHT))
    return claims


def fig4(found: Found, setting: str) -> list[Claim]:
    groups = lines(found, setting)
    claims = []
    for other in [a for a in ("fed_sh", "fed_svr") if a in groups and "fed_shvr" in groups]:
        loss = [last_known(groups[a], "server_loss") for a in ("fed_shvr", other)]
        numbers = f"{shown(loss[0], 4)} against {shown(loss[1], 4)}"
        text = f"Fig. 4a: Fed-SHVR reaches a smaller training loss than {name(other)}"
        claims.append(Claim(text, numbers, above(loss[1], loss[0])))
    for a, b in (("fed_shvr", "fed_sh"), ("fed_shvr", "fed_svr"), ("fed_svr", "fed_sh")):
        if a in groups and b in groups and min(len(groups[a].runs), len(groups[b].runs)) > 1:
            std = [late_std(groups[a]), late_std(groups[b])]
            text = f"Fig. 4b: the std of {name(a)} is smaller than that of {name(b)} (mean over the second half)"
            claims.append(Claim(text, f"{std[0]:.2f} against {std[1]:.2f} points", std[0] < std[1]))
    return claims


def late_std(group: Group) -> float:
    """The std over the seeds in points of %, averaged over the second half of the rounds."""
    curves = np.stack([100 * run.curves["test_acc"] for run in group.runs.values()])
    return float(np.nanmean(curves.std(0)[curves.shape[1] // 2 :]))


def fig6a(found: Found, setting: str) -> list[Claim]:
    table = by_x(found, setting, "partition.mismatch_ratio")
    claims = []
    own = table.get("fed_shvr", {})
    if 0.0 in own and 1.0 in own:
        ends = final(own[0.0]), final(own[1.0])
        text = "the accuracy of Fed-SHVR rises with the mismatch ratio"
        claims.append(Claim(text, f"{shown(ends[0])} at 0, {shown(ends[1])} at 1", above(ends[1], ends[0])))
    at_one = {a: points[1.0] for a, points in table.items() if 1.0 in points}
    claims += [c for c in pairs(at_one, " at mismatch 1") if c.text.startswith("Fed-SHVR")]
    return claims


def fig6b(found: Found, setting: str) -> list[Claim]:
    """At the highest accuracy that both methods reach with every seed."""
    reached = {a: rounds_to(g) for a, g in lines(found, setting).items()}
    claims = []
    for other in ("fed_mt", "fed_pseudo", "fedavg"):
        if "fed_shvr" in reached and other in reached:
            text = f"Fed-SHVR needs fewer rounds than {name(other)}"
            common = [level for level in LEVELS if all(level in reached[a] for a in ("fed_shvr", other))]
            if not common:
                claims.append(Claim(text, "no accuracy that both reach", None))
                continue
            a, b = reached["fed_shvr"][common[-1]], reached[other][common[-1]]
            claims.append(Claim(text, f"{shown(a, 0)} against {shown(b, 0)} for {common[-1]} %", above(b, a)))
    return claims


def rounds_to(group: Group) -> dict[int, Values]:
    """accuracy -> seed -> the first round with it, for the accuracies that every seed reaches"""
    firsts = {seed: first_reach(run.curves["test_acc"]) for seed, run in sorted(group.runs.items())}
    levels = {level: {s: float(r[i]) for s, r in firsts.items()} for i, level in enumerate(LEVELS)}
    return {level: values for level, values in levels.items() if np.isfinite(list(values.values())).all()}


def who_wins(found: Found, setting: str) -> list[Claim]:
    """Fed-SHVR against the baselines that the paper compares with or names in its contributions."""
    key = "partition.mismatch_ratio" if found.grid.name == "who_wins_cifar" else "partition.clients"
    table = by_x(found, setting, key)
    claims = []
    for other in ("fed_mt", "fed_pseudo", "fedavg", "fedmatch", "grouping"):
        claims += everywhere("{a} ends above {b}", table, "fed_shvr", other)
    return claims


def theorem(found: Found, setting: str) -> list[Claim]:
    groups = [g for g in found.groups if not g.variant and g.setting == setting]
    least = theorem1(Found(found.grid, found.scale, groups, [], set())).panels[1].series
    text = "the least g so far falls at least as fast as 1/√T (slope of its second half on log-log axes at most −0.5): "
    return [Claim(text + s.label.split(", ")[-1], f"slope {slope(s):.2f}", slope(s) <= -0.5) for s in least]


def column_of(found: Found, setting: str, experiment: str, round: int) -> dict[str, Values]:
    """One column of Table I, ours: row -> seed -> accuracy (%)"""
    groups = [g for g in found.groups if not g.variant and g.setting == setting and g.cell["experiment"] == experiment]
    return {str(g.cell["row"]): at_round(g, "test_acc", round, 100) for g in groups}


CLAIMS: dict[str, Callable[[Found, str], list[Claim]]] = {
    "fig2a": fig2(2),
    "fig2b": fig2(4),
    "fig3a": fig3a,
    "fig3b": fig3b,
    "fig4": fig4,
    "fig6a": fig6a,
    "fig6b": fig6b,
    "fig6a_features": fig6a,
    "fig6b_features": fig6b,
    "theorem1": theorem,
    "who_wins_mnist": who_wins,
    "who_wins_cifar": who_wins,
}
