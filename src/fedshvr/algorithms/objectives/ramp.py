"""How the weight of the unlabelled term grows."""

from math import exp

from fedshvr.errors import check


class Ramp:
    """The share of the unlabelled term's weight at an epoch, 1 from epoch `epochs` on.

    Before that it is start + (1 - start) r(x) with x = epoch / epochs: linear r = x; exp r = exp(-5 (1 - x)^2), which
    begins at 0.0067; none is 1 throughout. The epochs are those at the start of the round, or (by=epoch, by=step) at
    the start of the client's current epoch or step.
    """

    SHAPES = ("linear", "exp", "none")
    BY = ("round", "epoch", "step")

    def __init__(self, epochs: float, shape: str = "linear", start: float = 0.0, by: str = "round") -> None:
        check(shape in self.SHAPES, f"ramp.shape={shape}: must be one of {', '.join(self.SHAPES)}")
        check(epochs >= 0, f"ramp.epochs={epochs}: must be at least 0")
        check(0 <= start <= 1, f"ramp.start={start}: must be between 0 and 1")
        check(by in self.BY, f"ramp.by={by}: must be one of {', '.join(self.BY)}")
        self.epochs, self.shape, self.start, self.by = epochs, shape, start, by

    def over(self, epoch: float) -> bool:
        return self.shape == "none" or epoch >= self.epochs

    def __call__(self, epoch: float) -> float:
        if self.over(epoch):
            return 1.0
        x = epoch / self.epochs
        return self.start + (1 - self.start) * (x if self.shape == "linear" else exp(-5 * (1 - x) ** 2))
