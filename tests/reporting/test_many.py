"""A sweep folder with 2,000 jobs: what looks at all of them takes time in proportion to their number."""

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from fabricate import curves, make_config, write_run
from omegaconf import OmegaConf

from fedshvr.reporting.build import report
from fedshvr.reporting.sweeps import CONFIGS
from fedshvr.running.folder import finished_before
from fedshvr.running.sweep_end import SweepEnd, end, jobs

FEW, MANY = 100, 2000


def make_jobs(folder: Path, number: int) -> Path:
    where = {"experiment": "digits", "algorithm": "fed_shvr"}
    for seed in range(number):
        config = make_config(where, seed, "smoke", "adhoc")
        write_run(folder / "multiruns" / "adhoc" / f"seed={seed}", config | {"rounds": 5}, curves(where, seed, 5))
    return folder


def seconds(work: Callable[[], object]) -> float:
    """Of this process: others do not count."""
    started = time.process_time()
    work()
    return time.process_time() - started


@pytest.mark.slow
def test_two_thousand_jobs_cost_in_proportion(tmp_path: Path) -> None:
    costs: dict[str, list[float]] = {"begin": [], "end": [], "next": [], "report": []}
    for number in (FEW, MANY):
        logs = make_jobs(tmp_path / str(number), number)
        sweep = logs / "multiruns" / "adhoc"
        cfg = SimpleNamespace(hydra=SimpleNamespace(sweep=SimpleNamespace(dir=str(sweep))))
        costs["begin"].append(seconds(lambda cfg=cfg: SweepEnd().on_multirun_start(cfg)))  # type: ignore[misc]
        costs["end"].append(seconds(lambda sweep=sweep: [end(job) for job in jobs(sweep)]))  # type: ignore[misc]
        costs["next"].append(seconds(lambda sweep=sweep: finished_before(sweep / "seed=0", {})))  # type: ignore[misc]
        options = {"logs": str(logs), "out": str(tmp_path / f"out{number}"), "results": "none", "wandb": False}
        whole = OmegaConf.merge(OmegaConf.load(CONFIGS / "report.yaml"), options)
        costs["report"].append(seconds(lambda whole=whole: report(whole)))  # type: ignore[arg-type, misc]
    print({name: [round(s, 3) for s in pair] for name, pair in costs.items()})
    for name in ("begin", "end", "report"):
        few, many = costs[name]
        assert many < 3 * MANY / FEW * max(few, 0.01), name
    assert costs["next"][1] < 0.1  # its own folder alone
    assert costs["begin"][1] < 2
