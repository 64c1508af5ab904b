"""Settings followed to the last round, by hand."""

from pathlib import Path

import numpy as np
from fabricate import make_config, set_in, write_run

from fedshvr.reporting.collect import collect
from fedshvr.reporting.finalists import finalists
from fedshvr.reporting.sweeps import find, grid, wanted


def run(logs: Path, accuracies: list[float], further: dict[str, object] | None = None, **cell: object) -> None:
    plan = grid("finalists")
    config = make_config(wanted(plan, {"experiment": "mnist_iid", "augment": "none"} | cell), 0, "laptop", "finalists")
    columns = {"round": np.arange(1.0, 101.0), "test_acc": np.linspace(*accuracies, 100)}
    columns |= {"test_loss": np.ones(100), "train_loss": np.ones(100)}
    for key, value in (further or {}).items():
        set_in(config, key, value)
    write_run(logs / str(len(list(logs.glob("*")))), config, columns)


def test_the_nearest_at_the_end_comes_first(tmp_path: Path) -> None:
    relabel, dropout = "algorithm.objective.relabel", "model.dropout"
    run(tmp_path, [0.814, 0.90], **{"row": "plain", relabel: "round", dropout: 0.0})  # the paper: 81.4 and 92.5
    run(tmp_path, [0.80, 0.915], **{"row": "plain", relabel: "step", dropout: 0.0})
    run(tmp_path, [0.83, 0.956], **{"row": "r1_r2", relabel: "step", dropout: 0.0})  # the paper: 83.6 and 96.6
    run(tmp_path, [0.80, 0.92], **{"row": "plain", relabel: "step", dropout: 0.5})
    table = finalists(find("finalists", collect(tmp_path).runs, "laptop")).table
    assert table.columns[3:] == ["plain, IID", "r1_r2, IID"]
    assert table.rows == [
        ["the paper", "0.0", "0.0", "92.5", "96.6"],
        # (1.4 + .6) / 2, (1 + 1) / 2
        ["augment=none, relabel=step, model.dropout=0.0", "1.0", "1.0", "91.5 (1)", "95.6 (1)"],
        ["augment=none, relabel=step, model.dropout=0.5", "1.4", "0.5", "92.0 (1)", "—"],
        ["augment=none, relabel=round, model.dropout=0.0", "0.0", "2.5", "90.0 (1)", "—"],
    ]


def test_a_cell_counts_for_all_settings_that_differ_in_nothing_that_concerns_it(tmp_path: Path) -> None:
    """The split is of the Non-IID partition, and hard labels have no exponent; what is a part of this is left out."""
    split, exponent = "partition.unlabeled_split", "algorithm.objective.exponent"
    same = {"algorithm.objective.relabel": "step", "model.dropout": 0.0}
    run(tmp_path, [0.8, 0.91], row="plain", **same)
    run(tmp_path, [0.8, 0.92], {exponent: "current"}, row="r1_r2", **same)
    noniid = {"experiment": "mnist_noniid", **same}
    run(tmp_path, [0.8, 0.93], {split: "sizes"}, row="plain", **noniid)
    run(tmp_path, [0.8, 0.94], {split: "sizes", exponent: "current"}, row="r1_r2", **noniid)
    table = finalists(find("finalists", collect(tmp_path).runs, "laptop")).table
    (line,) = table.rows[1:]
    assert line[0].endswith("partition.unlabeled_split=sizes, exponent=current")
    assert line[3:] == ["91.0 (1)", "92.0 (1)", "93.0 (1)", "94.0 (1)"]
