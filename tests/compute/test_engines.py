"""Both engines make the same model for every named algorithm, also after an evaluation in between."""

from collections.abc import Callable, Iterator

import pytest
import ranks
import torch
from conftest import ALGORITHMS, STACKED
from torch import Tensor, nn

from fedshvr.compute import engine
from fedshvr.compute.engine import rule
from fedshvr.compute.vector import FlatNet
from fedshvr.errors import UserError
from fedshvr.models.cnn13 import CNN13
from fedshvr.models.mlp import MLP

MORE = {"fedmatch": ["algorithm.objective.zero_below=0.01"]}  # a model that is in evaluation mode by mistake shows


@pytest.mark.parametrize("algorithm", STACKED)
def test_vectorized_is_sequential_after_an_evaluation(algorithm: str) -> None:
    one, many = (
        ranks.theta(algorithm, 1, f"engine={name}", *MORE.get(algorithm, []), evaluate=True)
        for name in ("sequential", "vectorized")
    )
    torch.testing.assert_close(many, one, rtol=0, atol=1e-12)


@pytest.mark.parametrize("algorithm", STACKED)
def test_stacks_of_another_size_make_the_same_model(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All clients in one stack, in stacks of two or three, each in a stack of its own."""
    whole = ranks.theta(algorithm, 1, "engine=vectorized")
    for size in (1, 3 * whole.nbytes):
        monkeypatch.setattr(engine, "STACK_BYTES", size)
        torch.testing.assert_close(ranks.theta(algorithm, 1, "engine=vectorized"), whole, rtol=0, atol=1e-10)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_another_order_of_the_clients_makes_the_same_model(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def backwards(work: engine.Work, clients: engine.Clients) -> Iterator[object]:
        called.extend(clients.own[::-1])
        yield from forwards(work, clients.only(clients.own[::-1]))

    forwards, called = engine.sequential, list[int]()
    whole = ranks.theta(algorithm, 1, "engine=sequential")
    monkeypatch.setattr(engine, "sequential", backwards)
    torch.testing.assert_close(ranks.theta(algorithm, 1, "engine=sequential"), whole, rtol=0, atol=1e-10)
    assert called[0] > called[1]


def test_a_method_that_cannot_be_stacked_is_refused() -> None:
    with pytest.raises(UserError, match=r"engine=vectorized: this network has batch norm .*use engine=sequential"):
        ranks.theta("fed_ladder", 1, "engine=vectorized")


class Recurrent(nn.Module):
    """Reads its 64 numbers one after another."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.GRU(1, 3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.cells(x[:, :, None])[0][:, -1]


def conv(norm: str = "group") -> nn.Module:
    return CNN13((1, 16, 16), 3, width=0.0625, norm=norm, dropout=0.5)


@pytest.mark.parametrize(
    ("network", "clients", "chosen"),
    [
        (lambda: MLP((64,), 3, [8], dropout=0.5), 4, "vectorized"),
        (lambda: MLP((64,), 3, [8]), 3, "sequential"),  # too few
        (lambda: nn.Sequential(MLP((64,), 3, [8]), nn.AlphaDropout(0.1)), 9, "sequential"),  # cannot be stacked
        (lambda: conv("batch"), 9, "sequential"),
        (conv, 9, "sequential"),  # could be, but is often slower on a CPU
        (Recurrent, 9, "sequential"),  # vmap does not know nn.GRU
    ],
)
def test_the_rule_of_auto(network: Callable[[], nn.Module], clients: int, chosen: str) -> None:
    net = FlatNet(network(), torch.device("cpu"), torch.float32)
    net.probe(torch.randn(2, 1, 16, 16) if "features" in net.names[0] else torch.randn(2, 64))
    assert rule(net, clients) == chosen


def test_the_default_is_the_rule_and_repeats_its_bits() -> None:
    auto, again, chosen = (ranks.theta("fed_shvr", 1, *more) for more in ([], [], ["engine=vectorized"]))
    assert torch.equal(auto, again)
    assert torch.equal(auto, chosen)
