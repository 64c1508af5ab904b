"""The objective's loss and its gradient through torch.compile; on a GPU, inductor replays them as CUDA graphs."""

import sys
from typing import Any

import torch

from fedshvr.errors import check


def compile_loss(objective: Any, backend: str, device: torch.device) -> None:
    """Replace objective.loss by its compiled form.

    The parameters are views of one vector that stays where it is, so a recorded graph finds them changed in place.
    """
    known = torch.compiler.list_backends(exclude_tags=())
    check(backend in known, f"compile={backend}: must be one of {', '.join(known)}")
    check(
        objective.compiles,
        f"compile={backend}: {type(objective).__name__} differentiates inside its loss, which torch.compile cannot do",
    )
    graphs: dict[str, Any] = {"mode": "reduce-overhead"} if backend == "inductor" and device.type == "cuda" else {}
    objective.loss = CompiledLoss(objective, torch.compile(objective.loss, backend=backend, **graphs))


class CompiledLoss:
    """The compiled loss, or the loss as it is once that has failed."""

    def __init__(self, objective: Any, compiled: Any) -> None:
        self.name, self.eager, self.call = type(objective).__name__, objective.loss, compiled

    def __call__(self, *inputs: Any) -> Any:
        try:
            return self.call(*inputs)
        except Exception as error:
            if self.call is self.eager:
                raise
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            print(f"compile: {self.name} runs uncompiled, because {reason}", file=sys.stderr)
            self.call = self.eager
            return self.eager(*inputs)
