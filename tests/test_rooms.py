"""The rooms of the package: imports point one way, names are unique, files and constructors stay small."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT

PACKAGE = ROOT / "src" / "fedshvr"
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")
# Each may import from those before it and from itself; errors.py, a leaf, from nowhere and by all.
ROOMS = ["compute", "models", "algorithms", "federation", "data", "rounds", "running", "reporting"]
LEAVES = ["errors", "places", "torchvision_compat"]
DOORS = ["library", "cli"]  # what users call: from all rooms, and no room from them


def name(path: Path) -> str:
    return str(path.relative_to(PACKAGE).with_suffix(""))


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path) -> Iterator[str]:
    """The rooms that a file imports from, also within functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            if node.module == "fedshvr":
                yield from (alias.name for alias in node.names)
            elif node.module and node.module.startswith("fedshvr."):
                yield node.module.split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("fedshvr."))


@pytest.mark.parametrize("path", FILES, ids=name)
def test_imports_point_one_way(path: Path) -> None:
    own = room(path)
    order = [*ROOMS, *DOORS]
    allowed = set(LEAVES) if own in LEAVES else {*LEAVES, *order[: order.index(own) + 1]}
    assert set(imported(path)) <= allowed


def test_no_two_modules_share_a_name() -> None:
    folders = [path.name for path in PACKAGE.rglob("*") if path.is_dir() and path.name != "__pycache__"]
    counted = Counter([*(path.stem for path in FILES), *folders])
    assert {stem for stem, number in counted.items() if number > 1} == set()


@pytest.mark.parametrize("path", FILES, ids=name)
def test_files_are_short(path: Path) -> None:
    most = 120 if room(path) == "algorithms" else 300
    assert len(path.read_text().splitlines()) <= most


def parameters(node: ast.ClassDef) -> int:
    """Of the constructor; a dataclass or named tuple has its fields."""
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            return len(item.args.args) + len(item.args.kwonlyargs) - 1
    made = [ast.unparse(part) for part in (*node.decorator_list, *node.bases)]
    return (
        sum(isinstance(item, ast.AnnAssign) for item in node.body)
        if re.search("dataclass|NamedTuple", " ".join(made))
        else 0
    )


# Records that list settings or what a page shows: nine or ten fields, most with a default, always given by name.
RECORDS = {"LocalSGD", "Recipe", "Item"}


@pytest.mark.parametrize("path", FILES, ids=name)
def test_constructors_have_few_parameters(path: Path) -> None:
    classes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]
    assert {node.name for node in classes if parameters(node) > 8} <= RECORDS


def test_the_tests_mirror_the_rooms() -> None:
    folders = {
        path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and not path.name.startswith(("_", "."))
    }
    assert folders <= set(ROOMS)


def test_the_page_of_the_architecture_names_what_there_is() -> None:
    """Every `file.py`, `room/` and `Class.method` of docs/architecture.md exists, and every room is there."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    names = set(re.findall(r"`([^`\n]+)`", text))
    sources = {name(path): path.read_text() for path in FILES}
    for path in {n for n in names if re.fullmatch(r"[\w/]+\.py", n)}:
        assert (ROOT / path).is_file() or any(f"/{known}".endswith(f"/{path[:-3]}") for known in sources), path
    for folder in {n for n in names if re.fullmatch(r"\w+/", n)}:
        assert (PACKAGE / folder).is_dir() or (ROOT / folder).is_dir(), folder
    assert {f"{folder}/" for folder in ROOMS} <= names
    for owner, member in {tuple(n.split(".")) for n in names if re.fullmatch(r"[A-Z]\w+\.\w+", n)}:
        found = [text for text in sources.values() if re.search(rf"^class {owner}\b", text, re.MULTILINE)]
        assert len(found) == 1, owner
        assert re.search(rf"\b{member}\b", found[0]), f"{owner}.{member}"
