"""A client that raises, or whose numbers are not finite: the run stops, or goes on as if it had not been drawn."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import spoiled
import tiny
import torch
from conftest import SMALL
from methods import MADE
from quadratics import solve
from torch import Tensor

from fedshvr.algorithms.aggregation import Average, Normalized
from fedshvr.algorithms.corrections import VRLSGD, ControlVariates, Correction
from fedshvr.algorithms.grouped import Grouped
from fedshvr.algorithms.objectives.batch import Batch, Network, Parts, State
from fedshvr.algorithms.objectives.supervised import Supervised
from fedshvr.algorithms.robust import GeometricMedian, Median, TrimmedMean
from fedshvr.data.sources import ImageData
from fedshvr.errors import Diverged, UserError
from fedshvr.rounds.federated import Federated

BAD, ENGINES = 1, ("sequential", "vectorized")
AGGREGATIONS: dict[str, Callable[[], Average]] = {
    "average": Average,
    "normalized": Normalized,
    "grouped": lambda: Grouped(2),
    "median": Median,
    "trimmed": lambda: TrimmedMean(0.34),
    "geometric": lambda: GeometricMedian(8),
}


class Picky(Supervised):
    """Raises at pixels that are no numbers. In a stack it may not even look, so there it always raises."""

    def loss(self, net: Network, batch: Batch, state: State) -> tuple[Tensor, Parts]:
        if batch.x.isnan().any():
            raise ValueError("a pixel\nis no number")
        return super().loss(net, batch, state)


def with_bad(*clients: int) -> ImageData:
    """These clients' images are no numbers."""
    data, splits = tiny.images(), tiny.splits()
    own = np.concatenate([np.concatenate([splits[k].labeled, splits[k].unlabeled]) for k in clients])
    x = data.x.clone()
    x[own] = torch.nan
    return replace(data, x=x)


def without(module: Federated, *clients: int) -> Federated:
    """The same, with cohorts that never have these clients."""
    module.cohort = lambda round: [k for k in range(3) if k not in clients]  # type: ignore[method-assign]
    return module


def known(module: Federated) -> dict[str, Tensor]:
    """All that the server has and all that clients remember."""
    tables = {name: table.get([0, 1, 2]).flatten() for name, table in module.bench.tables.items()}
    state = {name: t.double() for name, t in module.server.state_dict().items()}
    row = {name: value for name, value in module.row.items() if name not in ("seconds", "skipped", "server_loss")}
    traffic = {name: float(row.pop(name)) for name in ("bytes_up", "bytes_down")}
    logged = torch.tensor([float(value) for value in row.values()])
    return {**tables, **state, "v": module.bench.pool.v, "logged": logged, "up": torch.tensor(traffic["bytes_up"])}


def check_same(found: Federated, wanted: Federated) -> None:
    ours, theirs = known(found), known(wanted)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=0, atol=1e-12, equal_nan=name == "logged", msg=name)


@pytest.mark.fault("a bad client")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", AGGREGATIONS)
def test_a_round_without_it_is_that_of_a_cohort_without_it(name: str, engine: str) -> None:
    """Model, groups, moving average, what everybody remembers, pseudo-labels and the log."""
    correction = Correction() if name == "grouped" else ControlVariates()
    options: dict[str, Any] = {"data": with_bad(BAD), "engine": engine, "evaluate": "ema"}
    skipped = tiny.fit(MADE["soft"](), correction, AGGREGATIONS[name](), on_client_error="skip", **options)
    wanted = tiny.federated(MADE["soft"](), correction, AGGREGATIONS[name](), **options)
    wanted.measures = replace(wanted.measures, server_loss_every=0)
    check_same(skipped, tiny.train(without(wanted, BAD), 3))
    assert skipped.server.skips == [0, 3, 0]
    assert skipped.row["skipped"] == 1


@pytest.mark.fault("a bad client")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "name", ["teacher_client", "fedmatch", "self_training_keep", "soft_epoch", "vat", "supervised"]
)
def test_every_kind_of_memory_stays_as_it_was(name: str, engine: str) -> None:
    options: dict[str, Any] = {"data": with_bad(BAD), "engine": engine}
    skipped = tiny.fit(MADE[name](), on_client_error="skip", **options)
    check_same(skipped, tiny.train(without(tiny.federated(MADE[name](), **options), BAD), 3))


@pytest.mark.parametrize("correction", [VRLSGD, lambda: ControlVariates("I")])
def test_other_corrections(correction: Callable[[], Correction]) -> None:
    options: dict[str, Any] = {"data": with_bad(BAD), "engine": "vectorized"}
    skipped = tiny.fit(MADE["soft"](), correction(), on_client_error="skip", **options)
    check_same(skipped, tiny.train(without(tiny.federated(MADE["soft"](), correction(), **options), BAD), 3))


@pytest.mark.parametrize("buffers", ["average", "local"])
def test_batch_norm_statistics(buffers: str) -> None:
    def made(**options: Any) -> Federated:
        torch.manual_seed(1)
        model = tiny.BatchNormed().double()
        return tiny.federated(
            MADE["soft"](), ControlVariates(), data=with_bad(BAD), model=model, buffers=buffers, **options
        )

    check_same(tiny.train(made(on_client_error="skip"), 2), tiny.train(without(made(), BAD), 2))


@pytest.mark.fault("a bad client")
@pytest.mark.parametrize("engine", ENGINES)
def test_a_client_that_raises(engine: str, capsys: pytest.CaptureFixture) -> None:
    options: dict[str, Any] = {"data": with_bad(BAD), "server_loss_every": 1}
    skipped = tiny.fit(Picky(), ControlVariates(), engine=engine, on_client_error="skip", **options)
    wanted = without(tiny.federated(Picky(), ControlVariates(), engine="sequential", data=with_bad(BAD)), BAD)
    said = capsys.readouterr().err
    check = known(skipped), known(tiny.train(wanted, 3))
    for name in ("theta", "c", "c_k", "done", "logged"):
        torch.testing.assert_close(*(k[name] for k in check), rtol=0, atol=1e-12, equal_nan=True)
    assert said == "round 1, client 1: left out: ValueError: a pixel is no number (told once; metrics.csv counts all)\n"
    assert np.isfinite(skipped.row["server_loss"])


class Late(Supervised):
    """Raises at the seventh loss: with 1, 2 and 1 local steps, that is the second of client 1 in round 2."""

    def loss(self, net: Network, batch: Batch, state: State) -> tuple[Tensor, Parts]:
        self.losses = getattr(self, "losses", 0) + 1
        if self.losses == 7:
            raise ZeroDivisionError("by hand")
        return super().loss(net, batch, state)


def test_where_a_client_raised_is_told_below_the_traceback() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        tiny.fit(Late(), engine="sequential", server_loss_every=0)
    assert caught.value.__notes__ == ["round 2, client 1, local step 2"]


def test_so_is_which_clients_were_stacked() -> None:
    with pytest.raises(RuntimeError) as caught:
        tiny.fit(Picky(), engine="vectorized")
    assert caught.value.__notes__ == ["round 1, one of clients 0, 1, 2, local step 1"]


def test_and_which_client_cannot_label(monkeypatch: pytest.MonkeyPatch) -> None:
    objective = MADE["soft"]()
    monkeypatch.setattr(objective, "revise", lambda v, before: 1 / 0)
    with pytest.raises(ZeroDivisionError) as caught:
        tiny.fit(objective)
    assert caught.value.__notes__ == ["round 1, client 0, its pseudo-labels"]


@pytest.mark.parametrize("engine", ENGINES)
def test_c_is_the_mean_of_c_k_though_a_client_is_bad_now_and_then(engine: str) -> None:
    """One of its 5 labelled images is no number: in some rounds it is drawn, in others not."""
    data = tiny.images()
    data.x[tiny.splits()[2].labeled[3]] = torch.nan
    options: dict[str, Any] = {"data": data, "rounds": 8, "engine": engine, "on_client_error": "skip"}
    module = tiny.fit(MADE["supervised"](), ControlVariates(), **options)
    assert 0 < module.server.skips[2] < 8
    assert module.server.skips[:2] == [0, 0]
    c_k = module.bench.tables["c_k"].rows
    torch.testing.assert_close(module.plan.omega @ c_k, module.server.c, rtol=0, atol=1e-14)
    assert c_k[2].norm() > 0
    assert module.server.done[2] == (8 - module.server.skips[2]) * module.plan.tau[2]


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_without_a_bad_client_skip_changes_no_bit(name: str) -> None:
    fail, skip = (
        tiny.fit(MADE["soft"](), aggregation=AGGREGATIONS[name](), on_client_error=mode, server_loss_every=1)
        for mode in ("fail", "skip")
    )
    assert torch.equal(fail.theta, skip.theta)
    assert fail.row | {"seconds": 0} == skip.row | {"seconds": 0}


def test_normalised_weights_by_hand() -> None:
    """One of three parabolas overflows: theta' = theta - tau_bar sum_k w_k (theta - theta_k) / tau_k without it."""
    a, b, tau, eta = [1.0, 2.0, 1e200], [3.0, -1.0, 1e200], [2, 5, 9], 0.05
    module = solve(a, b, tau, Correction(), Normalized(), 1, on_client_error="skip")
    move = [-(1 - (1 - eta * a[k]) ** tau[k]) * b[k] for k in (0, 1)]
    tau_bar = 2 / 7 * 2 + 5 / 7 * 5
    assert module.theta.item() == pytest.approx(-tau_bar * (2 / 7 * move[0] / 2 + 5 / 7 * move[1] / 5), abs=1e-13)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_round_without_anybody_leaves_all_as_it_is_and_three_stop_the_run(engine: str) -> None:
    module = tiny.federated(
        MADE["soft"](), ControlVariates(), data=with_bad(0, 1, 2), engine=engine, on_client_error="skip", evaluate="ema"
    )
    before = {name: value.clone() for name, value in module.server.state_dict().items()}
    tiny.train(module, 2)
    assert module.server.lost == 2
    assert module.row["skipped"] == 3
    assert np.isnan(module.row["train_loss"])
    assert all(torch.equal(module.server.state_dict()[name], value) for name, value in before.items())
    again = tiny.federated(MADE["soft"](), ControlVariates(), data=with_bad(0, 1, 2), on_client_error="skip")
    with pytest.raises(Diverged, match=r"rounds 1 to 3: every client of each was left out \(on_client_error=skip\)"):
        tiny.train(again, 5)


@pytest.mark.fault("a bad client")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", AGGREGATIONS)
def test_the_model_never_takes_a_number_that_is_not_finite(name: str, engine: str) -> None:
    correction = Correction() if name == "grouped" else ControlVariates()
    module = tiny.federated(MADE["supervised"](), correction, AGGREGATIONS[name](), data=with_bad(BAD), engine=engine)
    before = module.theta.detach().clone()
    with pytest.raises(Diverged, match="round 1, client 1, local step 1: the loss is not finite"):
        tiny.train(module, 2)
    assert torch.equal(module.theta, before)
    assert module.server.c is None or not module.server.c.any()


def test_nor_does_it_from_the_servers_own_steps(train: Callable) -> None:
    from conftest import compose_train

    from fedshvr.running.run import build

    module = build(compose_train(*SMALL, "algorithm=fedavg", "server_labels=50", "client.eta=1e30"))[1]
    with pytest.raises(Diverged):
        tiny.train(module, 3, precision="32-true")
    assert module.theta.isfinite().all()


def test_the_gap_of_all_clients_is_refused() -> None:
    with pytest.raises(UserError, match="optimality_gap=true: is the gradient of all clients; use"):
        tiny.federated(MADE["soft"](), on_client_error="skip", optimality_gap=True)
    with pytest.raises(UserError, match="on_client_error=stop: must be one of fail, skip"):
        tiny.federated(MADE["soft"](), on_client_error="stop")


SPOILT = [*SMALL, spoiled.TARGET]


@pytest.mark.fault("a bad client")
@pytest.mark.parametrize("place", ["device", "disk"])
def test_a_run_counts_them_and_resumes_exactly(train: Callable, place: str, capsys: pytest.CaptureFixture) -> None:
    options = [*SPOILT, "on_client_error=skip", f"client_state={place}"]
    whole = train(*options, "rounds=4", folder="whole")
    assert "left out  4 times a client (clients 0)" in capsys.readouterr().out
    train(*options, "rounds=2", folder="parts")
    parts = train(*options, "rounds=4", "ckpt_path=last", folder="parts")
    assert [row["skipped"] for row in whole.rows] == ["1"] * 4
    assert whole.summary["skipped"] == 4
    assert whole.summary["skipped_by_client"] == {"0": 4}
    held = json.loads((whole.folder / "partition.json").read_text())["clients"][0]
    assert spoiled.SAMPLE in held["labeled"]
    assert parts.theta == whole.theta
    assert parts.timeless == whole.timeless
    assert parts.summary["skipped_by_client"] == whole.summary["skipped_by_client"]


@pytest.mark.fault("a bad client")
def test_a_run_that_failed_goes_on_without_the_client(train: Callable, tmp_path: Any) -> None:
    with pytest.raises(Diverged, match="round 1, client 0, local step"):
        train(*SPOILT, "rounds=2", folder="one")
    run = train(*SPOILT, "rounds=2", "ckpt_path=last", "on_client_error=skip", folder="one")
    assert run.summary["skipped"] == 2
