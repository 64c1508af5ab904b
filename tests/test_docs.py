"""The site builds offline, with every broken link an error, and asks no other host for fonts or scripts."""

import re
import subprocess
import sys
from pathlib import Path

from conftest import ROOT


def test_the_site_builds_strictly(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", f"--site-dir={tmp_path / 'site'}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {path.parent.name: path.read_text() for path in (tmp_path / "site").glob("*/index.html")}
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} | {"gallery", "reference"} <= pages.keys()
    start = (tmp_path / "site" / "index.html").read_text()
    for text in (start, *pages.values()):
        assert not re.findall(r'<(?:script|link)[^>]+(?:src|href)="https?://[^"]+\.(?:js|css|woff2?)', text)
        assert "fonts.googleapis" not in text
    assert all(path.name in pages["gallery"] for path in (ROOT / "docs" / "img").glob("*.png"))
    assert "fedshvr.library.compose" in pages["reference"]
