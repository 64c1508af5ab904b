"""The server's round by hand, without clients: what it sends, what becomes of made-up Updates, and what it counts."""

from dataclasses import replace
from typing import Any

import pytest
import tiny
import torch
from methods import MADE
from torch import Tensor

from fedshvr.algorithms.aggregation import Average, Normalized
from fedshvr.algorithms.corrections import ControlVariates, Correction
from fedshvr.algorithms.grouped import Grouped
from fedshvr.algorithms.objectives.fedsem import FedSem
from fedshvr.algorithms.privacy import Central
from fedshvr.errors import Diverged, UserError
from fedshvr.rounds.messages import Labeled, Update
from fedshvr.rounds.server import Server

TAU = [2, 3, 4]  # of 12, 18 and 24 unlabelled samples in batches of 6
OMEGA = torch.tensor([16.0, 24.0, 29.0], dtype=torch.float64) / 69  # of 4 + 12, 6 + 18 and 5 + 24 samples


def server(correction: Correction | None = None, aggregation: Average | None = None, **options: Any) -> Server:
    """Of the tiny federation, in float64."""
    options = {"model": tiny.BatchNormed().double()} | options
    made = tiny.federated(MADE["soft"](), correction, aggregation, **options).server
    made.step = torch.optim.SGD([made.theta], lr=1.0).step
    return made


def update(made: Server, *clients: int, spoilt: bool = False) -> Update:
    """Whatever clients may have come to; with `spoilt` the last one's model is no number."""
    draw = torch.Generator().manual_seed(7)
    size, count = len(made.theta), len(made.buffers_)
    rows = [torch.randn(2 * size + count + 4, generator=draw, dtype=torch.float64) for _ in range(3)]
    theta, change, buffers, metrics = torch.stack([rows[k] for k in clients]).split([size, size, count, 4], 1)
    if spoilt:
        theta = theta.clone()
        theta[-1, 0] = torch.nan
    steps = [made.tau[k] for k in clients]
    change = change if made.c is not None else change[:0, :0].flatten()
    return Update(
        list(clients), steps, OMEGA[list(clients)].tolist(), theta, buffers, change, metrics, torch.tensor(steps)
    )


def told(made: Server, *clients: int) -> dict[int, Update]:
    return {k: update(made, k) for k in clients}


def close(a: Tensor, b: Tensor | list[float] | float) -> None:
    torch.testing.assert_close(a, torch.as_tensor(b, dtype=a.dtype), rtol=0, atol=1e-12)


@pytest.mark.parametrize("clients", [[0, 1, 2], [2, 0]])
@pytest.mark.parametrize("normalized", [False, True])
def test_a_round_by_hand(clients: list[int], normalized: bool) -> None:
    """Weights sum to 1 over those who take part; the change of c has the weights among all."""
    made = server(ControlVariates(), Normalized() if normalized else Average())
    made.begin(0, clients)
    theta, u = made.theta.detach().clone(), told(made, *clients)
    w = {k: float(OMEGA[k] / OMEGA[clients].sum()) for k in clients}
    assert made.weight == pytest.approx(w, abs=1e-15)
    assert made.clients == clients
    moves, changes = {k: theta - u[k].theta[0] for k in clients}, {k: u[k].change[0].clone() for k in clients}
    first, rest = [clients[0]], clients[1:]
    made.fold(update(made, *rest))
    made.fold(update(made, *first))
    sent = made.close(made.step)

    assert torch.equal(sent, theta)
    tau_bar = sum(w[k] * TAU[k] for k in clients)
    part = {k: tau_bar * w[k] / TAU[k] if normalized else w[k] for k in clients}
    close(made.theta.detach(), theta - sum(part[k] * moves[k] for k in clients))
    assert made.c is not None
    close(made.c, sum(OMEGA[k] * changes[k] for k in clients))
    close(made.buffers_, sum(w[k] * u[k].buffers[0] for k in clients))
    close(made.means[:-1], sum(w[k] * u[k].metrics[0] for k in clients))
    close(made.means[-1], sum(w[k] * moves[k].norm() for k in clients))
    assert made.done.tolist() == [TAU[k] if k in clients else 0 for k in range(3)]
    assert made.made[0][:2] == (rest, [TAU[k] for k in rest])
    assert made.made[1][:2] == (first, [TAU[k] for k in first])
    assert made.made[1][2].tolist() == [TAU[k] for k in first]
    assert torch.equal(made.sent, made.theta)  # what is sent from now on
    assert bool(made.sound)


def test_the_second_round_starts_anew_and_adds_to_what_stays() -> None:
    made = server(ControlVariates())
    for round in range(2):
        made.begin(round, [0, 1, 2])
        made.fold_labels(Labeled(1, 18, *torch.ones(4, 1, dtype=torch.float64)))
        made.fold(update(made, 0, 1, 2))
        made.close(made.step)
    once = update(made, 0, 1, 2)
    close(made.theta.detach(), OMEGA @ once.theta)
    assert made.c is not None
    close(made.c, 2 * OMEGA @ once.change)
    close(made.means[:-1], OMEGA @ once.metrics)
    close(made.buffers_, OMEGA @ once.buffers)
    assert made.labels[:2].tolist() == [1, 1]
    assert made.done.tolist() == [2 * tau for tau in TAU]
    assert (made.round, len(made.made), made.skipped, len(made.left_out)) == (1, 1, 0, 0)


def test_what_is_sent_and_how_many_bytes_go_each_way() -> None:
    made = server(ControlVariates())
    made.done += torch.tensor([5, 6, 7])
    assert made.c is not None
    made.c += 1
    made.begin(3, [2, 0])
    given = made.send([2, 0])
    assert (given.round, given.clients, given.tau, given.done.tolist()) == (3, [2, 0], [4, 2], [7, 5])
    assert torch.equal(given.theta, made.theta.detach().expand(2, -1))
    assert torch.equal(given.c, made.c)
    assert torch.equal(given.buffers, made.buffers_)
    down = 8 * (2 * len(made.theta) + len(made.buffers_) + 1)  # theta, c, statistics, done
    assert made.traffic.tolist() == [0, 2 * down]
    made.broadcast([1])  # says nothing of being sent
    made.send([1])
    assert made.traffic.tolist() == [0, 3 * down]
    made.fold(update(made, 2))
    made.fold(update(made, 0))
    up = 8 * (2 * len(made.theta) + len(made.buffers_) + 4 + 1)  # theta_k, change of c_k, statistics, metrics, finite
    assert made.traffic.tolist() == [2 * up, 3 * down]


def test_without_control_variates_there_is_no_c() -> None:
    made = server(model=tiny.network())
    made.begin(0, [0, 1, 2])
    assert made.c is None
    assert len(made.broadcast([0]).c) == len(made.change) == len(made.new_buffers) == 0
    made.fold(update(made, 0, 1, 2))
    assert [len(t) for t in made.sums()] == [len(made.theta), 0, 0, 5, 4, 2, 0]
    made.close(made.step)
    close(made.theta.detach(), OMEGA @ update(made, 0, 1, 2).theta)


def test_who_has_no_label_waits_until_unlabelled_samples_count() -> None:
    """FedSem with two rounds on the labels alone, of two epochs each."""
    local = tiny.LocalSGD(eta=0.1, epochs=2, batch_labeled=3, batch_unlabeled=6)
    made = tiny.federated(FedSem(2, 2), local=local).server
    made.plan.__dict__["with_labels"] = [0, 2]
    assert [made.able(round) for round in range(4)] == [[0, 2], [0, 2], [0, 1, 2], [0, 1, 2]]


def test_steps_are_those_of_the_labels_while_only_they_count() -> None:
    made = tiny.federated(FedSem(1, 1, labeled_steps="labeled"), aggregation=Normalized()).server
    for round, tau in enumerate(([1, 2, 1], TAU)):
        made.begin(round, [0, 1, 2])
        assert made.tau == tau
        assert made.effective.tolist() == tau
        assert made.broadcast([1]).tau == [tau[1]]


def test_stragglers_make_other_steps_in_every_round() -> None:
    made = server(Correction(), Normalized(), stragglers=1.0, model=tiny.network())
    seen = []
    for round in range(6):
        made.begin(round, [0, 1, 2])
        assert made.tau == made.cohorts.steps(made.plan.tau, [0, 1, 2], round)
        assert made.effective.tolist() == made.tau
        seen.append(tuple(made.tau))
    assert len(set(seen)) > 1


def test_what_is_not_asked_for_is_not_there() -> None:
    made = server()
    assert made.release is None
    assert made.ema is None
    assert made.group_models.numel() == 0


def test_labels_are_counted_and_their_cost_weighs_as_the_client() -> None:
    """Cost: the mean over the client's samples; movement: the sum. Who labels without being at work has no weight."""
    made = server()
    made.begin(0, [0, 2])
    weight = float(OMEGA[0] / (OMEGA[0] + OMEGA[2]))
    parts = torch.tensor([[5.0, 2.0], [6.0, 4.0], [1.5, 0.5], [0.25, 0.125]], dtype=torch.float64)
    made.fold_labels(Labeled(0, 12, *parts))
    made.fold_labels(Labeled(1, 18, *parts))
    close(made.labels, [14.0, 20.0, weight * 2 / 12, weight * 0.375])


def test_what_is_not_finite_changes_nothing_at_the_server() -> None:
    made = server(ControlVariates())
    before = {name: value.clone() for name, value in made.state_dict().items() if name != "done"}
    made.begin(0, [0, 1, 2])
    made.fold(update(made, 0, 1, 2, spoilt=True))
    made.close(made.step)
    assert not made.sound
    assert all(torch.equal(made.state_dict()[name], value) for name, value in before.items())


def test_those_left_out_are_as_if_not_drawn() -> None:
    made = server(ControlVariates(), Normalized(), on_client_error="skip")
    made.begin(0, [0, 1, 2])
    made.fold_labels(Labeled(0, 12, *torch.ones(4, 1, dtype=torch.float64)))
    made.fold(update(made, 0, 2))
    made.left_out[1] = 1
    theta = made.close(made.step)
    w, u = OMEGA[[0, 2]] / OMEGA[[0, 2]].sum(), update(made, 0, 2)
    tau = torch.tensor([2, 4], dtype=torch.float64)
    close(made.theta.detach(), theta - (w @ tau) * (w / tau) @ (theta - u.theta))
    assert made.c is not None
    close(made.c, OMEGA[[0, 2]] @ u.change)
    close(made.means[:-1], w @ u.metrics)
    close(made.buffers_, w @ u.buffers)
    close(made.labels, [1.0, 1.0, float(w[0]) / 12, float(w[0])])
    assert (made.clients, made.skipped, made.skips, made.lost) == ([0, 2], 1, [0, 1, 0], 0)
    assert made.weight == pytest.approx({0: float(w[0]), 2: float(w[1])}, abs=1e-15)
    assert made.done.tolist() == [2, 0, 4]


def test_three_rounds_without_anybody_end_it_and_a_good_one_between_starts_anew() -> None:
    made = server(on_client_error="skip", model=tiny.network())
    for round, bad in enumerate([(0, 1, 2), (0, 1, 2), (1,), (0, 1, 2), (0, 1, 2)]):
        made.begin(round, [0, 1, 2])
        good = [k for k in range(3) if k not in bad]
        if good:
            made.fold(update(made, *good))
        made.left_out[list(bad)] = 1
        made.close(made.step)
        assert made.skipped == len(bad)
    assert (made.lost, made.skips) == (2, [4, 5, 4])
    assert made.means.isnan().all()
    assert (made.clients, made.weight) == ([], {})
    made.begin(5, [0, 1, 2])
    made.left_out += 1
    with pytest.raises(Diverged) as caught:
        made.close(made.step)
    assert str(caught.value) == "rounds 4 to 6: every client of each was left out (on_client_error=skip)"


def test_the_moving_average_by_hand() -> None:
    """a = min(1 - 1/t, decay^tau_bar): the plain mean at first, then the decay of as many steps as the round had."""
    made = server(evaluate="ema", ema_decay=0.9, model=tiny.network())
    tau_bar, seen, ema = float(OMEGA @ torch.tensor(TAU).double()), [], made.theta.detach().clone()
    for round in range(5):
        made.begin(round, [0, 1, 2])
        made.theta.data.add_(round + 1)
        made.average_theta()
        seen.append(made.theta.detach().clone())
        a = min(1 - 1 / (round + 1), 0.9**tau_bar)
        ema = a * ema + (1 - a) * seen[-1]
    assert 1 - 1 / 3 < 0.9**tau_bar < 1 - 1 / 4  # both kinds of rounds were there
    assert made.ema is not None
    close(made.ema, ema)
    before, made.weight = made.ema.clone(), {}  # nobody took part
    made.average_theta()
    assert torch.equal(made.ema, before)


def test_clients_start_from_their_groups_models_from_the_second_round_on() -> None:
    made = server(aggregation=Grouped(2), model=tiny.network())
    assert made.group_models.shape == (2, len(made.theta))
    made.begin(0, [0, 1, 2])
    assert made.group_of == []
    assert torch.equal(made.broadcast([1]).theta[0], made.theta)
    made.fold(update(made, 0, 1, 2))
    made.close(made.step)
    made.begin(1, [0, 1, 2])
    assert made.group_of == Grouped(2).assign(3, 0, 0)
    given = made.broadcast([2, 0]).theta
    assert torch.equal(given, made.group_models[[made.group_of[2], made.group_of[0]]])
    assert not torch.equal(given[0], made.theta)


def test_everything_of_the_size_of_theta_is_cast() -> None:
    made = server(ControlVariates(), evaluate="ema")
    made.cast(torch.float32)
    kinds = {name: value.dtype for name, value in made.state_dict().items()}
    assert kinds.pop("done") == torch.long
    assert set(kinds) == {"theta", "buffers_", "c", "ema", "group_models"}
    assert set(kinds.values()) == {torch.float32}
    assert isinstance(made.theta, torch.nn.Parameter)


def test_a_model_in_single_precision_has_its_means_in_double() -> None:
    made = server(ControlVariates(), Normalized())
    made.cast(torch.float32)
    made.begin(0, [0, 1, 2])
    whole = update(made, 0, 1, 2)
    theta, change, buffers = (t.float() for t in (whole.theta, whole.change, whole.buffers))
    single = replace(whole, theta=theta, change=change, buffers=buffers)
    made.fold(single)
    assert len(single.change) == 0  # spent: the moves take its place
    assert {made.change.dtype, made.new_buffers.dtype} == {torch.float32}
    assert {made.means.dtype, made.labels.dtype, made.traffic.dtype, made.left_out.dtype} == {torch.float64}
    sent = made.close(made.step)
    close(made.means[:-1], OMEGA @ whole.metrics)
    close(made.means[-1], OMEGA @ (sent - theta).norm(dim=1).double())
    torch.testing.assert_close(made.buffers_, (OMEGA @ buffers.double()).float(), rtol=0, atol=0)


def test_sums_lie_where_the_model_does() -> None:
    made = server(ControlVariates(), Normalized())
    whole = update(made, 0, 1, 2)
    made.to("meta")
    made.done = torch.zeros(3, dtype=torch.long)  # in main memory
    made.begin(0, [0, 1, 2])
    tensors = {name: value.to("meta") for name, value in vars(whole).items() if isinstance(value, Tensor)}
    made.fold(replace(whole, **tensors))
    made.close(lambda: None)
    assert {t.device.type for t in (made.change, made.new_buffers, made.means, made.labels, made.traffic)} == {"meta"}


def test_privacy_is_refused_for_batch_statistics() -> None:
    with pytest.raises(UserError, match="privacy=central: the network has batch statistics, which"):
        server(privacy=Central(1.0, 1.0, 1e-5))


def test_momentum_and_pull_count_in_how_far_a_client_moves() -> None:
    """a_k of two steps with momentum m is 1 + (1 + m); tau_bar counts a_k."""
    local = tiny.LocalSGD(eta=0.1, epochs=1, batch_labeled=3, batch_unlabeled=6, momentum=0.5)
    made = server(aggregation=Normalized(), local=local, model=tiny.network())
    assert made.effective.tolist() == [2.5, 4.25, 6.125]
    made.set_steps([1, 1, 2])
    assert (made.tau, made.effective.tolist()) == ([1, 1, 2], [1.0, 1.0, 2.5])
