"""What every network must do: one row of logits for each sample."""

import torch
from torch import Tensor, nn

from fedshvr.errors import UserError, check


@torch.no_grad()
def check_logits(network: nn.Module, samples: Tensor, classes: int) -> None:
    """Refuse a network that does not take these samples, or gives another number of logits than there are classes."""
    kind, training = type(network).__name__, network.training
    try:
        logits = network.eval()(samples)
    except (RuntimeError, AssertionError) as problem:
        shape, why = tuple(samples.shape[1:]), str(problem).splitlines()[:1]
        raise UserError(f"model: {kind} does not take samples of shape {shape} ({''.join(why)})") from problem
    finally:
        network.train(training)
    found = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
    asked = (len(samples), classes)
    check(found == asked, f"model: {kind} makes {found} of {len(samples)} samples; must be logits {asked}")
