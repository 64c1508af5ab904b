from conftest import ALGORITHMS

from fedshvr.reporting.algorithm_table import PAGE, options, page


def test_the_page_is_current() -> None:
    """Else: PYTHONPATH=src python -m fedshvr.reporting.algorithm_table"""
    assert PAGE.read_text() == page()


def test_every_algorithm_has_a_row() -> None:
    text = PAGE.read_text()
    assert all(f"| `{name}` |" in text for name in ALGORITHMS)


def test_options_by_hand() -> None:
    text = "_target_: a.B\nweight: 1.0  # of the term\nramp:\n  _target_: c.D\n  epochs: 3\n  shape: exp\n"
    assert options(text) == [["`weight`", "`1.0`", "of the term"], ["`ramp`", "`epochs=3 shape=exp`", ""]]
