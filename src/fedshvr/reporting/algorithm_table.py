"""docs/algorithms.md from the files of configs/algorithm and the docstrings of the classes that they name.

PYTHONPATH=src python -m fedshvr.reporting.algorithm_table
"""

import inspect
import re
from pathlib import Path

import yaml
from hydra.utils import get_class

from fedshvr.places import CONFIGS, TREE

ALGORITHMS, PAGE = CONFIGS / "algorithm", TREE / "docs" / "algorithms.md"
PARTS = {
    "objective": "What client k minimises on its labelled data `L_k` and its others, `U_k`; `*` stops the gradient.",
    "correction": "What is added to the local gradient.",
    "aggregation": "How the clients' moves become one server step.",
}
HEAD = """# Algorithms

`algorithm=<name>` chooses a row. Each is an objective, a correction and an aggregation, and any of the three can be
exchanged: `algorithm=scaffold algorithm/objective=fixmatch`. What cannot be combined is refused with the reason.
This page is made from the files of `configs/algorithm` and the docstrings:
`PYTHONPATH=src python -m fedshvr.reporting.algorithm_table`.
"""


def page() -> str:
    algorithms = [row(path) for path in sorted(ALGORITHMS.glob("*.yaml"))]
    sections = [HEAD, table(["name", "what", *PARTS, "also"], algorithms)]
    for part, what in PARTS.items():
        sections.append(f"## {part.capitalize()}s\n\n{what}\n")
        sections += [section(path) for path in sorted((ALGORITHMS / part).glob("*.yaml"))]
    return "\n".join(sections)


def row(path: Path) -> list[str]:
    """name, reference, the three choices, and whatever else the file sets."""
    text = path.read_text()
    config = yaml.safe_load(text)
    chosen = {key: value for entry in config.pop("defaults") for key, value in entry.items()}
    triple = [f"[{chosen[part]}](#{chosen.pop(part)})" for part in PARTS]
    other = {re.sub(r"override /(\w+).*", r"\1", key): value for key, value in chosen.items()} | config
    also = " ".join(f"`{key}={str(value).lower()}`" for key, value in other.items())
    return [f"`{path.stem}`", text.splitlines()[0].removeprefix("# "), *triple, also]


def section(path: Path) -> str:
    """One objective, correction or aggregation: reference, formula, options with their defaults."""
    text = path.read_text()
    cls = get_class(yaml.safe_load(text)["_target_"])
    module = inspect.getdoc(inspect.getmodule(cls)) or ""
    reference = f"{module}\n\n" if "objectives" in cls.__module__ else ""
    made = f"### {path.stem}\n\n{reference}```\n{inspect.getdoc(cls)}\n```\n"
    found = options(text)
    return made + (f"\n{table(['option', 'default', 'meaning'], found)}" if found else "")


def options(text: str) -> list[list[str]]:
    """Name, default and comment of each option of a file; of a nested one, its own options as the default."""
    found: list[list[str]] = []
    for line in text.splitlines():
        match = re.fullmatch(r"( *)(\w+):\s*(.*?)\s*(?:#\s*(.*))?", line)
        if not match or match[2] == "_target_":
            continue
        indent, name, value, meaning = match.groups()
        if indent:
            found[-1][1] = f"{found[-1][1]} {name}={value}".strip()
        else:
            found.append([name, value, meaning or ""])
    return [[f"`{name}`", f"`{value}`", meaning] for name, value, meaning in found]


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"{PAGE.relative_to(TREE)} written")
