"""The paper's tables and figures from the runs under logs/: python src/report.py.

Writes reports/index.html and, for each item, CSV, Markdown, LaTeX, PNG and PDF. compare=[run1,run2]
prints what differs between two runs.
"""

import sys
from pathlib import Path

import hydra
from omegaconf import DictConfig

CONFIGS = Path(__file__).resolve().parent.parent / "configs"


@hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name="report")
def main(cfg: DictConfig) -> None:
    from fedshvr.errors import UserError
    from fedshvr.reporting.build import report

    try:
        report(cfg)
    except UserError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
