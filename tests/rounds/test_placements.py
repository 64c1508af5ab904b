"""Clients without labels, or without unlabelled samples, and labels at the server: by hand and for every method."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from conftest import SMALL
from methods import MADE
from quadratics import Parabola
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedshvr.algorithms.aggregation import Average, Normalized
from fedshvr.algorithms.corrections import VRLSGD, ControlVariates, Correction
from fedshvr.algorithms.grouped import Grouped
from fedshvr.algorithms.objectives.base import Objective
from fedshvr.algorithms.objectives.batch import Batch, Network, Parts, State
from fedshvr.algorithms.objectives.fedmatch import FedMatch
from fedshvr.algorithms.objectives.s3vm import S3VM
from fedshvr.compute.streams import Draws
from fedshvr.data.augment import Augment
from fedshvr.data.holdings import Federation
from fedshvr.data.sources import ImageData
from fedshvr.errors import UserError
from fedshvr.federation.held_out import for_server, hold_out
from fedshvr.federation.partition import Split, dirichlet, iid
from fedshvr.federation.plan import LocalSGD, make_plan
from fedshvr.rounds.federated import Federated
from fedshvr.rounds.options import Method, grouped

NONE = np.empty(0, dtype=np.int64)
REFUSED = [name for name in MADE if name.startswith(("ds3l", "mixmatch", "label_propagation", "s3vm"))]
TAKEN = [name for name in MADE if name not in REFUSED]
STACKED = [name for name in TAKEN if name != "ladder"]
QUICK = ("soft", "fixmatch", "teacher_client", "fedmatch", "fedsem")


def some(names: list[str]) -> list[object]:
    """All of them; but for a few the tests are slow."""
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in names]


# Two quadratic clients by hand: one has labels alone, the other none


class TwoParabolas(Objective):
    """mean a (x - b)^2 / 2 over the labelled samples, plus half of that over the unlabelled ones."""

    views = ("clean",)
    parts = ("labeled", "unlabeled")

    def labeled_loss(self, net: Network, batch: Batch) -> Tensor:
        return net(batch.x).mean()

    def loss(self, net: Network, batch: Batch, state: State) -> tuple[Tensor, Parts]:
        labeled, unlabeled = net(batch.x).mean(), net(batch.u[0]).mean()
        return labeled + 0.5 * unlabeled, {"labeled": labeled, "unlabeled": unlabeled}


def parabolas(
    splits: list[Split], correction: Correction, aggregation: Average, rounds: int, server: np.ndarray = NONE, **options
) -> Federated:
    """Samples 0, 1: (a, b) = (1, 1); 2, 3: (2, -3); 4, 5, 6: (4, 5). eta = 0.1, batches of 1, an epoch a round."""
    x = torch.tensor([(1.0, 1.0)] * 2 + [(2.0, -3.0)] * 2 + [(4.0, 5.0)] * 3, dtype=torch.float64).view(-1, 1, 1, 2)
    y = torch.zeros(len(x), dtype=torch.long)
    local = LocalSGD(eta=0.1, epochs=1, batch_labeled=1, batch_unlabeled=1)
    federation = Federation(
        ImageData("two", x, y, x[:1], y[:1], ("only",)), splits, make_plan(splits, local), server=server
    )
    module = Federated(
        Parabola(),
        federation,
        Method(TwoParabolas(), correction, aggregation, local),
        {"clean": Augment(), "weak": Augment()},
        **grouped(optimizer=lambda params: torch.optim.SGD(params, lr=1.0), seed=0, **options),
    )
    return tiny.train(module, rounds)


APART = [Split(np.array([0, 1]), NONE, (0,)), Split(NONE, np.array([2, 3]), ())]
ENGINES = pytest.mark.parametrize("engine", ["sequential", "vectorized"])


@ENGINES
def test_a_round_of_two_clients_apart_by_hand(engine: str) -> None:
    """Client 0: g = x - 1: x_0 = 0.1, then 0.19. Client 1: g = 0.5 * 2 (x + 3): x_1 = -0.3, then -0.57.

    omega = (1/2, 1/2): x = -0.19. Labelled loss 0.5 (1 + 0.81) / 2, unlabelled 9 + 7.29 over 2, of which half counts.
    """
    module = parabolas(APART, Correction(), Average(), 1, engine=engine)
    assert module.plan.tau == [2, 2]
    assert module.theta.item() == pytest.approx(-0.19, abs=1e-15)
    assert module.row["train_labeled"] == pytest.approx(0.5 * 0.4525, abs=1e-15)
    assert module.row["train_unlabeled"] == pytest.approx(0.5 * 8.145, abs=1e-14)
    assert module.row["train_loss"] == pytest.approx(0.5 * 0.4525 + 0.5 * 0.5 * 8.145, abs=1e-14)


@ENGINES
@pytest.mark.parametrize("option", ["I", "II"])
def test_control_variates_of_clients_apart(engine: str, option: str) -> None:
    """After round 1 (II): Delta = (-0.95, 2.85), c = 0.95, d = (1.9, -1.9). (I): g(0) = (-1, 3), d = (2, -2).

    In the end the minimum of (x - 1)^2 / 2 + 0.5 * 2 (x + 3)^2 / 2: x = -1.
    """
    module = parabolas(APART, ControlVariates(option), Normalized(), 1, engine=engine)
    d = module.server.c - module.bench.tables["c_k"].get([0, 1])[:, 0]
    np.testing.assert_allclose(d.numpy(), [1.9, -1.9] if option == "II" else [2.0, -2.0], atol=1e-14)
    module = parabolas(APART, ControlVariates(option), Normalized(), 60, engine=engine)
    assert module.theta.item() == pytest.approx(-1, abs=1e-4)
    assert module.row["sum_omega_d"] < 1e-13


def test_the_full_loss_and_gradient_leave_out_what_is_not_there() -> None:
    """At x = -1 the gradients are -2 and 2: the gap is 0. F = (4 / 2 + 0.5 * 2 * 4 / 2) / 2 = 2."""
    module = parabolas(APART, ControlVariates(), Normalized(), 100, optimality_gap=True, server_loss_every=100)
    assert module.row["gap"] == pytest.approx(0, abs=1e-17)
    assert module.row["server_loss"] == pytest.approx(2, abs=1e-8)


# Labels at the server by hand


@ENGINES
@pytest.mark.parametrize(("epochs", "steps"), [(1.0, 3), (0.4, 1)])
def test_the_server_descends_on_its_labels_after_the_aggregation(engine: str, epochs: float, steps: int) -> None:
    """Both clients are unlabelled: x_k = 0.475 (b = 1: g = 0.5 (x - 1)) ... then x <- 5 + 0.6^steps (x - 5)."""
    splits = [Split(NONE, np.array([0, 1]), ()), Split(NONE, np.array([2, 3]), ())]
    x = 0.0
    for rounds in (1, 2, 3):
        module = parabolas(
            splits, Correction(), Average(), rounds, np.array([4, 5, 6]), engine=engine, server_epochs=epochs
        )
        first, second = 1 + 0.95**2 * (x - 1), -3 + 0.9**2 * (x + 3)
        averaged, loss = (first + second) / 2, 0.0
        x = averaged
        for _ in range(steps):
            loss += 4 * (x - 5) ** 2 / 2 / steps
            x -= 0.1 * 4 * (x - 5)
        assert module.theta.item() == pytest.approx(x, abs=1e-13)
        assert module.row["train_server"] == pytest.approx(loss, rel=1e-13)
        assert module.row["train_labeled"] == 0


def test_corrections_do_not_see_the_servers_own_steps() -> None:
    """VRL-SGD and control variates compare the clients with their average: their sum stays 0."""
    splits = [Split(NONE, np.array([0, 1]), ()), Split(NONE, np.array([2, 3]), ())]
    vrl = parabolas(splits, VRLSGD(), Average(), 5, np.array([4, 5, 6]))
    assert vrl.bench.tables["d_k"].rows.sum().abs() < 1e-13
    assert parabolas(splits, ControlVariates(), Normalized(), 5, np.array([4])).row["sum_omega_d"] < 1e-13


def test_the_moving_average_is_of_the_model_that_is_tested() -> None:
    splits = [Split(NONE, np.array([0, 1]), ()), Split(NONE, np.array([2, 3]), ())]
    module = parabolas(splits, Correction(), Average(), 1, np.array([4]), evaluate="ema")
    assert torch.equal(module.server.ema, module.theta)  # after one round


# Every objective


def placed(
    name: str, splits: list[Split], server: np.ndarray = NONE, model: nn.Module | None = None, **options
) -> Federated:
    objective = MADE[name]()
    local = options.pop("local", tiny.LOCAL)
    correction, aggregation = options.pop("parts", (Correction(), Average()))
    plan = make_plan(splits, local, objective.uses_unlabeled)
    return Federated(
        model or tiny.network(),
        Federation(tiny.images(), splits, plan, server=server),
        Method(objective, correction, aggregation, local),
        tiny.AUGMENTS,
        **grouped(optimizer=lambda params: torch.optim.SGD(params, lr=1.0), seed=0, **options),
    )


def mixed() -> list[Split]:
    """Both kinds, labels alone, no label."""
    first, second, third = tiny.splits()
    return [first, Split(second.labeled, NONE, second.labeled_classes), Split(NONE, third.unlabeled, ())]


def unlabeled() -> list[Split]:
    return [Split(NONE, split.unlabeled, ()) for split in tiny.splits()]


def own() -> np.ndarray:
    return np.concatenate([split.labeled for split in tiny.splits()])


@pytest.mark.parametrize("name", some(STACKED))
def test_clients_of_every_kind_are_one_stack(name: str) -> None:
    options = {"server_loss_every": 1, "optimality_gap": True, "parts": (ControlVariates(), Normalized())}
    one, many = (tiny.train(placed(name, mixed(), engine=e, **options), 3) for e in ("sequential", "vectorized"))
    torch.testing.assert_close(many.theta, one.theta, rtol=0, atol=1e-12)
    assert one.row["sum_omega_d"] < 1e-12
    for column, value in one.row.items():
        if column != "seconds":
            assert many.row[column] == pytest.approx(value, rel=1e-10, abs=1e-12, nan_ok=True), column


@pytest.mark.parametrize("name", some([n for n in TAKEN if n not in ("supervised", "fedsem", "ladder")]))
def test_every_method_learns_with_labels_at_the_server(name: str) -> None:
    """Five times the passes over its labels: a lower loss on them."""
    one, five = (tiny.train(placed(name, unlabeled(), own(), server_epochs=e), 2) for e in (1.0, 5.0))
    assert five.row["train_server"] < one.row["train_server"]


def losses(module: Federated, k: int) -> tuple[Tensor, Tensor, Batch]:
    """Client k's first update of the second round, theta it began with, and its batch."""
    broadcast = module.server.broadcast([k])
    batcher, bench = module.bench.batcher, module.bench
    choices = batcher.choose(Draws(bench.seed, broadcast.round, torch.tensor([k])), 1)
    return broadcast.theta[0].clone(), module.work([k], False).theta[0], batcher.gather(choices, bench.pool)


def test_a_client_without_labels_descends_on_the_other_terms_alone() -> None:
    """One step: theta - eta grad [alpha0 CE(u, v) + alpha2 r2], with no trace of the images that stand in."""
    local = LocalSGD(0.1, 0.2, 3, 6)
    module = tiny.train(placed("soft", mixed(), local=local), 3)
    module.server.begin(3, [0, 1, 2])
    assert module.server.tau[2] == 1
    theta, theta_k, batch = losses(module, 2)
    net = tiny.network()
    torch.nn.utils.vector_to_parameters(theta, net.parameters())
    log_f = net(batch.u[0][0, 0]).log_softmax(-1)
    loss = -(batch.v[0, 0] * log_f).sum(-1).mean() * module.method.objective.alpha0
    loss = loss + 0.1 * (log_f.exp() * (log_f * 1).add(np.log(3))).sum(-1).mean()
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(net.parameters()))])
    torch.testing.assert_close(theta_k, theta - 0.1 * gradient, rtol=0, atol=1e-14)


def test_a_client_without_others_descends_on_its_labels_alone() -> None:
    local = LocalSGD(0.1, 0.2, 3, 6)
    module = tiny.train(placed("soft", mixed(), local=local), 3)
    module.server.begin(3, [0, 1, 2])
    theta, theta_k, batch = losses(module, 1)
    net = tiny.network()
    torch.nn.utils.vector_to_parameters(theta, net.parameters())
    loss = cross_entropy(net(batch.x[0, 0]), batch.y[0, 0])
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(net.parameters()))])
    torch.testing.assert_close(theta_k, theta - 0.1 * gradient, rtol=0, atol=1e-14)


def test_no_hidden_label_is_used() -> None:
    data = tiny.images()
    other = data.y.clone()
    hidden = np.concatenate([split.unlabeled for split in mixed()])
    other[hidden] = (other[hidden] + 1) % 3
    one = tiny.train(placed("soft", mixed()), 2)
    module = placed("soft", mixed())
    module.federation.images = ImageData(data.name, data.x, other, data.x_test, data.y_test, data.classes)
    assert torch.equal(tiny.train(module, 2).theta, one.theta)


def test_shuffled_batches_may_be_larger_than_what_only_stands_in() -> None:
    local = LocalSGD(0.1, 1, 3, 12, sampling="shuffle")  # client 1 has 6 labelled samples and no others
    assert tiny.train(placed("soft", mixed(), local=local), 2).theta.isfinite().all()


# A supervised method


@ENGINES
def test_a_supervised_client_without_labels_takes_no_part(engine: str) -> None:
    """The model of the two others alone, with weights that sum to 1."""
    whole = tiny.splits()
    splits = [whole[0], whole[1], Split(NONE, whole[2].unlabeled, ())]
    options = {"engine": engine, "parts": (ControlVariates(), Normalized()), "server_loss_every": 1}
    three, two = (tiny.train(placed("supervised", s, **options), 3) for s in (splits, splits[:2]))
    assert three.plan.tau == [*two.plan.tau, 0]
    assert three.plan.omega.tolist() == [*two.plan.omega.tolist(), 0]
    assert three.cohort(0) == [0, 1]
    assert torch.equal(three.theta, two.theta)
    assert three.row["server_loss"] == two.row["server_loss"]
    assert three.row["sum_omega_d"] < 1e-13


def test_fedsem_begins_with_those_that_have_labels() -> None:
    module = placed("fedsem", mixed())
    assert [module.cohort(t) for t in (0, 1, 2)] == [[0, 1], [0, 1, 2], [0, 1, 2]]


# What is refused


@pytest.mark.parametrize("name", REFUSED)
def test_methods_that_need_both_on_every_client_say_so(name: str) -> None:
    with pytest.raises(
        UserError, match=r"^algorithm/objective: \w+ [a-z ,=0]+, but client 1 has no unlabelled sample$"
    ):
        placed(name, mixed())
    with pytest.raises(UserError, match="but client 0 has no labelled sample"):
        placed(name, unlabeled(), own())


def test_s3vm_without_its_balance_is_taken() -> None:
    objective = S3VM(1.0, 0.0, MADE["s3vm"]().ramp)
    assert not objective.whole


def sentence(name: str, splits: list[Split], server: np.ndarray = NONE, **options) -> str:
    with pytest.raises(UserError) as error:
        placed(name, splits, server, **options)
    return str(error.value)


def test_who_has_nothing_to_learn_from_is_told() -> None:
    whole = [Split(split.labeled, NONE, split.labeled_classes) for split in tiny.splits()]
    assert sentence("supervised", unlabeled(), own()) == (
        "algorithm/objective: it learns from labels alone, but no client has one"
    )
    assert sentence("fedsem", unlabeled(), own()) == (
        "algorithm/objective: FedSem begins with the labels of the clients, but no client has one"
    )
    assert sentence("soft", unlabeled()) == (
        "partition: nobody has a label; give some to clients or to the server (server_labels)"
    )
    assert sentence("soft", whole) == "algorithm/objective: no client has an unlabelled sample; use supervised"
    assert sentence("soft", [*mixed(), Split(NONE, NONE, ())]) == (
        "client 3 has no sample: the partition must give every client at least one"
    )
    assert sentence("fixmatch", unlabeled(), own(), parts=(Correction(), Grouped(2))).startswith(
        "server_labels=15: grouping starts clients from their groups' models"
    )
    assert sentence("soft", unlabeled(), own()[:2], local=LocalSGD(0.1, 1, 3, 6, sampling="shuffle")) == (
        "client.batch_labeled=3: client.sampling=shuffle needs at most server_labels=2"
    )
    assert sentence("soft", unlabeled(), own(), server_epochs=0.0) == "server_epochs=0.0: must be positive and finite"


def test_weighting_by_labels_leaves_out_who_has_none() -> None:
    plan = make_plan(mixed(), tiny.LOCAL, weighting="labeled")
    assert plan.omega.tolist() == [0.4, 0.6, 0]
    assert plan.able == [0, 1]
    with pytest.raises(UserError, match="weighting=labeled: no client has a label; must be samples or uniform"):
        make_plan(unlabeled(), tiny.LOCAL, weighting="labeled")


# Batch norm, halves


def test_batch_norm_statistics_of_the_server_come_last() -> None:
    """The server's buffers have moved from the clients' average by its own steps."""
    torch.manual_seed(2)
    moved = tiny.train(placed("soft", unlabeled(), own(), tiny.BatchNormed().double()), 1)
    torch.manual_seed(2)
    module = placed("soft", unlabeled(), own(), tiny.BatchNormed().double())
    tiny.train(module, 1)
    assert torch.equal(module.server.buffers_, moved.server.buffers_)
    assert not torch.equal(module.server.buffers_, module.server.new_buffers)


def test_fedmatch_trains_sigma_at_the_server() -> None:
    """One client step less: theta is (sigma, psi) of each layer, and the server changes sigma alone."""
    module = placed("fedmatch", unlabeled(), own())
    before: dict[str, Tensor] = {}
    tiny.train(module, 1)
    net, objective = module.bench.net, module.method.objective
    assert isinstance(objective, FedMatch)
    theta = module.theta.detach().clone()
    before["theta"] = theta
    module.tutor.teach(module.server, module.trainer)
    changed = [
        bool((a != b).any()) for a, b in zip(*(split(net, t) for t in (theta, module.theta.detach())), strict=True)
    ]
    assert changed == [True, False] * (len(changed) // 2)


def split(net: object, theta: Tensor) -> list[Tensor]:
    from fedshvr.compute.vector import split_like

    return split_like(theta, net.shapes)  # type: ignore[attr-defined]


# Partitions and runs


def test_the_first_clients_have_every_label() -> None:
    y = np.arange(1000) % 10
    for make in (iid, lambda y, **o: dirichlet(y, concentration=0.5, min_size=10, **o)):
        usual = make(y, clients=10, labeled_per_client=10, seed=1)
        splits = make(y, clients=10, labeled_per_client=10, labeled_clients=2, seed=1)
        for k, (a, b) in enumerate(zip(splits, usual, strict=True)):
            everything = np.sort(np.concatenate([b.labeled, b.unlabeled])).tolist()
            assert (a.labeled if k < 2 else a.unlabeled).tolist() == everything
            assert len(a.unlabeled if k < 2 else a.labeled) == 0
            assert bool(a.labeled_classes) == (k < 2)


def test_no_label_at_any_client() -> None:
    splits = iid(np.arange(1000) % 10, clients=10, labeled_per_client=0, seed=1)
    assert [len(s.labeled) for s in splits] == [0] * 10
    assert sum(len(s.unlabeled) for s in splits) == 1000


AT_SERVER = ["partition.labeled_per_client=0", "server_labels=50"]


@pytest.mark.parametrize(
    "overrides",
    [
        ["partition=some_labeled"],
        pytest.param(["partition=some_labeled", "algorithm=fedavg"], marks=pytest.mark.slow),
        [*AT_SERVER, "algorithm=fed_fixmatch"],
    ],
    ids=["some_labeled", "some_labeled fedavg", "at server"],
)
def test_runs_resume_exactly_and_show_their_partition(train: Callable, tmp_path: Path, overrides: list[str]) -> None:
    whole = train(*SMALL, *overrides, "rounds=4", folder="whole")
    train(*SMALL, *overrides, "rounds=2", folder="parts")
    parts = train(*SMALL, *overrides, "rounds=4", "ckpt_path=last", folder="parts")
    assert parts.theta == whole.theta
    assert parts.timeless == whole.timeless
    assert (tmp_path / "whole" / "partition.png").is_file()


def test_the_servers_samples_are_of_every_class_and_nobody_elses() -> None:
    y = np.arange(200) % 10
    held_out = hold_out(y, 0.2, 0)
    server = for_server(y, 25, held_out, 0)
    assert sorted(np.bincount(y[server]).tolist()) == [2] * 5 + [3] * 5
    assert not set(server) & set(held_out)
    assert for_server(y, 0, held_out, 0).tolist() == []
    with pytest.raises(UserError, match="server_labels=-1: must be at least 0"):
        for_server(y, -1, held_out, 0)
    with pytest.raises(UserError, match="server_labels=161: asks for 17 samples of class 0, which has 16"):
        for_server(y, 161, held_out, 0)
