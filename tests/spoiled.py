"""The embedded digits with one image that no network can take: whoever holds it diverges."""

from dataclasses import replace

from fedshvr.data.sources import ImageData, load

SAMPLE = 5  # a labelled sample of client 0 of four, with seed 0
TARGET = "data._target_=spoiled.digits"


def digits(**options: object) -> ImageData:
    """Its pixels are finite, the model after a step on them is not in float32."""
    data = load(**options)  # type: ignore[arg-type]
    x = data.x.clone()
    x[SAMPLE] = 3e38
    return replace(data, x=x)
