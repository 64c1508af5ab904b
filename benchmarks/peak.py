"""Peak resident memory of two rounds of one local step a client: peak.py <clients> <hidden> <control variates? 0|1>."""

import json
import resource
import sys
import tempfile
from pathlib import Path

import torch
from loops import MNIST, Workload, network, synthetic
from ours import federated, trainer

from fedshvr.corrections import ControlVariates

CEILING = 12 << 30  # bytes of address space: a run that wants more ends here, before the machine does


def main(clients: int, hidden: int, corrected: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (CEILING, CEILING))
    torch.set_num_threads(1)
    work = Workload("peak", clients, 32, MNIST, hidden, 32)
    options = {"correction": ControlVariates(), "client_state": "disk"} if corrected else {}
    module = federated(work, *synthetic(work), network(work), **options)
    with tempfile.TemporaryDirectory() as folder:
        module.state_folder = Path(folder)
        trainer(max_epochs=2, default_root_dir=folder).fit(module)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    print(json.dumps({"peak_gb": peak / 2**30, "seconds": module.row["seconds"]}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
