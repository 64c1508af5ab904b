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


def in_benchmarks(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], cwd=BENCHMARKS, check=True)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict:
    out = tmp_path_factory.mktemp("bench") / "results.json"
    done = bench(out, "--only=mlp,accuracy,profile,rules")
    assert done.returncode == 0, done.stderr
    assert "mlp, one process" in done.stdout
    return json.loads(out.read_text())


def test_every_contestant_is_compared_with_the_bare_loop(results: dict) -> None:
    rows = results["rows"]
    assert {"mlp", "mlp_one", "mlp_sequential", "mlp_floor", "mlp_epoch"} <= rows.keys()
    for name in ("mlp", "mlp_one", "mlp_floor"):
        low, high = rows[name]["quartiles"]
        assert 0 < low <= rows[name]["ours"] <= high
        assert rows[name]["repeats"] == 2
    assert rows["mlp_epoch"]["seconds"]["epoch"] > rows["mlp"]["seconds"]["ours"]
    assert rows["mlp"]["engine"] in ("sequential", "vectorized")
    assert rows["mlp"]["layout"].startswith("1 process")  # the rule on a small round, not an option, decided


def test_results_name_what_they_were_measured_on(results: dict) -> None:
    assert results["machine"].keys() == {"cpu", "cores", "system", "python", "load"}
    assert results["versions"].keys() == {"torch", "lightning"}
    assert results["shares"].keys() == results["rows"].keys()
    assert all(0 <= s["others"] <= 1 and 0 <= s["stolen"] <= 1 for s in results["shares"].values())
    for shares in results["rows"]["profile"].values():
        assert sum(shares.values()) == pytest.approx(1)


def test_two_processes_are_compared_with_one(results: dict) -> None:
    (line,) = results["rows"]["rules"]["processes"]
    assert line["gflop"] == pytest.approx(6 * 10 * 32 * (784 * 8 + 8 * 10) / 1e9)
    assert line["seconds"].keys() == {"1", "2"}


def test_the_bare_loop_with_our_draws_ends_where_we_do(results: dict) -> None:
    row = results["rows"]["accuracy"]
    assert 0 < row["theta_difference"] < 1e-5
    assert row["ours"] == pytest.approx(row["bare_our_draws"], abs=0.01)


@pytest.mark.slow
def test_the_other_cases_run(tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    done = bench(out, "--only=tiny,laptop,paper,control_variates,cnn13,clients,start_up,fed_shvr,memory,curves")
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())["rows"]
    assert {
        "tiny",
        "laptop",
        "paper",
        "control_variates",
        "cnn13_steps",
        "scaling",
        "first_step",
        "fed_shvr",
        "memory",
    } <= found.keys()
    assert {"clients", "parameters", "samples", "cores, mlp"} <= found["curves"].keys()


def test_the_floor_makes_the_step_of_autograd() -> None:
    in_benchmarks("""
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
""")


def test_the_bare_loop_of_fed_shvr_ends_where_we_do() -> None:
    """A client has one labelled and one unlabelled sample, so that every draw gives the same batch."""
    in_benchmarks("""
import torch, loops
from ours import federated, here
work = loops.Workload("one of each", 3, 2, (1, 4, 4), 5, 2, eta=0.1, epochs=6, labeled=1)
x, y = loops.synthetic(work)
bare, module = loops.BareShvr(work, x, y, loops.network(work)), federated(work, x, y, loops.network(work), "fed_shvr")
here(module, 3)
assert module.plan.tau == [3, 3, 3]
for _ in range(3):
    bare.round()
theta, ours = torch.cat([p.flatten() for p in bare.theta]), module.theta.detach()
start = torch.cat([p.detach().flatten() for p in loops.network(work).parameters()])
assert (theta - start).abs().max() > 0.01 and torch.allclose(theta, ours, atol=1e-6), (theta - ours).abs().max()
""")


def test_translation_moves_by_whole_pixels_with_reflected_borders() -> None:
    in_benchmarks("""
import torch, loops
image = torch.arange(16.0).view(1, 1, 4, 4)
moved = loops.translated(image.repeat(200, 1, 1, 1), 1)
padded = torch.nn.functional.pad(image, [1] * 4, mode="reflect")
wanted = {tuple(padded[0, 0, i : i + 4, j : j + 4].flatten().tolist()) for i in range(3) for j in range(3)}
assert {tuple(one.flatten().tolist()) for one in moved} == wanted
""")


def test_least_operations_of_the_papers_round() -> None:
    """10 clients x 371 steps x 64 samples x (4 x 3,970,000 + 2 x 50,000), and 59,400 labels x 2 x 3,970,000."""
    in_benchmarks("""
import loops
assert loops.least_operations(loops.PAPER) == 3_794_291_200_000 + 471_636_000_000  # 4.26 TFLOP
""")


def test_the_exponent_of_a_power_law() -> None:
    in_benchmarks("""
from curves import exponent
x = [10, 100, 1_000]
assert abs(exponent(x, [3 * v**1.5 for v in x]) - 1.5) < 1e-12
""")


def test_the_page_and_its_figures_are_written_from_the_results(tmp_path: Path) -> None:
    row = {"ours": 0.25, "quartiles": [0.24, 0.27]}
    curve = {"x": [10, 100], "seconds": [1.0, 2.0], "quartiles": [[0.9, 1.1], [1.9, 2.2]], "exponent": 0.3, "last": 0.3}
    rules = {
        "engine": [{"network": "784-8-10", "ratio": {"2": 0.5}}],
        "processes": [{"network": "784-8-10", "gflop": 1.0, **row, "later": 0.5, "run": None}],
    }
    rows = {"mlp": row, "mlp_floor": row, "rules": rules, "curves": {"samples": {**curve, "setup": [0.1, 1.0]}}}
    machine = {"cpu": "", "cores": 2, "system": "", "python": "", "load": 0.1}
    given = {"machine": machine, "versions": {"torch": "", "lightning": ""}, "rows": rows}
    given["shares"] = {"mlp": {"others": 0.02, "stolen": 0.01}}
    (tmp_path / "results.json").write_text(json.dumps(given))
    in_benchmarks(f"""
import json, pathlib, figures, page
folder = pathlib.Path({str(tmp_path)!r})
text = page.PAGE.read_text()
page.PAGE, figures.FOLDER = folder / "page.md", folder
page.PAGE.write_text(text)
page.write_page(json.loads((folder / "results.json").read_text()))
""")
    text = (tmp_path / "page.md").read_text()
    assert "| mlp | 0.25x | 0.24 to 0.27 | 0.25 | 0.30x | 0.55 (reported), pfl-research, 2 processes | 3% |" in text
    assert "| 784-8-10 | 0.50 |" in text
    assert "| 784-8-10 | 1 | 0.25 | 0.24 to 0.27 | 0.50 | never |" in text
    assert "| samples | 10: 1, 100: 2 | 0.30 | 0.30 |" in text
    assert "| samples, set-up | 10: 0.1, 100: 1 | 1.00 | 1.00 |" in text
    assert (tmp_path / "performance.png").exists()
    assert (tmp_path / "scaling.png").exists()
    for name in ("facts", "goals", "further", "peers", "profile", "curves", "engines", "processes"):
        assert f"<!-- {name} -->" in text
        assert f"<!-- /{name} -->" in text


def test_an_unknown_case_is_refused(tmp_path: Path) -> None:
    done = bench(tmp_path / "results.json", "--only=nonsense")
    assert done.returncode == 1
    assert done.stderr.startswith("error: --only nonsense: must be some of mlp, tiny,")
