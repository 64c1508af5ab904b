"""Puts src/ on the path, and imports fedshvr before lightning (see fedshvr.torchvision_compat): import this first."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

import fedshvr  # noqa: E402, F401
