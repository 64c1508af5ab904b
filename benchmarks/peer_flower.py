"""FedAvg with Flower's simulation, a round of the bare loop between its rounds: peer_flower.py mlp 5 0."""

import logging
import sys
import time

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from loops import Workload, bare_loop, chosen, network, report, stick

logging.disable(logging.WARNING)


def client_app(work: Workload) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        loop, k = bare_loop(work), int(context.node_config["partition-id"])
        loop.model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        loop.train(loop.x[k], loop.y[k], loop.indices(0, k))
        parts = {
            "arrays": ArrayRecord(loop.model.state_dict()),
            "metrics": MetricRecord({"num-examples": work.samples}),
        }
        return Message(RecordDict(parts), reply_to=message)

    return app


def server_app(work: Workload, repeats: int) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        bare = stick("bare", work)
        seconds: dict[str, list[float]] = {"bare": [], "peer": []}
        started = time.perf_counter()

        def between(round: int, arrays: ArrayRecord) -> None:
            nonlocal started
            if round:  # 0: before the first
                seconds["peer"].append(time.perf_counter() - started)
                seconds["bare"].append(bare.round())
            started = time.perf_counter()

        strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=work.clients)
        initial = ArrayRecord(network(work).state_dict())
        strategy.start(grid, initial, num_rounds=repeats + 1, evaluate_fn=between)
        bare.close()
        report(seconds, "flwr")

    return app


if __name__ == "__main__":
    work, repeats = chosen(sys.argv)
    one_core_each = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app(work, repeats), client_app(work), work.clients, backend_config=one_core_each)
