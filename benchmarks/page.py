"""docs/performance.md and its figures from the results: the tables between the markers are written here."""

import re
from typing import Any

from curves import exponent
from figures import draw
from goals import FURTHER, GOALS, HEADER, NAMES, peer, rows
from loops import WORKLOADS
from source import ROOT

from fedshvr.running.profiling import PHASES

PAGE = ROOT / "docs" / "performance.md"


def markdown(header: list[str], body: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def goal_table(results: dict[str, Any]) -> str:
    return markdown(list(HEADER), [list(row) for row in rows(results, GOALS)])


def further_table(results: dict[str, Any]) -> str:
    return markdown(list(HEADER), [list(row) for row in rows(results, FURTHER)])


def peer_table(results: dict[str, Any]) -> str:
    """A row a contestant, a column a workload; what was not measured here is marked."""
    body = []
    for name in ("trainer", "flower", "pfl", "pfl2"):
        version = results.get("peers", {}).get(name, {}).get("version", "")
        cells = []
        for workload in WORKLOADS:
            found = peer(results, name, workload)
            cells.append("" if found is None else f"{found[0]:.2f}" if found[1] else f"{found[0]:.2f} (reported)")
        body.append([f"{NAMES[name]} {version}".strip(), *cells])
    for suffix, label in (
        ("_floor", "hand-written floor"),
        ("_sequential", "ours, one process, engine=sequential"),
        ("_one", "ours, one process"),
        ("_epoch", "ours with Lightning's epoch loop"),
        ("", "ours"),
    ):
        body.append([label, *(_cell(results, workload + suffix) for workload in WORKLOADS)])
    return markdown(["seconds a round / bare loop", *WORKLOADS], body)


def profile_table(results: dict[str, Any]) -> str:
    """A row a phase of the round, a column a workload and engine."""
    shares = results["rows"].get("profile", {})
    phases = [phase for phase in PHASES if any(column.get(phase, 0) >= 0.005 for column in shares.values())]
    body = [[phase, *(f"{column[phase]:.0%}" for column in shares.values()), PHASES[phase]] for phase in phases]
    return markdown(["", *shares, ""], body)


def _cell(results: dict[str, Any], name: str) -> str:
    row = results["rows"].get(name, {})
    return f"{row['ours']:.2f}" if "ours" in row else ""


def curve_table(results: dict[str, Any]) -> str:
    """A row a curve: seconds a round at each point, and the exponents."""
    body = []
    for name, found in results["rows"].get("curves", {}).items():
        points = ", ".join(f"{x:,}: {s:.3g}" for x, s in zip(found["x"], found["seconds"], strict=True))
        body.append([name, points, f"{found['exponent']:.2f}", f"{found['last']:.2f}"])
        if "setup" in found:
            points = ", ".join(f"{x:,}: {s:.3g}" for x, s in zip(found["x"], found["setup"], strict=True))
            fits = exponent(found["x"], found["setup"]), exponent(found["x"][-2:], found["setup"][-2:])
            body.append([f"{name}, set-up", points, *(f"{fit:.2f}" for fit in fits)])
    table = markdown(["against", "seconds", "exponent", "between the last two"], body)
    return f"![seconds a round as the work grows](img/scaling.png)\n\n{table}" if body else table


def engine_table(results: dict[str, Any]) -> str:
    """Seconds of the vectorised engine over those of the sequential one; below 1 stacking pays."""
    table = results["rows"].get("rules", {}).get("engine", [])
    stacks = sorted({int(n) for line in table for n in line["ratio"]})
    body = []
    for line in table:
        cells = {int(n): f"{value:.2f}" for n, value in line["ratio"].items()}
        body.append([line["network"], *(cells.get(n, "") for n in stacks)])
    return markdown(["vectorized / sequential", *(f"{n} clients" for n in stacks)], body)


def block_table(results: dict[str, Any]) -> str:
    """The first layer in blocks of steps over step by step; below 1 blocks pay."""
    table = results["rows"].get("blocks", {}).get("table", [])
    sizes = sorted({int(n) for line in table for n in line["ratio"]})
    body = [
        [line["network"], f"{line['ms']:.2f}", *(f"{line['ratio'][n]:.2f}" for n in map(str, sizes))] for line in table
    ]
    names = [f"blocks of {n}" if n > 1 else "steps that wait" for n in sizes]
    return markdown(["first layer", "ms a step", *names], body)


def process_table(results: dict[str, Any]) -> str:
    body = []
    for line in results["rows"].get("rules", {}).get("processes", []):
        run = "never" if line["run"] is None else f"{line['run']:.0f}"
        cells = [f"{line['gflop']:.2g}", f"{line['ours']:.2f}", " to ".join(f"{q:.2f}" for q in line["quartiles"])]
        body.append([line["network"], *cells, f"{line['later']:.2f}", run])
    header = [
        "network",
        "GFLOP a round",
        "two processes / one",
        "quartiles",
        "later start, s",
        "a run pays from, GFLOP",
    ]
    return markdown(header, body)


def facts(results: dict[str, Any]) -> str:
    machine, versions, measured = results["machine"], results["versions"], results["rows"]
    lines = [
        f"Measured on {machine['cores']} cores of {machine['cpu']}, {machine['system']}, Python {machine['python']}, "
        f"torch {versions['torch']}, lightning {versions['lightning']}; load average "
        f"{machine.get('load', 'unknown')} at the start."
    ]
    if row := measured.get("paper"):
        rates = " and ".join(f"{rate:.0f} GFLOP/s with {kind} on all cores" for kind, rate in row["gflops"].items())
        lines.append(
            f"The paper's size is measured with one in {row['part']} of its steps a round and of its unlabelled "
            f"samples, {row['tflop']:.2f} TFLOP at the least; large products ran at {rates}."
        )
    if row := measured.get("accuracy"):
        lines.append(
            f"Accuracy on {row['data']} after {row['rounds']} rounds of mlp: ours {row['ours']:.2%}, bare loop "
            f"{row['bare']:.2%}, bare loop with our random draws {row['bare_our_draws']:.2%} "
            f"(no parameter differs by more than {row['theta_difference']:.0e} then)."
        )
    if row := measured.get("memory"):
        lines.append(
            f"Peak memory with the 4 M parameter MLP and {row['clients']:,} clients: {row['ours']:.2f} GB with control "
            f"variates on disk, {row['fedavg_gb']:.2f} GB for FedAvg, {row['fedavg_few_gb']:.2f} GB with 10 clients."
        )
    lines += [f"{NAMES[n]}: {p['why']}" for n, p in results.get("peers", {}).items() if "why" in p]
    return "\n\n".join(lines)


BLOCKS = {
    "facts": facts,
    "goals": goal_table,
    "further": further_table,
    "peers": peer_table,
    "profile": profile_table,
    "curves": curve_table,
    "engines": engine_table,
    "processes": process_table,
    "blocks": block_table,
}


def write_page(results: dict[str, Any]) -> None:
    text = PAGE.read_text()
    for name, content in BLOCKS.items():
        block = f"<!-- {name} -->\n{content(results)}\n<!-- /{name} -->"
        text = re.sub(f"<!-- {name} -->.*<!-- /{name} -->", lambda _, b=block: b, text, flags=re.DOTALL)
    PAGE.write_text(text)
    draw(results)
