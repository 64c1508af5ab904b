"""profile=true: a table whose shares make up the whole round, and nothing left behind."""

from collections.abc import Callable

import pytest
from conftest import SMALL
from methods import MADE
from tiny import federated

from fedshvr.rounds.seats import Descent
from fedshvr.running.profiling import PHASES, Profile


def test_the_table_is_printed_and_leaves_the_result_alone(train: Callable, capsys: pytest.CaptureFixture) -> None:
    plain, profiled = train(*SMALL, folder="plain"), train("profile=true", *SMALL, folder="profiled")
    table = capsys.readouterr().err.split("where the time of a round went\n")[1].splitlines()
    assert {line.split()[0] for line in table[: len(PHASES)]} == set(PHASES)
    assert profiled.theta == plain.theta


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_the_phases_make_up_the_round(engine: str) -> None:
    from lightning import Trainer

    update, profile = Descent.update, Profile()
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(max_epochs=3, accelerator="cpu", callbacks=[profile], limit_val_batches=0, **quiet)
    trainer.fit(federated(MADE["soft"](), engine=engine))
    shares = profile.shares()
    assert sum(shares.values()) == pytest.approx(1)
    assert all(shares[phase] > 0 for phase in PHASES)
    assert Descent.update is update
