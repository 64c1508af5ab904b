"""What make faults found last: nothing was lost, and the page says so."""

import csv

from faults import COUNTS, PAGE, filled


def test_nothing_was_lost() -> None:
    with COUNTS.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert sum(int(row["injected"]) for row in rows if row["fault"].startswith("a process killed")) >= 120
    for row in rows:
        assert (row["survived"], row["lost"]) == (row["injected"], "0"), row


def test_the_page_has_the_numbers_of_the_last_run() -> None:
    assert filled(PAGE.read_text()) == PAGE.read_text()
