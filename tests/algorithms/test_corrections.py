"""What each correction remembers and reports, on vectors of two numbers."""

import pytest
import torch
from torch import Tensor

from fedshvr.algorithms.corrections import VRLSGD, ControlVariates, Correction, Proximal


def vector(*numbers: float) -> Tensor:
    return torch.tensor([numbers], dtype=torch.float64)


def never() -> Tensor:
    raise AssertionError("an extra pass over the data that nobody asked for")


@pytest.mark.parametrize("correction", [Correction(), Proximal(0.5)])
def test_nothing_is_remembered_without_memory(correction: Correction) -> None:
    memory = vector(1, 2)
    assert correction.offset(memory, vector(3, 4)) is None
    assert correction.after_client(memory, vector(3, 4), vector(5, 6), never) is None
    assert memory.tolist() == [[1, 2]]


def test_control_variates_of_option_2() -> None:
    """d_k = c - c_k = (2, 5); c_k' = Delta_k - d_k = (8, 4); the server is told c_k' - c_k = (7, 5) = Delta_k - c."""
    memory, c, delta = vector(1, -1), vector(3, 4), vector(10, 9)
    d_k = ControlVariates().offset(memory, c)
    assert d_k is not None
    assert d_k.tolist() == [[2, 5]]
    change = ControlVariates().after_client(memory, c, delta, never)
    assert change is not None
    assert change.tolist() == [[7, 5]]
    assert memory.tolist() == [[8, 4]]
    assert c.tolist() == [[3, 4]]


def test_control_variates_of_option_1_take_the_gradient_at_the_servers_model() -> None:
    memory = vector(1, -1)
    change = ControlVariates("I").after_client(memory, vector(3, 4), vector(10, 9), lambda: vector(20, 30))
    assert change is not None
    assert change.tolist() == [[19, 31]]
    assert memory.tolist() == [[20, 30]]


def test_vrl_sgd_by_hand() -> None:
    """d_k' = d_k - Delta_k + (theta - theta') / (eta tau_k) = (1, -1) - (10, 9) + (4, 2) / (0.5 * 4)."""
    memory = vector(1, -1)
    assert VRLSGD().offset(memory, vector(0, 0)) is memory
    assert VRLSGD().after_client(memory, vector(3, 4), vector(10, 9), never) is None
    VRLSGD().after_round(memory, vector(4, 2), eta=0.5, tau=4)
    assert memory.tolist() == [[-7, -9]]
