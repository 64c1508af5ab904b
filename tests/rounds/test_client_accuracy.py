"""client_accuracy=true: the test accuracy on each client's own classes, from that of each class."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import tiny
import torch
from conftest import SMALL
from methods import MADE
from torch import Tensor

from fedshvr.errors import UserError
from fedshvr.federation.partition import Split
from fedshvr.rounds.measures import over_clients


def test_mean_worst_tenth_and_deviation_by_hand() -> None:
    """Ten clients: the worst one. Eleven: the worst two."""
    ten = torch.tensor([0.5, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9], dtype=torch.float64)
    assert over_clients(ten) == pytest.approx([0.86, 0.5, 0.12], abs=1e-15)
    assert over_clients(torch.cat([ten, ten[:1]]))[1] == pytest.approx(0.5, abs=1e-15)
    assert over_clients(torch.cat([ten, ten[1:2]]))[1] == pytest.approx(0.7, abs=1e-15)


def test_it_is_the_accuracy_on_test_samples_in_the_clients_proportions() -> None:
    """Client 0 has classes a, b 3:1, client 1 has c alone; of 4 a, 2 b, 3 c in the test set 3, 1, 3 are right."""
    module = tiny.federated(MADE["supervised"](), client_accuracy=True)
    federation, y = module.federation, tiny.images().y
    of = [(y == c).nonzero().flatten().numpy() for c in range(3)]
    federation.splits = [Split(of[0][:2], of[0][2:3], (0,)), Split(of[2][:1], of[2][1:4], (2,))]
    federation.splits[0] = Split(of[0][:2], [*of[0][2:3], of[1][0]], (0,))
    y_test = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2, 2])
    federation.images = replace(federation.images, y_test=y_test)
    right = torch.tensor([3, 1, 3], dtype=torch.float64) / 9
    assert (federation.class_ratios() @ right).tolist() == pytest.approx([0.75 * 3 / 4 + 0.25 * 1 / 2, 1.0], abs=1e-15)


def test_a_run_logs_what_its_model_does(train: Callable) -> None:
    run = train(*SMALL, "rounds=2", "client_accuracy=true", "partition=dirichlet", folder="with")
    last, plain = run.rows[-1], train(*SMALL, "rounds=2", "partition=dirichlet", folder="without")
    assert plain.theta == run.theta
    assert "client_acc_mean" not in plain.rows[0]
    mean, worst, std = (float(last[f"client_acc_{name}"]) for name in ("mean", "worst10", "std"))
    assert worst < mean < 1
    assert std > 0
    assert run.summary["client_acc_worst10"] == worst


def test_a_client_like_the_test_set_has_its_accuracy() -> None:
    """Each class is a third of both: everybody's accuracy is test_acc."""
    module = tiny.federated(MADE["supervised"](), client_accuracy=True)
    thirds = [
        Split(torch.arange(3 * k, 3 * k + 3).numpy(), torch.empty(0, dtype=torch.long).numpy(), ()) for k in (0, 1)
    ]
    module.federation.splits = thirds
    module.class_ratios = module.federation.class_ratios()
    tiny.train(module, 1, limit_val_batches=1, num_sanity_val_steps=0)
    assert module.row["client_acc_mean"] == pytest.approx(module.row["test_acc"], abs=1e-15)
    assert module.row["client_acc_std"] == pytest.approx(0, abs=1e-15)


def test_a_class_without_test_samples_is_refused() -> None:
    data = tiny.images()
    without: Tensor = data.y_test != 1
    with pytest.raises(UserError, match="client_accuracy=true: the test set has no sample of b"):
        tiny.federated(
            MADE["supervised"](),
            data=replace(data, x_test=data.x_test[without], y_test=data.y_test[without]),
            client_accuracy=True,
        )
