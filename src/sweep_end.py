"""The end of a sweep: which jobs finished, which failed and why. No heavy imports: Hydra loads it at every start."""

import json
import sys
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig


class SweepEnd(Callback):
    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        folder = Path(config.hydra.sweep.dir)
        summaries = {path.parent.name: json.loads(path.read_text()) for path in sorted(folder.glob("*/summary.json"))}
        failed = {name: s.get("error", s["status"]) for name, s in summaries.items() if s["status"] != "finished"}
        print(f"{folder}: {len(summaries) - len(failed)} jobs finished, {len(failed)} did not")
        for name, reason in failed.items():
            print(f"  {name}: {reason}")
        if failed:
            print("The same command again continues them.")
            sys.exit(1)
