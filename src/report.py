"""The paper's tables and figures from the runs under logs/: python src/report.py.

Writes reports/index.html and, for each item, CSV, Markdown, LaTeX, PNG and PDF. compare=[run1,run2]
prints what differs between two runs.
"""

from fedshvr.cli import report

if __name__ == "__main__":
    report()
