"""The numbers of short runs are those of tests/recorded.json: see tests/record.py for when bit for bit."""

import json
from pathlib import Path

import pytest
from record import FILE, agrees, cases, made

RECORDED = json.loads(FILE.read_text())
QUICK = ("fed_shvr", "fed_shvr, sequential", "participation", "resumed", "fed_mt", "fedmatch, sequential", "median")
QUICK += ("grouping, participation", "disk", "cnn13, local buffers")


@pytest.mark.parametrize("case", [pytest.param(c, marks=() if c in QUICK else pytest.mark.slow) for c in cases()])
def test_the_numbers_are_those_recorded(case: str, tmp_path: Path) -> None:
    agreed = agrees(case, made(case, tmp_path), RECORDED)
    if agreed is None:
        pytest.skip("recorded in float32 on another kind of machine")
    assert agreed
