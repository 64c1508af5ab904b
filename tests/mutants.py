"""make mutants: what mutmut has found, as results/mutants.csv (by file) and results/survivors.csv (by mutant).

A survivor is a change of the code that no test notices. Why that is no fault of the tests is written by hand in the
last column of survivors.csv, and kept when the same change survives again.
"""

import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
COUNTS, SURVIVORS = ROOT / "results/mutants.csv", ROOT / "results/survivors.csv"
PAGE = ROOT / "docs/reliability.md"
KILLED = (1, 3, 24, -24, 36, 152, 255)  # exit codes: a test failed, pytest ended in an error, or the time was up
Row = dict[str, str]


def main() -> None:
    reasons = {key(row): row["reason"] for row in read(SURVIVORS)} if SURVIVORS.is_file() else {}
    counts, survivors = [], []
    for meta in sorted((ROOT / "mutants").rglob("*.py.meta")):
        codes: dict[str, int | None] = json.loads(meta.read_text())["exit_code_by_key"]
        if not codes:
            continue
        file = str(meta.relative_to(ROOT / "mutants").with_suffix(""))
        lived = [name for name, code in codes.items() if code not in KILLED]
        counts.append({"file": file, "mutants": str(len(codes)), "killed": str(len(codes) - len(lived))})
        for name in lived:
            row = {"file": file, "function": function(name), **change(name)}
            survivors.append(row | {"reason": reasons.get(key(row), "")})
    write(COUNTS, counts)
    write(SURVIVORS, survivors)
    PAGE.write_text(filled(PAGE.read_text()))
    total, killed = (sum(int(row[name]) for row in counts) for name in ("mutants", "killed"))
    print(f"{killed} of {total} mutants killed ({killed / total:.1%}); {len(survivors)} survive: {SURVIVORS.name}")


def filled(page: str) -> str:
    """The page with the table of the last run."""
    rows = read(COUNTS)
    rows.append({"file": "all", **{name: str(sum(int(row[name]) for row in rows)) for name in ("mutants", "killed")}})
    lines = ["| file | mutants | killed |", "|---|---|---|"]
    for row in rows:
        share = int(row["killed"]) / int(row["mutants"])
        lines.append(f"| {row['file']} | {row['mutants']} | {row['killed']} ({share:.1%}) |")
    return re.sub(r"(?<=<!-- mutants -->\n).*?(?=<!-- /mutants -->)", "\n".join(lines) + "\n", page, flags=re.DOTALL)


def function(name: str) -> str:
    """mutmut's fedshvr.algorithms.corrections.xǁProximalǁ__init____mutmut_2 is Proximal.__init__."""
    return ".".join(re.sub(r"__mutmut_\d+$", "", name).rpartition(".x")[2][1:].split("ǁ"))


def change(name: str) -> Row:
    """The lines that a mutant takes away and those that it puts in their place."""
    command = [sys.executable, "-m", "mutmut", "show", name]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    taken, put = (
        " ".join(line[1:].strip() for line in shown if line.startswith(sign) and not line.startswith(sign * 3))
        for sign in "-+"
    )
    return {"code": taken, "mutant": put}


def key(row: Row) -> tuple[str, ...]:
    return tuple(row[name] for name in ("file", "function", "code", "mutant"))


def read(path: Path) -> list[Row]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write(path: Path, rows: list[Row]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0].keys() if rows else ["file"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path.write_text(text.getvalue())


if __name__ == "__main__":
    main()
