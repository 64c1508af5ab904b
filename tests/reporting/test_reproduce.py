"""The one command for everything: what it counts, what it leaves out, in which order."""

from pathlib import Path

from fabricate import make_run, make_sweep

from fedshvr.reporting.archive import archive
from fedshvr.reporting.build import SWEEPS
from fedshvr.reporting.collect import Run, collect
from fedshvr.reporting.reproduce import (
    ORDER,
    START,
    budget,
    jobs,
    known_runs,
    left,
    paces,
    progress,
    remaining,
    seconds,
    sweeps,
    total,
)


def test_every_sweep_has_its_place() -> None:
    assert sorted([*ORDER, "finalists"]) == sorted(SWEEPS)
    assert set(sweeps("paper")) - set(sweeps("laptop")) == {"fig6a", "fig6b"}


def test_a_job_of_several_sweeps_is_one_job() -> None:
    table1, fig2b, fig5, theorem1 = (set(jobs(name, "laptop")) for name in ("table1", "fig2b", "fig5", "theorem1"))
    assert (len(table1), len(fig2b), len(fig5)) == (60, 20, 10)
    assert len(fig2b - table1) == 10  # Fed-MT and Fed-Pseudo
    assert fig5 <= table1
    assert not theorem1 & table1  # it measures the gap


def test_seconds_by_hand(tmp_path: Path) -> None:
    def ran(name: str, scale: str = "laptop", unlabeled: int = 12000, **facts: float) -> Run:
        make_run(tmp_path / name, {"algorithm": "fed_sh", "partition.unlabeled": unlabeled}, 0, scale)
        return collect(tmp_path / name).runs[0].told(**facts)

    runs = [ran("slept", seconds=2000.0), ran("two", seconds=5.0, processes=2), ran("last", seconds=4.0)]
    make_run(tmp_path / "closest", {"algorithm": "fed_sh", "setting": "closest", "partition.unlabeled": 12000}, 0)
    others = [
        ran("large", "paper", seconds=1e6),
        *(run.told(seconds=1e6) for run in collect(tmp_path / "closest").runs),
    ]
    known = paces([*runs, *others], "laptop")
    assert list(known.values()) == [0.1]  # the median: 10 core seconds for 100 rounds
    whole = {"data.name": "mnist", "algorithm": "fed_sh", "client.steps": "paper", "rounds": 50}
    assert seconds(whole | {"partition.unlabeled": 12000}, known) == START + 5.0
    assert seconds(whole | {"partition.unlabeled": 24000}, known) == START + 10.0  # twice as many steps a round
    assert seconds(whole | {"partition.unlabeled": None}, known) == START + 50 * 0.1 * 59400 / 12000
    assert seconds(whole | {"partition.unlabeled": 12000, "algorithm": "fed_svr"}, known) is None
    few = paces([*runs, ran("few", unlabeled=3000, seconds=3.0)], "laptop")
    assert seconds(whole | {"partition.unlabeled": 6000}, few) == START + 50 * 0.03 * 2  # as the nearest number
    rows = {row[0]: row[1:] for row in budget("laptop", runs).rows}
    assert rows["fig4"] == ["10", "15", "?"]  # nobody timed fed_svr
    assert rows["all"][2] == f"more than {5 * (START + 10.0) / 2 / 3600:.2f}"  # five seeds of fed_sh on two cores


def test_what_has_runs_in_logs_or_among_the_committed_is_left_out(tmp_path: Path) -> None:
    make_sweep(tmp_path / "elsewhere", "fig4", seeds=2)
    known = paces(collect(tmp_path / "elsewhere").runs, "laptop")
    before = remaining("laptop", [], known)
    archive("fig4", collect(tmp_path / "elsewhere").runs, tmp_path)
    runs = known_runs(tmp_path / "logs", tmp_path)
    now = remaining("laptop", runs, known)
    assert len(before) - len(now) == 6
    assert total(before) > total(now)
    commands = [step.command for step in left("fig4", runs, "laptop")]
    assert commands[1] == "python src/train.py -m sweep=fig4 scale=laptop algorithm=fed_sh seed=2,3,4"
    assert sum(step.jobs for step in left("fig4", runs, "laptop")) == 9


def test_progress_by_hand() -> None:
    # 3 of 4 jobs are left; 10 s of CPU time took 6 s, so 30 s will take 18
    assert progress([10.0, 10.0, 10.0, None], [10.0, 10.0, None], 6.0) == "3 jobs left, 0:06 spent, about 0:18 to go"
    assert progress([10.0, 10.0], [10.0, 10.0], 0.0) == "2 jobs left, 0:00 spent, about 0:10 to go"  # on two cores
    assert progress([None], [None], 0.0) == "1 jobs left, 0:00 spent, about ? to go"
