"""Padding out of the way: real tokens first, for mixers that count positions or carry a state from one to the next.

Shapes: B batch, N tokens.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def packed(mix: Callable[[Tensor], Tensor], x: Tensor, mask: Tensor | None) -> Tensor:
    """Apply ``mix`` to ``x`` (B, N, dim) with each row's real tokens moved to its front, and move the results back.

    Real tokens keep their order, wherever the padding is: left, right or between. ``mix`` must keep padding at the end
    of a row from changing what stands before it.
    """
    if mask is None:
        return mix(x)
    order = torch.argsort((~mask).to(torch.uint8), dim=1, stable=True)
    return _take(mix(_take(x, order)), order.argsort(dim=1))


def _take(x: Tensor, order: Tensor) -> Tensor:
    return x.gather(1, order.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
