"""The benchmarks run, at sizes that mean nothing; no time is asserted."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

BENCHMARKS = ROOT / "benchmarks"


def bench(out: Path, *arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(BENCHMARKS / "bench.py"), "--quick", "--repeats=2", f"--out={out}", *arguments]
    return subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict:
    out = tmp_path_factory.mktemp("bench") / "results.json"
    done = bench(out, "--only=mlp,tiny,control_variates,fed_shvr,scaling,accuracy,profile")
    assert done.returncode == 0, done.stderr
    assert "mlp, one process" in done.stdout
    return json.loads(out.read_text())


def test_every_contestant_is_compared_with_the_bare_loop(results: dict) -> None:
    for name in ("mlp", "tiny"):
        row = results["rows"][name]
        assert {"ours", "epoch", "sequential", "floor"} <= row.keys()
        assert row["seconds"].keys() == {"bare", "floor", "ours", "sequential", "epoch"}
        assert row["engine"] in ("sequential", "vectorized")
        assert row["epoch"] > row["ours"] > 0


def test_results_name_what_they_were_measured_on(results: dict) -> None:
    assert results["machine"].keys() == {"cpu", "cores", "system", "python"}
    assert results["versions"].keys() == {"torch", "lightning"}
    assert {"control_variates", "fed_shvr", "fed_shvr_translate2", "scaling"} <= results["rows"].keys()
    for shares in results["rows"]["profile"].values():
        assert sum(shares.values()) == pytest.approx(1)


def test_the_bare_loop_with_our_draws_ends_where_we_do(results: dict) -> None:
    row = results["rows"]["accuracy"]
    assert 0 < row["theta_difference"] < 1e-5
    assert row["ours"] == pytest.approx(row["bare_our_draws"], abs=0.01)


def test_the_floor_makes_the_step_of_autograd() -> None:
    code = """
import torch, loops
work = loops.WORKLOADS["tiny"].shrunk()
x, y = loops.synthetic(work)
index = loops.shuffled(work)(0, 0)
bare, floor = (kind(work, x[:1], y[:1], loops.network(work)) for kind in (loops.BareLoop, loops.Floor))
bare.train(x[0], y[0], index)
floor.theta_k.copy_(floor.theta)
for i in index:
    floor.step(floor.x[0, i], floor.y[0, i])
theta = torch.cat([p.detach().flatten() for p in bare.model.parameters()])
assert not torch.equal(theta, floor.theta) and torch.allclose(theta, floor.theta_k, atol=1e-6)
"""
    subprocess.run([sys.executable, "-c", code], cwd=BENCHMARKS, check=True)


def test_an_unknown_case_is_refused(tmp_path: Path) -> None:
    done = bench(tmp_path / "results.json", "--only=nonsense")
    assert done.returncode == 1
    assert done.stderr.startswith("error: --only nonsense: must be some of mlp, tiny,")
