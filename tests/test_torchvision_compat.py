"""torchvision and lightning load beside any build of torch; each case in a fresh process, as operators are global."""

import os
import subprocess
import sys
from pathlib import Path

SRC = Path(__file__).parents[1] / "src"
DEFINE = """
import torch
def define():
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.impl(name, lambda dets, scores, iou: scores + 1, "CPU")
    return library
"""
IS_UNTOUCHED = """
from fedshvr import torchvision_compat
torchvision_compat.apply()
assert torchvision_compat._kept == []
assert torch.ops.torchvision.nms(torch.zeros(1, 4), torch.ones(1), 0.5).item() == 2
"""


def run(code: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


def test_torchvision_and_lightning_import_after_applying_twice() -> None:
    run("import fedshvr; fedshvr.torchvision_compat.apply(); import torchvision, torchvision.datasets, lightning")


def test_it_is_applied_when_torchvision_is_first_asked_for() -> None:
    run("import fedshvr; import torchvision, torchvision.datasets, lightning")
    run("import fedshvr, importlib.util; importlib.util.find_spec('torchvision'); import lightning")


def test_until_then_nothing_is_imported() -> None:
    run("import sys, fedshvr; assert not {'torch', 'torchvision', 'hydra', 'numpy'} & set(sys.modules)")


def test_existing_operators_are_left_alone() -> None:
    run(DEFINE + "library = define()" + IS_UNTOUCHED)


def test_a_torchvision_that_fits_is_left_alone() -> None:
    run(DEFINE + "kept = []; torch.ops.load_library = lambda path: kept.append(define())" + IS_UNTOUCHED)


def test_nothing_happens_without_torchvision() -> None:
    hide = "import importlib.util, torch; importlib.util.find_spec = lambda name: None\n"
    run(hide + "import fedshvr; fedshvr.torchvision_compat.apply(); assert not hasattr(torch.ops.torchvision, 'nms')")


def test_a_stub_says_what_to_install() -> None:
    run(
        """
import torch
def fail(path): raise OSError("does not fit")
torch.ops.load_library = fail
import fedshvr
fedshvr.torchvision_compat.apply()
for operator in (torch.ops.torchvision.nms, torch.ops.torchvision.qnms):
    try:
        operator(torch.zeros(1, 4), torch.zeros(1), 0.5)
    except RuntimeError as error:
        assert "install the torchvision built for torch" in str(error), error
    else:
        raise AssertionError("no error")
"""
    )
