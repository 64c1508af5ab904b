"""Where the files are that are not Python: beside src/ in the tree, inside the package where it is installed."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
TREE = PACKAGE.parent.parent  # of a clone
INSTALLED = (PACKAGE / "configs").is_dir()
CONFIGS = (PACKAGE if INSTALLED else TREE) / "configs"
RESULTS = (PACKAGE if INSTALLED else TREE) / "results"  # the committed runs
