"""Ten thousand rounds: memory, files and the time of a round stay where they are."""

import os
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest
from conftest import Run

from fedshvr.running.folder import RunFolder

ROUNDS = 10_000
TINY = ["partition.clients=2", "partition.unlabeled=8", "partition.labeled_per_client=10", "model.hidden=[4]"]
TINY += ["client.epochs=1", "server_loss_every=0", "checkpoint_every=50", "trainer.check_val_every_n_epoch=10"]


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").is_file(), reason="memory is read from /proc, which Linux has")
def test_ten_thousand_rounds(train: Callable[..., Run], monkeypatch: pytest.MonkeyPatch) -> None:
    original, memory, files = RunFolder.on_train_epoch_end, {}, {}

    def look(self: RunFolder, *arguments: object) -> None:
        original(self, *arguments)  # type: ignore[arg-type]
        done = int(float(self.last["round"]))
        if done in (100, ROUNDS):
            memory[done] = resident()
            files[done] = sorted(path.relative_to(self.folder) for path in self.folder.rglob("*"))

    monkeypatch.setattr(RunFolder, "on_train_epoch_end", look)
    run = train(*TINY, f"rounds={ROUNDS}")
    early, late = (median(float(row["seconds"]) for row in run.rows[part]) for part in (EARLY, LATE))
    print(f"{memory[100] / 2**20:.0f} MB, then {memory[ROUNDS] / 2**20:.0f}; {early:.2e} s a round, then {late:.2e}")
    assert run.summary["rounds"] == len(run.rows) == ROUNDS
    assert memory[ROUNDS] < 1.05 * memory[100]
    assert len(files[ROUNDS]) <= len(files[100]) + 1  # partition.png may come late
    assert late < 2 * early


EARLY, LATE = slice(100, 1100), slice(-1000, None)
