"""Large products are float32 whichever library makes them, and nothing of the choice stays behind."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fedshvr.compute import products

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
    assert not products.onednn_is_better(of(tmp_path / "cpuinfo", vendor, flag))
    assert not products.onednn_is_better(tmp_path / "none")
    assert OPTIONS.fp32_precision == "none"


def test_the_products_are_float32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the CPU has a unit for bfloat16, which "or better" would let oneDNN use."""
    better = products.onednn_is_better(of(tmp_path / "cpuinfo", "AuthenticAMD", "avx512f"))
    monkeypatch.setattr(products, "onednn_is_better", lambda: better)
    rng = torch.Generator().manual_seed(0)
    a, b = torch.randn(64, 784, generator=rng), torch.randn(784, 1500, generator=rng)
    exact = a.double() @ b.double()
    with products.large_products() as onednn:
        assert onednn == better
        assert OPTIONS.fp32_precision == ("bf16" if better else "none")
        assert float((a @ b - exact).abs().max() / exact.abs().max()) < 3e-6
    assert OPTIONS.fp32_precision == "none"


def test_the_choice_ends_with_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "onednn_is_better", lambda: True)
    with products.large_products(), products.large_products():
        assert OPTIONS.fp32_precision == "bf16"
    assert OPTIONS.fp32_precision == "none"
    with pytest.raises(KeyError), products.large_products():
        raise KeyError
    assert OPTIONS.fp32_precision == "none"


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "onednn_is_better", lambda: True)
    OPTIONS.fp32_precision = "ieee"
    with products.large_products() as onednn:
        assert not onednn
        assert OPTIONS.fp32_precision == "ieee"
    assert OPTIONS.fp32_precision == "ieee"


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [10, 200])
def test_a_stack_is_multiplied_client_by_client_or_at_once(
    rows: int, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small weight at once on any CPU, a larger one client by client where oneDNN is better."""
    rng = torch.Generator().manual_seed(0)
    x, flat = torch.randn(3, 16, 100, generator=rng), torch.randn(3, 7 + rows * 100, generator=rng)
    weight, b = flat[:, 7:].view(3, rows, 100), torch.randn(3, rows, generator=rng) if bias else None
    made = []
    for better in (False, True):
        monkeypatch.setattr(products, "onednn_is_better", lambda better=better: better)
        made.append(products.affine(x, weight, b))
    by_hand = torch.stack([torch.nn.functional.linear(x[k], weight[k], None if b is None else b[k]) for k in range(3)])
    torch.testing.assert_close(made, [by_hand, by_hand], rtol=1e-5, atol=1e-4)
    assert rows > 10 or torch.equal(*made)


def test_a_stack_that_is_learned_has_its_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "onednn_is_better", lambda: True)
    x, weight = torch.ones(2, 3, 100), torch.ones(2, 100, 100, requires_grad=True)
    (grad,) = torch.autograd.grad(products.affine(x, weight, None).sum(), weight)
    torch.testing.assert_close(grad, torch.full_like(grad, 3.0))
