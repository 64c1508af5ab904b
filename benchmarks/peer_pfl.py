"""FedAvg with pfl-research, a round of the bare loop between its rounds: peer_pfl.py mlp 5 0 (or under torchrun)."""

import logging
import sys
import time

import torch
from loops import Workload, chosen, network, report, stick, synthetic
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops.selector import get_framework_module
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from timing import Contestant
from torch import Tensor, nn

logging.disable(logging.WARNING)


class Classifier(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.net(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        return {"loss": Weighted(float(self.loss(x, y)) * len(y), len(y))}


class Between(TrainingProcessCallback):
    """Times each central iteration, then lets the bare loop make a round."""

    def __init__(self, bare: Contestant | None) -> None:
        self.bare = bare
        self.seconds: dict[str, list[float]] = {"bare": [], "peer": []}

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        self.started = time.perf_counter()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self.seconds["peer"].append(time.perf_counter() - self.started)
        self.seconds["bare"].append(self.bare.round() if self.bare else 0.0)
        self.started = time.perf_counter()
        return False, Metrics()


def measure(work: Workload, repeats: int) -> None:
    x, y = synthetic(work)
    used = work.steps * work.batch
    users = {str(k): PyTorchTensorDataset((x[k, :used], y[k, :used])) for k in range(work.clients)}
    data = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(users)))
    net = Classifier(network(work))
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    first = get_framework_module().distributed.global_rank == 0
    between = Between(stick("bare", work) if first else None)
    FederatedAveraging().run(
        NNAlgorithmParams(repeats + 1, repeats + 2, work.clients, 0),
        SimulatedBackend(data, data),
        model,
        NNTrainHyperParams(local_batch_size=work.batch, local_num_epochs=1, local_learning_rate=work.eta),
        NNEvalHyperParams(local_batch_size=None),
        [between],
    )
    if between.bare:
        between.bare.close()
        report(between.seconds, "pfl")


if __name__ == "__main__":
    torch.set_num_threads(1)
    measure(*chosen(sys.argv))
