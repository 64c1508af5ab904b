"""What a user sees while waiting: time left, and a hint when that is hours."""

import time
from types import SimpleNamespace

import pytest

from fedshvr.running.progress import Progress, duration


def after_first_round(seconds: float, rounds: int) -> None:
    progress = Progress(rounds)
    progress.first, progress.started = 0, time.perf_counter() - seconds
    progress.module = SimpleNamespace(row={"test_acc": 0.5}, current_epoch=0)  # type: ignore[assignment]
    trainer = SimpleNamespace(is_global_zero=True, current_epoch=0)
    progress.on_train_epoch_end(trainer, progress.module)  # type: ignore[arg-type]


def test_durations_read_as_clocks() -> None:
    assert [duration(s) for s in (0, 59.6, 61, 3599, 3661)] == ["0:00", "1:00", "1:01", "59:59", "1:01:01"]


def test_a_run_of_hours_names_the_scale_that_is_not(capsys: pytest.CaptureFixture) -> None:
    after_first_round(seconds=60, rounds=1001)
    said = capsys.readouterr().err
    assert "The other 1000 rounds will take about 16.7 hours here; scale=laptop ends within minutes." in said
    assert "round    1/1001  accuracy 50.00 %  1:00 spent, 16:40:00 left" in said


def test_a_run_of_minutes_gets_no_hint(capsys: pytest.CaptureFixture) -> None:
    after_first_round(seconds=1, rounds=100)
    assert "hours" not in capsys.readouterr().err
