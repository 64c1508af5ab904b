"""Train one federation: python src/train.py experiment=mnist_noniid algorithm=fed_shvr scale=laptop.

Compose the configuration, instantiate its parts, fit, and leave a summary in the run folder.
"""

import os
import sys
from pathlib import Path

import hydra
from omegaconf import DictConfig

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is loaded: threads that wait do not spin
CONFIGS = Path(__file__).resolve().parent.parent / "configs"
TRACEBACKS = os.environ.get("HYDRA_FULL_ERROR") == "1"


@hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name="train")
def main(cfg: DictConfig) -> float | None:
    from fedshvr.running.command_line import job  # not for --help: importing torch takes seconds

    return job(cfg, TRACEBACKS)


def start(arguments: list[str]) -> None:
    """Hydra with its errors in one sentence; the processes of trainer=ddp would each start a sweep again."""
    if "trainer=ddp" in arguments and {"-m", "--multirun"} & set(arguments):
        print(
            "error: trainer=ddp: its processes would start the whole sweep (-m) again; without it jobs take all cores "
            "of this machine, and hydra/launcher=joblib runs several at once",
            file=sys.stderr,
        )
        sys.exit(2)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra hands its errors on instead of printing them
    try:
        main()
    except Exception as error:
        if TRACEBACKS:
            raise
        from fedshvr.running.command_line import refuse_as_hydra

        refuse_as_hydra(error, CONFIGS, arguments)


if __name__ == "__main__":
    start(sys.argv[1:])
