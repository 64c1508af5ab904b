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


def check_command_line(arguments: list[str]) -> None:
    """One sentence for `group=name` where configs/group has no such name, and for a sweep of distributed jobs."""
    if "trainer=ddp" in arguments and {"-m", "--multirun"} & set(arguments):
        sys.exit(
            "error: trainer=ddp: its processes would start the whole sweep (-m) again; without it jobs take all cores "
            "of this machine, and hydra/launcher=joblib runs several at once"
        )
    for argument in arguments:
        group, _, names = argument.lstrip("+~").partition("=")
        folder = CONFIGS / group
        if not names or not group or not folder.is_dir():
            continue
        valid = sorted(f.stem for f in folder.glob("*.yaml"))
        for name in names.split(","):
            if name not in valid and name != "null":
                sys.exit(f"error: {group}={name}: must be one of {', '.join(valid)}")


@hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name="train")
def main(cfg: DictConfig) -> float | None:
    from fedshvr.running.run import run  # after the command line is known to be good: importing torch takes seconds

    return run(cfg)


if __name__ == "__main__":
    check_command_line(sys.argv[1:])
    main()
