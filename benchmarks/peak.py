"""Peak resident memory of two rounds of one local step a client in one process: peak.py <clients> <hidden> <method>."""

import json
import resource
import sys
import tempfile
from pathlib import Path

import torch
from loops import MNIST, Workload, network, synthetic
from ours import federated, here

from fedshvr.compute.cpu import keep_freed_memory
from fedshvr.rounds.options import Compute
from fedshvr.running.folder import peak_rss_mb

CEILING = 12 << 30  # bytes of address space: a run that wants more ends here, before the machine does


def main(clients: int, hidden: int, method: str) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (CEILING, CEILING))
    torch.set_num_threads(1)
    keep_freed_memory()  # as src/train.py does
    work = Workload("peak", clients, 32, MNIST, hidden, 32)
    module = federated(work, *synthetic(work), network(work), method)
    module.compute = Compute(engine="sequential", client_state="disk")
    with tempfile.TemporaryDirectory() as folder:
        module.state_folder = Path(folder)
        seconds = here(module, 2)
    print(json.dumps({"peak_gb": peak_rss_mb() / 2**10, "seconds": seconds[-1]}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
