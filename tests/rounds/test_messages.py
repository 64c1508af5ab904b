"""The contract: messages survive a trip through bytes, clients need nothing else, the server takes any order."""

from collections.abc import Callable
from dataclasses import fields

import pytest
import ranks
import tiny
import torch
from conftest import ALGORITHMS, STACKED, compose_train
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from methods import MADE
from torch import Tensor

from fedshvr.algorithms.aggregation import Average, Normalized
from fedshvr.algorithms.corrections import ControlVariates, Correction
from fedshvr.algorithms.grouped import Grouped
from fedshvr.algorithms.robust import GeometricMedian, Median, TrimmedMean
from fedshvr.rounds.client import together
from fedshvr.rounds.federated import Federated
from fedshvr.rounds.messages import Broadcast, Labeled, Message, Update, from_bytes, nbytes, to_bytes
from fedshvr.running.run import build


def same(a: Message, b: Message) -> bool:
    """Every tensor has the same bits and type, everything else is equal."""
    pairs = [(getattr(a, f.name), getattr(b, f.name)) for f in fields(a)]
    pairs += [(d[name], other[name]) for d, other in pairs if isinstance(d, dict) for name in d]
    return type(a) is type(b) and all(equal(x, y) for x, y in pairs if not isinstance(x, dict))


def equal(x: object, y: object) -> bool:
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        return x.dtype == y.dtype and x.shape == y.shape and bool(((x == y) | (x.isnan() & y.isnan())).all())
    return type(x) is type(y) and x == y


class ByPost(Callback):
    """Every message of the round goes through bytes."""

    def __init__(self) -> None:
        self.sizes: dict[str, set[int]] = {"Broadcast": set(), "Update": set()}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Federated)
        send, work = pl_module.server.broadcast, pl_module.work
        pl_module.server.broadcast = lambda clients: self.post(send(clients))
        pl_module.work = lambda clients, stacked: self.post(work(clients, stacked))
        fold_labels = pl_module.server.fold_labels
        pl_module.server.fold_labels = lambda labeled: fold_labels(self.post(labeled))

    def post(self, message: Message) -> Message:
        data = to_bytes(message)
        read = from_bytes(data)
        assert same(read, message)
        assert nbytes(read) == nbytes(message) <= len(data)
        if not isinstance(message, Labeled) and len(message.clients) == 1:
            self.sizes[type(message).__name__].add(nbytes(message))
        return read


def trained(algorithm: str, engine: str, *callbacks: Callback) -> Federated:
    more = ranks.SOONER.get(algorithm, [])
    module = build(compose_train(f"algorithm={algorithm}", *ranks.TINY, *more, f"engine={engine}"))[1]
    return tiny.train(module, 2, callbacks=list(callbacks))


@pytest.mark.parametrize(
    ("algorithm", "engine"), [(a, "sequential") for a in ALGORITHMS] + [(a, "vectorized") for a in STACKED]
)
def test_a_round_through_bytes_is_the_round(algorithm: str, engine: str) -> None:
    assert torch.equal(trained(algorithm, engine, ByPost()).theta, trained(algorithm, engine).theta)


@pytest.mark.parametrize(("correction", "vectors"), [(Correction(), 1), (ControlVariates(), 2)])
def test_what_one_client_sends_is_known_to_the_byte(correction: Correction, vectors: int) -> None:
    """P numbers down and up, twice that with control variates; then its steps so far, and 4 metrics and 1 count."""
    post = ByPost()
    module = tiny.fit(MADE["soft"](), correction, engine="sequential", rounds=2)
    parameters = len(module.theta)
    tiny.train(tiny.federated(MADE["soft"](), correction, engine="sequential"), 2, callbacks=[post])
    assert post.sizes["Broadcast"] == {8 * (vectors * parameters + 1)}
    assert post.sizes["Update"] == {8 * (vectors * parameters + 4 + 1)}


def begun(aggregation: Average, correction: Correction | None = None, **options: object) -> Federated:
    """After one round, with the second begun."""
    module = tiny.fit(MADE["soft"](), correction, aggregation, rounds=1, **options)
    module.server.begin(1, [0, 1, 2])
    return module


def stacked_update(module: Federated) -> Update:
    order = sorted(range(3), key=lambda k: -module.server.tau[k])
    return module.work(order, True)


AGGREGATIONS: dict[str, Callable[[], Average]] = {
    "average": Average,
    "normalized": Normalized,
    "grouped": lambda: Grouped(2),
    "median": Median,
    "trimmed": lambda: TrimmedMean(0.34),
    "geometric": lambda: GeometricMedian(8),
}


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_the_server_folds_in_any_order_and_stacks_can_be_split(name: str) -> None:
    correction = Correction() if name == "grouped" else ControlVariates()
    found = []
    for order in ((0, 1, 2), (2, 0, 1), None):
        module = begun(AGGREGATIONS[name](), correction)
        update = stacked_update(module)
        parts = [update] if order is None else [update.split()[i] for i in order]
        assert order is None or [part.clients for part in parts] == [[update.clients[i]] for i in order]
        for part in parts:
            module.server.fold(part)
        module.server.close(module.optimizers().step)
        server = module.server
        c, groups = server.theta[:0] if server.c is None else server.c, server.group_models.flatten()
        found.append(torch.cat([server.theta.detach(), c.detach(), server.means, groups]))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-13)
    torch.testing.assert_close(found[2], found[0], rtol=0, atol=1e-13)


@pytest.mark.parametrize("aggregation", [Average(), Normalized(), Grouped(2), Median()], ids=lambda a: type(a).__name__)
def test_sums_of_two_processes_add_up(aggregation: Average) -> None:
    """One adds client 0, the other 1 and 2; the tensors of sums() are added."""
    whole, first, second = (begun(aggregation) for _ in range(3))
    updates = stacked_update(whole).split()
    directions = []
    for modules in ((whole, whole, whole), (first, second, second)):
        sums = []
        for module in dict.fromkeys(modules):
            server = module.server
            server.begin(1, [0, 1, 2])  # the aggregation is one object here
            for owner, update in zip(modules, updates, strict=True):
                if owner is module:
                    server.fold(Update(**vars(update)))
            sums.append([t.clone() for t in server.sums()])
        directions.append([sum(parts) for parts in zip(*sums, strict=True)])
    for one, two in zip(*directions, strict=True):
        torch.testing.assert_close(two, one, rtol=0, atol=1e-13)


@pytest.mark.parametrize("stacked", [False, True])
def test_a_client_needs_its_own_data_and_memory_alone(stacked: bool) -> None:
    """With everybody else's images, labels and memory spoilt its Update has the same bits."""
    whole, alone = (begun(Average(), ControlVariates()) for _ in range(2))
    k, plan, bench = 1, alone.plan, alone.bench
    own = torch.cat([plan.labeled[k], plan.unlabeled[k]])
    others = torch.tensor([i for i in range(len(bench.pool.x)) if i not in set(own.tolist())])
    bench.pool.x[others], bench.pool.v[others], bench.pool.y[others] = torch.nan, torch.nan, -1
    for table in bench.tables.values():
        table.rows[[0, 2]] = torch.nan
    updates = [m.clients[k].work(m.bench, m.server.broadcast([k]), stacked) for m in (whole, alone)]
    assert same(*updates)
    assert updates[0].theta.isfinite().all()


def test_a_stack_is_its_clients() -> None:
    module = begun(Average(), ControlVariates())
    assert together(module.clients).index == [0, 1, 2]
    broadcast = module.server.broadcast([2, 1, 0])
    assert [broadcast.of(i).clients for i in range(3)] == [[2], [1], [0]]
    assert all(same(broadcast.of(i), module.server.broadcast([2 - i])) for i in range(3))


def test_nothing_but_tensors_and_numbers_is_read() -> None:
    """A message with a live object in it is written, but refused where it is read."""
    module = begun(Average())
    broadcast = module.server.broadcast([0])
    bad = Broadcast(**vars(broadcast) | {"exchanged": {"helper": MADE["soft"]()}})
    with pytest.raises(Exception, match="Weights only load failed"):
        from_bytes(to_bytes(bad))
