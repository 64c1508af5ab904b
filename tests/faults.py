"""make faults: the tests that make something go wrong (@pytest.mark.fault), counted in results/faults.csv.

A plugin of pytest (-p faults). A fault is survived if its test passes: it asks for the bits of a run without the fault,
for whole files, or for a refusal in one sentence, as the promises of docs/reliability.md say.
"""

import csv
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COUNTS, PAGE = ROOT / "results/faults.csv", ROOT / "docs/reliability.md"
NUMBERS = ("injected", "survived", "lost")
counts: dict[str, Counter[str]] = {}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Its marker travels with the report of a test, from whichever process ran it."""
    for item in items:
        if (mark := item.get_closest_marker("fault")) and mark.args:
            item.user_properties.append(("fault", (mark.args[0], mark.kwargs.get("times", 1))))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed or (report.when == "call" and report.passed):
        for _, (kind, times) in (p for p in report.user_properties if p[0] == "fault"):
            end = "lost" if report.failed else "survived"
            counts.setdefault(kind, Counter()).update({"injected": times, end: times})


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):
        with COUNTS.open("w", newline="") as file:
            rows = csv.writer(file, lineterminator="\n")
            rows.writerow(["fault", *NUMBERS])
            rows.writerows([kind, *(counts[kind][name] for name in NUMBERS)] for kind in sorted(counts))
        PAGE.write_text(filled(PAGE.read_text()))


def filled(page: str) -> str:
    """The page with the table of the last run."""
    with COUNTS.open(newline="") as file:
        rows = list(csv.DictReader(file))
    rows.append({"fault": "all", **{name: str(sum(int(row[name]) for row in rows)) for name in NUMBERS}})
    lines = [f"| fault | {' | '.join(NUMBERS)} |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(row.values())} |" for row in rows]
    return re.sub(r"(?<=<!-- faults -->\n).*?(?=<!-- /faults -->)", "\n".join(lines) + "\n", page, flags=re.DOTALL)
