"""Large products are float32 whichever library makes them, and nothing of the choice stays behind."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fedshvr.compute import cpu

OPTIONS = torch.backends.mkldnn.matmul
SERVER = "vendor_id : {}\nflags : fpu avx2 {} sse\n"


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    before = OPTIONS.fp32_precision
    yield
    OPTIONS.fp32_precision = before


def of(path: Path, vendor: str, flag: str) -> Path:
    path.write_text(SERVER.format(vendor, flag))
    return path


@pytest.mark.parametrize(("vendor", "flag"), [("GenuineIntel", "avx512f"), ("AuthenticAMD", "avx")])
def test_other_cpus_keep_their_library(vendor: str, flag: str, tmp_path: Path) -> None:
    assert not cpu.onednn_is_better(of(tmp_path / "cpuinfo", vendor, flag))
    assert not cpu.onednn_is_better(tmp_path / "none")
    assert OPTIONS.fp32_precision == "none"


def test_the_products_are_float32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the CPU has a unit for bfloat16, which "or better" would let oneDNN use."""
    better = cpu.onednn_is_better(of(tmp_path / "cpuinfo", "AuthenticAMD", "avx512f"))
    monkeypatch.setattr(cpu, "onednn_is_better", lambda: better)
    rng = torch.Generator().manual_seed(0)
    a, b = torch.randn(64, 784, generator=rng), torch.randn(784, 1500, generator=rng)
    exact = a.double() @ b.double()
    with cpu.large_products():
        assert OPTIONS.fp32_precision == ("bf16" if better else "none")
        assert float((a @ b - exact).abs().max() / exact.abs().max()) < 3e-6
    assert OPTIONS.fp32_precision == "none"


def test_the_choice_ends_with_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "onednn_is_better", lambda: True)
    with cpu.large_products(), cpu.large_products():
        assert OPTIONS.fp32_precision == "bf16"
    assert OPTIONS.fp32_precision == "none"
    with pytest.raises(KeyError), cpu.large_products():
        raise KeyError
    assert OPTIONS.fp32_precision == "none"


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "onednn_is_better", lambda: True)
    OPTIONS.fp32_precision = "ieee"
    with cpu.large_products():
        assert OPTIONS.fp32_precision == "ieee"
    assert OPTIONS.fp32_precision == "ieee"
