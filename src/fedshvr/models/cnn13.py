"""CNN13, the 13-layer network of the semi-supervised literature (Laine & Aila; Tarvainen & Valpola)."""

from torch import Tensor, nn

from fedshvr.errors import check

NORMS = ("batch", "group", "none")


class CNN13(nn.Module):
    """3x(3x3,128) - pool - drop - 3x(3x3,256) - pool - drop - 3x3,512 valid - 1x1,256 - 1x1,128 - mean - linear."""

    def __init__(
        self,
        input_shape: tuple[int, ...],
        classes: int,
        width: float = 1.0,
        norm: str = "batch",
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        check(norm in NORMS, f"model.norm={norm}: must be one of {', '.join(NORMS)}")
        check(width > 0, f"model.width={width}: must be positive")
        check(0 <= dropout < 1, f"model.dropout={dropout}: must be at least 0 and below 1")
        check(len(input_shape) == 3, f"model=cnn13: needs images, not vectors of {input_shape[0]} (use model=mlp)")
        check(
            min(input_shape[1:]) >= 12,
            f"model=cnn13: images of {input_shape[1]}x{input_shape[2]} are too small, the smallest is 12x12 "
            "(use model=mlp)",
        )
        self.norm = norm
        a, b, c = (max(8, round(n * width)) for n in (128, 256, 512))
        self.features = nn.Sequential(
            *self._conv(input_shape[0], a, 3, padding=1),
            *self._conv(a, a, 3, padding=1),
            *self._conv(a, a, 3, padding=1),
            nn.MaxPool2d(2),
            nn.Dropout(dropout),
            *self._conv(a, b, 3, padding=1),
            *self._conv(b, b, 3, padding=1),
            *self._conv(b, b, 3, padding=1),
            nn.MaxPool2d(2),
            nn.Dropout(dropout),
            *self._conv(b, c, 3, padding=0),
            *self._conv(c, b, 1, padding=0),
            *self._conv(b, a, 1, padding=0),
        )
        self.classifier = nn.Linear(a, classes)

    def _conv(self, fan_in: int, fan_out: int, kernel: int, padding: int) -> list[nn.Module]:
        layers: list[nn.Module] = [nn.Conv2d(fan_in, fan_out, kernel, padding=padding)]
        if self.norm == "batch":
            layers.append(nn.BatchNorm2d(fan_out))
        elif self.norm == "group":
            groups = next(g for g in (32, 16, 8, 4, 2, 1) if fan_out % g == 0)
            layers.append(nn.GroupNorm(groups, fan_out))
        return [*layers, nn.LeakyReLU(0.1)]

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).mean(dim=(2, 3)))
