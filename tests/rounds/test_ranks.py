"""Two processes that share the clients out make the model of one, for every algorithm."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import ranks
import torch
from conftest import ALGORITHMS, ROOT, environment
from torch import Tensor


@pytest.fixture(scope="module")
def of_two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    """theta of every algorithm from one pair of processes: their start is paid once."""
    target = tmp_path_factory.mktemp("ranks") / "thetas.pt"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    processes = [start(rank, port, target) for rank in range(2)]
    try:
        outputs = [process.communicate(timeout=300)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
    return torch.load(target, weights_only=True)


def start(rank: int, port: str, target: Path) -> subprocess.Popen:
    place = {"WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    env = environment() | place | {"MASTER_PORT": port, "PYTHONPATH": str(ROOT / "src")}
    arguments = [sys.executable, str(ROOT / "tests" / "ranks.py"), str(target), *ALGORITHMS]
    return subprocess.Popen(arguments, env=env, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_two_ranks_are_one(of_two: dict[str, Tensor], algorithm: str) -> None:
    torch.testing.assert_close(of_two[algorithm], ranks.theta(algorithm, 1), rtol=0, atol=1e-10)


@pytest.mark.parametrize("variant", ranks.VARIANTS)
def test_two_ranks_are_one_with_other_options(of_two: dict[str, Tensor], variant: str) -> None:
    one = ranks.theta("fed_shvr", 1, *ranks.VARIANTS[variant])
    torch.testing.assert_close(of_two[variant], one, rtol=0, atol=1e-10)


def test_two_ranks_measure_what_one_does(of_two: dict[str, Tensor]) -> None:
    torch.testing.assert_close(of_two["evaluation"], ranks.evaluation(1), rtol=1e-10, atol=0)
