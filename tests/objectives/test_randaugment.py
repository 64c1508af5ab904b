import pytest
import torch
from torch import Tensor

from fedshvr.data.augment import Augment, Shift
from fedshvr.data.randaugment import CHANGES, RandAugment

PLAIN = RandAugment(Augment())


def images(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


def numbers(name: str, strength: float, square: tuple[float, float, float] = (0, 0.5, 0.5)) -> Tensor:
    """One image's numbers: this change once, with a strength in [-1, 1], then this square (size, y, x)."""
    which = (CHANGES.index(name) + 0.5) / len(CHANGES)
    return torch.tensor([[which, 0, (strength + 1) / 2, 0.5, *square]], dtype=torch.float64)


def changed(x: Tensor, name: str, strength: float) -> Tensor:
    return PLAIN.apply(x, numbers(name, strength))


@pytest.mark.parametrize("name", CHANGES[1:])
def test_no_strength_is_no_change_and_full_strength_is_one(name: str) -> None:
    x = images(1, 3, 10, 10)
    torch.testing.assert_close(changed(x, name, 0), x, rtol=0, atol=1e-12)
    assert (changed(x, name, 1) - x).abs().mean() > 0.01


def test_changes_by_hand() -> None:
    """An image of values 0 .. 1 of side 10: 30 % is 3 pixels."""
    x = torch.arange(100, dtype=torch.float64).view(1, 1, 10, 10) / 99
    torch.testing.assert_close(changed(x, "translate_x", 1)[..., :7], x[..., 3:])
    torch.testing.assert_close(changed(x, "translate_x", 1)[..., 7:], x[..., 9:].expand(-1, -1, -1, 3))
    torch.testing.assert_close(changed(x, "translate_y", -1)[..., 3:, :], x[..., :7, :])
    torch.testing.assert_close(changed(x, "brightness", 1), 0.1 * x)
    torch.testing.assert_close(changed(x, "contrast", -1), 0.1 * x + 0.9 * 0.5)
    torch.testing.assert_close(changed(x, "solarize", 0.25), torch.where(x >= 0.75, 1 - x, x))
    torch.testing.assert_close(changed(x, "posterize", 1), x.round())
    assert len(changed(x, "posterize", 1e-3).unique()) == 16


def test_rotation_keeps_the_centre_and_turns_a_line() -> None:
    """A horizontal line through the centre, turned by 30 degrees, leaves the middle row on both sides."""
    x = torch.zeros(1, 1, 21, 21, dtype=torch.float64)
    x[..., 10, :] = 1
    turned = changed(x, "rotate", 1)
    torch.testing.assert_close(turned[0, 0, 10, 10], x[0, 0, 10, 10])
    peak = turned[0, 0].argmax(0)
    assert abs(int(peak[17]) - int(peak[3])) == 8  # 14 tan 30 = 8.08


def test_cutout_is_a_square() -> None:
    """Size 1 is half of the side: 5 x 5 of 10 x 10; at a corner a quarter of it is left."""
    x = images(1, 2, 10, 10)
    for centre, zeros in (((0.45, 0.45), 25), ((0.0, 0.0), 4)):
        cut = PLAIN.apply(x, numbers("identity", 0, (0.999, *centre))) == 0
        assert cut[0, 0].sum() == zeros
        assert cut.any(-1).sum() * cut.any(-2).sum() == 4 * zeros  # both channels: a full rectangle


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (1, 28, 20)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_each_image_depends_on_its_own_numbers_alone(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    strong = RandAugment(Shift(2))
    x = images(40, *shape, dtype=dtype)
    uniform = torch.rand(40, strong.numbers, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = strong.apply(x, uniform)
    assert y.shape == x.shape
    assert y.dtype == dtype
    assert torch.equal(y, strong.apply(x, uniform))
    torch.testing.assert_close(y[7:8], strong.apply(x[7:8], uniform[7:8]))
    low, high = x.amin((1, 2, 3), keepdim=True), x.amax((1, 2, 3), keepdim=True)
    assert ((y >= low - 1e-5) & (y <= high + 1e-5)).all()
    assert ((y - x).abs().flatten(1).amax(1) > 1e-3).double().mean() > 0.9


def test_a_constant_image_stays_finite() -> None:
    uniform = torch.rand(50, PLAIN.numbers, generator=torch.Generator().manual_seed(2))
    assert PLAIN.apply(torch.full((50, 1, 8, 8), 2.0), uniform).isfinite().all()
