import pytest
import torch
from hand import column
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


FIXMATCH = "AutoContrast Brightness Color Contrast Equalize Identity Posterize Rotate Sharpness ShearX ShearY Solarize"


def test_the_changes_are_fixmatchs() -> None:
    published = [*FIXMATCH.split(), "TranslateX", "TranslateY"]
    assert sorted(name.replace("_", "") for name in CHANGES) == sorted(name.lower() for name in published)


@pytest.mark.parametrize("name", CHANGES[1:])
def test_no_strength_is_no_change_and_full_strength_is_one(name: str) -> None:
    """Two of them have no strength, and posterize keeps 16 values at most."""
    x = images(1, 3, 10, 10)
    if name not in ("auto_contrast", "equalize", "posterize"):
        torch.testing.assert_close(changed(x, name, 0), x, rtol=0, atol=1e-12)
    assert (changed(x, name, 1) - x).abs().mean() > 0.01


def test_changes_by_hand() -> None:
    """An image of values 0 .. 1 of side 10: 30 % is 3 pixels."""
    x = torch.arange(100, dtype=torch.float64).view(1, 1, 10, 10) / 99
    torch.testing.assert_close(changed(x, "translate_x", 1)[..., :7], x[..., 3:])
    torch.testing.assert_close(changed(x, "translate_x", 1)[..., 7:], x[..., 9:].expand(-1, -1, -1, 3))
    torch.testing.assert_close(changed(x, "translate_y", -1)[..., 3:, :], x[..., :7, :])
    torch.testing.assert_close(changed(x, "brightness", -1), 0.1 * x)
    torch.testing.assert_close(changed(x, "brightness", 1), (1.9 * x).clamp_max(1))
    torch.testing.assert_close(changed(x, "contrast", -1), 0.1 * x + 0.9 * 0.5)
    torch.testing.assert_close(changed(x, "contrast", 1), (1.9 * x - 0.9 * 0.5).clamp(0, 1))
    torch.testing.assert_close(changed(x, "solarize", -0.25), torch.where(x >= 0.75, 1 - x, x))
    torch.testing.assert_close(changed(x, "posterize", 1), x.round())
    assert len(changed(x, "posterize", 1e-3).unique()) == 16
    torch.testing.assert_close(changed(x, "color", 1), x)  # one channel is grey
    torch.testing.assert_close(changed(x, "auto_contrast", 1), x)  # and spans its own range


def test_values_are_relative_to_the_images_own_range() -> None:
    """The same image as -3 + 2 z changes as z does."""
    z = images(1, 3, 6, 6)
    z = (z - z.min()) / (z.max() - z.min())
    for name in CHANGES:
        torch.testing.assert_close(changed(2 * z - 3, name, 0.7), 2 * changed(z, name, 0.7) - 3)


def test_color_by_hand() -> None:
    """Red (1, 0, 0) is 0.299 grey; with a black and a white pixel beside it the range is 0 .. 1."""
    x = torch.tensor([[1.0, 0, 1], [0, 0, 1], [0, 0, 1]], dtype=torch.float64).view(1, 3, 1, 3)
    torch.testing.assert_close(changed(x, "color", -1)[0, :, 0, 0], column(0.1 + 0.9 * 0.299, *[0.9 * 0.299] * 2)[:, 0])
    torch.testing.assert_close(changed(x, "color", 0.5), x)  # beyond the range: cut off
    torch.testing.assert_close(changed(x, "color", -1)[0, :, 0, 1:], x[0, :, 0, 1:])


def test_auto_contrast_by_hand() -> None:
    """Channels 0 .. 1, 0.25 .. 0.5 and 0.5 alone."""
    x = torch.tensor([[0.0, 1, 0.5], [0.25, 0.5, 0.375], [0.5, 0.5, 0.5]], dtype=torch.float64).view(1, 3, 1, 3)
    expected = torch.tensor([[0.0, 1, 0.5], [0, 1, 0.5], [0.5, 0.5, 0.5]], dtype=torch.float64).view(1, 3, 1, 3)
    torch.testing.assert_close(changed(x, "auto_contrast", 0), expected)


def test_equalize_by_hand() -> None:
    """Of 8 pixels the brightest is left out: 4 black -> 0, 2 dark -> 4/7, 1 grey -> 6/7, 1 white -> 1."""
    x = torch.tensor([0.0, 0, 0, 0, 0.1, 0.1, 0.5, 1], dtype=torch.float64).view(1, 1, 2, 4)
    expected = torch.tensor([0.0, 0, 0, 0, 4, 4, 6, 7], dtype=torch.float64).view(1, 1, 2, 4) / 7
    torch.testing.assert_close(changed(x, "equalize", 0), expected)


def test_sharpness_by_hand() -> None:
    """One pixel of 1 in the middle of 5 x 5 is 5/13 when smoothed, its neighbours are 1/13; 90 % of the way."""
    x = torch.zeros(1, 1, 5, 5, dtype=torch.float64)
    x[..., 2, 2] = 1
    blurred = changed(x, "sharpness", -1)[0, 0]
    assert blurred[2, 2].item() == pytest.approx(0.1 + 0.9 * 5 / 13, abs=1e-14)
    torch.testing.assert_close(blurred[1, 1:4], column(*[0.9 / 13] * 3)[:, 0])
    assert blurred[0].sum() == 0
    x[..., 2, 2] = 0.5
    x[..., 0, 0] = 1  # the range stays 0 .. 1
    assert changed(x, "sharpness", 0.5)[0, 0, 2, 2].item() == pytest.approx(0.5 + 0.45 * 0.5 * 8 / 13, abs=1e-14)


def test_changes_follow_one_another() -> None:
    """Darkened to a tenth, then each channel stretched again; the other way round it stays dark."""
    x = torch.arange(100, dtype=torch.float64).view(1, 1, 10, 10) / 99
    which = [(CHANGES.index(name) + 0.5) / len(CHANGES) for name in ("brightness", "auto_contrast")]
    for picks, expected in ((which, x), (which[::-1], 0.1 * x)):
        uniform = torch.tensor([[*picks, 0, 0, 0, 0.5, 0.5]], dtype=torch.float64)
        torch.testing.assert_close(PLAIN.apply(x, uniform), expected)


def test_the_images_given_are_left_alone() -> None:
    x = images(50, 1, 8, 8)
    before = x.clone()
    PLAIN.apply(x, torch.rand(50, PLAIN.numbers, generator=torch.Generator().manual_seed(3)))
    assert torch.equal(x, before)


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
