"""Compiled losses train the same model; the backends here need neither a compiler nor a GPU."""

from collections.abc import Callable

import pytest
import torch
from conftest import SMALL
from methods import MADE
from tiny import federated, fit
from torch._dynamo import register_backend

from fedshvr.algorithms.aggregation import Normalized
from fedshvr.algorithms.corrections import ControlVariates
from fedshvr.errors import UserError


@pytest.fixture(autouse=True)
def no_trace() -> None:
    """Nothing compiled for one test is found by the next."""
    torch._dynamo.reset()


@pytest.mark.parametrize("name", ["supervised", "soft", "soft_stepwise", "teacher_client", "fixmatch"])
def test_compiled_is_eager(name: str) -> None:
    eager, compiled = (
        fit(MADE[name](), ControlVariates(), Normalized(), compile=backend) for backend in (None, "aot_eager")
    )
    torch.testing.assert_close(compiled.theta, eager.theta, rtol=0, atol=1e-12)


def test_a_loss_whose_compilation_fails_runs_as_it_is(capsys: pytest.CaptureFixture) -> None:
    def failing(graph: object, inputs: object) -> None:
        raise RuntimeError("there is no compiler here")

    register_backend(failing, name="failing")
    eager, compiled = (fit(MADE["soft"](), engine="sequential", compile=backend) for backend in (None, "failing"))
    assert torch.equal(compiled.theta, eager.theta)
    assert capsys.readouterr().err.count("compile: SoftPseudoLabel runs uncompiled, because ") == 1


def test_a_loss_with_a_derivative_inside_is_refused() -> None:
    with pytest.raises(UserError, match="compile=aot_eager: VAT differentiates inside its loss"):
        fit(MADE["vat"](), compile="aot_eager")


def test_a_graph_is_really_compiled() -> None:
    from torch._dynamo.utils import counters

    counters.clear()
    fit(MADE["soft"](), compile="aot_eager")
    assert counters["stats"]["unique_graphs"] > 0


def test_the_option_of_the_command_line(train: Callable) -> None:
    assert train("compile=eager", *SMALL).summary["status"] == "finished"


def test_unknown_backends_and_engines_are_refused() -> None:
    with pytest.raises(UserError, match=r"compile=nonsense: must be one of .*inductor"):
        fit(MADE["supervised"](), compile="nonsense")
    with pytest.raises(UserError, match="compile=inductor: works with engine=sequential, not with engine=measure"):
        federated(MADE["supervised"](), compile="inductor", engine="measure")
