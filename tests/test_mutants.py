"""What make mutants found last: enough mutants are killed, and each that survives has its reason."""

import tomllib

from mutants import COUNTS, PAGE, ROOT, SURVIVORS, filled, function, read

ENOUGH = 0.9


def test_nine_of_ten_mutants_are_killed_in_every_file() -> None:
    counts = read(COUNTS)
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mutmut"]["only_mutate"]
    assert sorted(row["file"] for row in counts) == sorted(asked)
    for row in counts:
        assert int(row["killed"]) >= ENOUGH * int(row["mutants"]), row


def test_every_survivor_has_a_reason_and_is_of_this_code() -> None:
    survivors = read(SURVIVORS)
    assert len(survivors) == sum(int(row["mutants"]) - int(row["killed"]) for row in read(COUNTS))
    for row in survivors:
        assert row["reason"], row
        code = " ".join((ROOT / row["file"]).read_text().split())
        assert " ".join(row["code"].split()) in code, row


def test_the_page_has_the_numbers_of_the_last_run() -> None:
    assert filled(PAGE.read_text()) == PAGE.read_text()


def test_mutants_are_named_by_their_function() -> None:
    assert function("fedshvr.algorithms.corrections.xǁProximalǁ__init____mutmut_2") == "Proximal.__init__"
    assert function("fedshvr.federation.plan.x__check_sizes__mutmut_12") == "_check_sizes"
