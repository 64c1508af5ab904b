"""The end of a sweep: which jobs finished, which failed and why. No heavy imports: Hydra loads it at every start."""

import json
import sys
import time
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig


class SweepEnd(Callback):
    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        self.started = time.time()

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        folder = Path(config.hydra.sweep.dir)
        paths = {path: json.loads(path.read_text()) for path in sorted(folder.glob("*/summary.json"))}
        done = [path for path, summary in paths.items() if summary["status"] == "finished"]
        now = [path for path in paths if path not in done and path.stat().st_mtime >= self.started]
        failed = {path.parent.name: paths[path].get("error", paths[path]["status"]) for path in now}
        print(f"{folder}: {len(done)} jobs finished, {len(failed)} did not")
        for name, reason in failed.items():
            print(f"  {name}: {reason}")
        if failed:
            print("The same command again continues them.")
            sys.exit(1)
