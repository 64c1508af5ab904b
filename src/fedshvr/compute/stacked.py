"""Inside vmap the code sees one client; a few operations are faster as one call for the whole stack of clients."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch as functorch
from torch._functorch.pyfunctorch import VmapInterpreter, retrieve_current_functorch_interpreter
from torch.nn import functional


def current_vmap() -> Any:
    """The vmap that this code runs in, if any and if nothing else is in between."""
    if not torch._C._are_functorch_transforms_active():
        return None
    top = retrieve_current_functorch_interpreter()
    return top if isinstance(top, VmapInterpreter) else None


def for_all(vmap: Any, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """function(all clients' inputs, the clients first), seen as one client's."""
    with vmap.lower():
        result = function(*(_all_clients(vmap, t) for t in inputs))
    return functorch._add_batch_dim(result, 0, vmap.level())


def _all_clients(vmap: Any, one: Tensor) -> Tensor:
    whole, dim = functorch._unwrap_batched(one, vmap.level())
    return whole.expand(vmap.batch_size(), *whole.shape) if dim is None else whole.movedim(dim, 0)


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """mean_i -log softmax(logits_i)[y_i]; vmap would take torch's own apart into a dozen operations."""
    vmap = current_vmap()
    return functional.cross_entropy(logits, y) if vmap is None else for_all(vmap, _cross_entropies, logits, y)


def _cross_entropies(logits: Tensor, y: Tensor) -> Tensor:
    each = functional.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none")
    return each.view(y.shape).mean(1)
