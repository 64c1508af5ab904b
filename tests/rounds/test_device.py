"""On another device than the CPU a round makes the same numbers, mixes no devices and is read once, at its end.

The device is that of device.py, in a process of its own.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny
from conftest import ALGORITHMS, ROOT, STACKED, environment

LOG, EVALUATION = ["federated._log_round: _to_copy"], ["federated._evaluate: _to_copy"]
OPTIONS = ["relabel=step", "label_view=mean4", "dropout", "a random layer", "batch norm", "buffers=local", "option I"]
OPTIONS += [
    "median",
    "geometric median",
    "garbage",
    "momentum, decay",
    "shuffle",
    "gap and server loss",
    "engine=measure",
    "profile=true",
]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    target = tmp_path_factory.mktemp("device") / "results.json"
    command = [sys.executable, str(ROOT / "tests" / "on_device.py"), str(target), *ALGORITHMS]
    env = environment() | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(Path(target).read_text())


def check(result: dict[str, Any]) -> None:
    """Ran, with the CPU's bits, and with one read an evaluation."""
    assert "error" not in result, result["error"]
    assert result["equal"]
    assert result["rows"] == result["rows on the CPU"]
    assert result["evaluations"] == [EVALUATION, EVALUATION]


@pytest.mark.parametrize(
    ("algorithm", "engine"), [(a, "sequential") for a in ALGORITHMS] + [(a, "vectorized") for a in STACKED]
)
def test_every_algorithm(results: dict, algorithm: str, engine: str) -> None:
    result = results[f"{algorithm} {engine}"]
    check(result)
    exchange = ["helpers.nearest: _to_copy"] if algorithm == "fedmatch" else []  # who helps whom, before round 2
    assert result["reads"] == [LOG, exchange + LOG]


@pytest.mark.parametrize("option", OPTIONS)
def test_options(results: dict, option: str) -> None:
    check(results[option])
    assert results[option]["reads"] == [LOG, LOG]


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_a_local_step_copies_nothing_to_the_device(results: dict, engine: str) -> None:
    """Three times the steps, as many copies: indices and random numbers go there once a block."""
    few, many = results[f"1 epoch {engine}"], results[f"3 epochs {engine}"]
    check(many)
    assert few["uploads"] == many["uploads"]


def test_client_state_in_main_memory_is_written_once_a_client_or_stack(results: dict) -> None:
    check(results["client_state=cpu"])
    assert results["client_state=cpu"]["reads"] == [["memory.put: _to_copy", *LOG]] * 2


def test_skip_reads_what_each_client_says_of_its_labels_the_stacks_update_and_who_is_left_out(results: dict) -> None:
    check(results["skip"])
    labels, update = ["skipping.relabel: _local_scalar_dense"] * 3, ["skipping.faults_of: _to_copy"]
    assert results["skip"]["reads"] == [[*labels, *update, "server._leave_out: _to_copy", *LOG]] * 2


def test_a_loss_that_reads_is_found(results: dict) -> None:
    steps = sum(n // tiny.LOCAL.batch_labeled for n in tiny.LABELED)
    assert results["item"]["reads"] == [["seats.loss: _local_scalar_dense"] * steps + LOG] * 2
    assert results["mask"]["reads"] == [["seats.loss: index"] * 2 * steps + LOG] * 2
    assert ".item()" in results["item stacked"]["error"]


@pytest.mark.parametrize(("case", "place"), [("on host", "seats.loss"), ("on host stacked", "seats._losses")])
def test_a_tensor_left_on_the_cpu_is_found(results: dict, case: str, place: str) -> None:
    assert results[case]["error"].startswith(f"{place}: mul: expected all tensors to be on one device")
