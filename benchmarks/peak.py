"""Peak resident memory of two rounds of one local step a client: peak.py <clients> <hidden> <control variates? 0|1>."""

import json
import resource
import sys
import tempfile
from pathlib import Path

import torch
from loops import MNIST, Workload, network, synthetic
from ours import federated, trainer

from fedshvr.algorithms.corrections import ControlVariates
from fedshvr.compute.cpu import keep_freed_memory
from fedshvr.running.folder import peak_rss_mb

CEILING = 12 << 30  # bytes of address space: a run that wants more ends here, before the machine does


def main(clients: int, hidden: int, corrected: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (CEILING, CEILING))
    torch.set_num_threads(1)
    keep_freed_memory()  # as src/train.py does
    work = Workload("peak", clients, 32, MNIST, hidden, 32)
    options = {"correction": ControlVariates(), "client_state": "disk"} if corrected else {}
    module = federated(work, *synthetic(work), network(work), **options)
    with tempfile.TemporaryDirectory() as folder:
        module.state_folder = Path(folder)
        trainer(max_epochs=2, default_root_dir=folder).fit(module)
    print(json.dumps({"peak_gb": peak_rss_mb() / 2**10, "seconds": module.row["seconds"]}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
