"""Every table and figure of the paper in one command: python src/reproduce.py scale=laptop [options of train.py].

Runs what neither logs/ nor the committed results have, the cheap and important first; started again, it goes on.
--plan prints jobs and hours and stops; --measure times each kind of job first (results/seconds_<scale>.csv).
"""

import sys
from pathlib import Path


def main(arguments: list[str]) -> None:
    from fedshvr.errors import UserError, check
    from fedshvr.reporting.reproduce import budget, known_runs, measure, reproduce
    from fedshvr.reporting.sweeps import SCALES
    from fedshvr.reporting.tables import markdown_table

    scale = next((a.removeprefix("scale=") for a in arguments if a.startswith("scale=")), "laptop")
    train = [a for a in arguments if not a.startswith(("scale=", "--"))]
    logs, results = Path("logs"), Path("results")
    try:
        check(scale in SCALES, f"scale={scale}: must be one of {', '.join(SCALES)}")
        for flag in (a for a in arguments if a.startswith("--")):
            check(flag in ("--plan", "--measure"), f"{flag}: must be --plan or --measure")
    except UserError as error:
        sys.exit(f"error: {error}")
    if "--measure" in arguments:
        measure(scale, results, train)
    if "--plan" in arguments or "--measure" in arguments:
        print(*markdown_table(budget(scale, known_runs(logs, results), results)), sep="\n")
        return
    failed = reproduce(scale, logs, results, train)
    sys.exit(f"{failed} commands failed; the same again continues them" if failed else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
