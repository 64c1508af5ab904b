"""The table and the figure of sweep=attacks."""

from pathlib import Path

from fabricate import make_sweep

from fedshvr.reporting.archive import add_archived, archive
from fedshvr.reporting.attacks import ATTACKS, attacks
from fedshvr.reporting.collect import Collection, collect
from fedshvr.reporting.items import cell, final
from fedshvr.reporting.sweeps import find


def test_a_row_for_each_aggregation_and_a_panel_for_each_attack(tmp_path: Path) -> None:
    make_sweep(tmp_path, "attacks", "paper", seeds=2)
    found = find("attacks", collect(tmp_path).runs)
    item = attacks(found)
    assert item.table.columns == ["aggregation", *ATTACKS]
    assert [row[0] for row in item.table.rows] == ["mean", "median", "trimmed mean", "geometric median"]
    (group,) = [g for g in found.groups if g.cell == {"attack": "sign_flip", "row": "trimmed_mean"}]
    assert item.table.rows[2][3] == cell(list(final(group).values()))
    assert [len(panel.series) for panel in item.panels] == [4] * 4
    assert len(item.missing) == 16  # the third seed of each


def test_the_archive_gives_the_same_cells(tmp_path: Path) -> None:
    """Classes have only their names there."""
    make_sweep(tmp_path / "logs", "attacks", "paper")
    runs = collect(tmp_path / "logs").runs
    archive("attacks", runs, tmp_path)
    committed = add_archived(Collection(), tmp_path).runs
    assert len(committed) == 48
    found = find("attacks", committed)
    assert not found.missing
    assert attacks(found).table == attacks(find("attacks", runs)).table
