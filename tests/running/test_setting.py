"""setting=text is what every experiment was; setting=closest changes what its file lists, and nothing else."""

from collections.abc import Callable
from typing import Any

import pytest
from conftest import SMALL, compose_train
from omegaconf import OmegaConf

from fedshvr.errors import UserError
from fedshvr.reporting.collect import flat


def config(*overrides: str) -> dict[str, Any]:
    return flat(OmegaConf.to_container(compose_train(*overrides)))  # type: ignore[arg-type]


SPLIT = {"partition.unlabeled_split": ("dirichlet", "sizes")}
EXPONENT = {"algorithm.objective.exponent": ("final", "current")}
LABELS = {
    "algorithm.objective.relabel": ("round", "step"),
    "algorithm.objective.label_view": ("weak", "clean"),
    "ramp.start": (0.0, 0.1),
}


@pytest.mark.parametrize("algorithm", ["fed_shvr", "fed_sh", "fed_svr", "fed_pseudo", "fedavg", "fed_mt"])
@pytest.mark.parametrize("experiment", ["mnist_iid", "mnist_noniid"])
def test_closest_changes_exactly_the_listed_options(experiment: str, algorithm: str) -> None:
    asked = (f"experiment={experiment}", f"algorithm={algorithm}")
    text, closest = (config(*asked, f"setting={name}") for name in ("text", "closest"))
    assert text == config(*asked)
    changed = {k: (text.get(k), closest.get(k)) for k in text | closest if text.get(k) != closest.get(k)}
    further = SPLIT if experiment == "mnist_noniid" else {}
    if algorithm not in ("fedavg", "fed_mt"):
        further = further | LABELS | ({} if algorithm == "fed_pseudo" else EXPONENT)
    assert changed == further | {
        "augment_labeled": (True, False),
        "client.rounding": ("floor", "ceil"),
        "client.sampling": ("replacement", "shuffle"),
    }


def test_the_command_line_goes_before_the_setting() -> None:
    mine = config("experiment=mnist_iid", "setting=closest", "client.rounding=floor", "augment=translate1")
    assert (mine["client.rounding"], mine["augment.pixels"]) == ("floor", 1)


def test_text_is_the_default_to_the_bit_and_in_the_summary(train: Callable) -> None:
    default, text = train(*SMALL, folder="a"), train(*SMALL, "setting=text", folder="b")
    assert text.theta == default.theta
    assert default.summary["config"]["choices"]["setting"] == "text"


def test_closest_is_refused_where_nothing_was_sought(train: Callable) -> None:
    with pytest.raises(
        UserError, match="setting=closest: is about the paper's MNIST experiment; must be text with data=digits"
    ):
        train("setting=closest", *SMALL)
