"""Who really wins: every method against Fed-SHVR with the same steps, by a paired test over the seeds."""

from collections.abc import Callable
from statistics import fmean

from scipy.stats import ttest_rel

from fedshvr.reporting.items import NONE, Item, Panel, Table, cell, curves, final, finals, label
from fedshvr.reporting.paper import ACCURACY, NOT_CNN13, ROUND, item
from fedshvr.reporting.sweeps import Found, Group

BEST = "fed_shvr"
NOTE = (
    "Last accuracy in %, mean ± population std (seeds); then the mean difference to Fed-SHVR and its p: a two-sided "
    "paired t test over the seeds, with Holm's correction over the methods of the column. (Wilcoxon's signed-rank test "
    "cannot go below p = 0.06 with five seeds.)"
)
RATIO = "partition.mismatch_ratio"


def who_wins_mnist(found: Found) -> Item:
    panel = Panel("Who wins, MNIST Non-IID", ROUND, ACCURACY, curves(found.groups, "test_acc", 100))
    table = against_best(found.groups, lambda group: "MNIST Non-IID")
    return item(found, "Who wins, MNIST Non-IID: the same steps for all", table, [panel], NOTE)


def who_wins_cifar(found: Found) -> Item:
    panel = Panel("Who wins, CIFAR-10", "mismatch ratio", ACCURACY, finals(found.groups, RATIO), points=True)
    table = against_best(found.groups, lambda group: f"mismatch {group.some_run.config[RATIO]:g}")
    title = "Who wins, CIFAR-10 with fixed features: the same steps for all"
    return item(found, title, table, [panel], NOTE + NOT_CNN13)


def against_best(groups: list[Group], column_of: Callable[[Group], str]) -> Table:
    """A row a method, a column a data set."""
    columns: dict[str, dict[str, Group]] = {}
    for group in groups:
        columns.setdefault(column_of(group), {})[label(group)] = group
    texts = {name: column_texts(column) for name, column in columns.items()}
    methods = dict.fromkeys(method for column in columns.values() for method in column)
    return Table(["method", *columns], [[m, *(texts[name].get(m, NONE) for name in columns)] for m in methods])


def column_texts(column: dict[str, Group]) -> dict[str, str]:
    """mean ± std (seeds), difference (p) of each method of a column."""
    texts = {method: cell(list(final(group).values())) for method, group in column.items()}
    best = next((final(g) for g in column.values() if g.algorithm == BEST and not g.variant), {})
    pairs = {m: paired(final(g), best) for m, g in column.items() if g.algorithm != BEST}
    tested = {method: pair for method, pair in pairs.items() if len(pair[0]) > 1}
    corrected = holm({method: p_value(*pair) for method, pair in tested.items()})
    for method, (ours, theirs) in tested.items():
        texts[method] += f", {fmean(ours) - fmean(theirs):+.1f} (p {corrected[method]:.2g})"
    return texts


def paired(a: dict[int, float], b: dict[int, float]) -> tuple[list[float], list[float]]:
    """The values of the seeds that both have."""
    common = [seed for seed in a if seed in b]
    return [a[seed] for seed in common], [b[seed] for seed in common]


def p_value(a: list[float], b: list[float]) -> float:
    """Two-sided, of the paired t test; of differences that are all the same, 1 if they are 0 and else 0."""
    differences = {x - y for x, y in zip(a, b, strict=True)}
    return float(differences == {0.0}) if len(differences) == 1 else float(ttest_rel(a, b).pvalue)


def holm(p: dict[str, float]) -> dict[str, float]:
    """Holm (1979): the i-th smallest of m values times m - i, never below the one before it, at most 1."""
    corrected: dict[str, float] = {}
    least = 0.0
    for i, name in enumerate(sorted(p, key=lambda name: p[name])):
        least = max(least, min(1.0, (len(p) - i) * p[name]))
        corrected[name] = least
    return corrected


WINNERS = {"who_wins_mnist": who_wins_mnist, "who_wins_cifar": who_wins_cifar}
