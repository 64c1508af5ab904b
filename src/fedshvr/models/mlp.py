"""Fully connected classifiers: the paper's MLP 784-5000-10, and (no hidden layer) logistic regression."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from math import prod

from torch import Tensor, nn

from fedshvr.errors import check

INITS: dict[str, Callable[[Tensor], Tensor] | None] = {  # of the weights
    "torch": None,  # U(-a, a) with a = 1 / sqrt(fan_in), the biases too
    "glorot": nn.init.xavier_uniform_,  # U(-a, a) with a = sqrt(6 / (fan_in + fan_out)), the default of TensorFlow
    "he": partial(nn.init.kaiming_normal_, nonlinearity="relu"),  # N(0, 2 / fan_in)
}


class MLP(nn.Module):
    """flatten - (linear - ReLU - dropout) per hidden layer - linear; `width` multiplies the hidden layers' sizes."""

    def __init__(
        self,
        input_shape: tuple[int, ...],
        classes: int,
        hidden: list[int],
        width: float = 1.0,
        dropout: float = 0.0,
        init: str = "torch",
    ) -> None:
        super().__init__()
        check(width > 0, f"model.width={width}: must be positive")
        check(0 <= dropout < 1, f"model.dropout={dropout}: must be at least 0 and below 1")
        check(init in INITS, f"model.init={init}: must be one of {', '.join(INITS)}")
        check(all(h > 0 for h in hidden), f"model.hidden={list(hidden)}: every layer needs a positive size")
        widths = [prod(input_shape), *(max(1, round(h * width)) for h in hidden)]
        layers: list[nn.Module] = []
        for fan_in, fan_out in pairwise(widths):
            layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
            if dropout:
                layers.append(nn.Dropout(dropout))
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], classes))
        draw = INITS[init]
        if draw is not None:
            for linear in (layer for layer in self.layers if isinstance(layer, nn.Linear)):
                draw(linear.weight)
                nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.flatten(1))
