"""Padding out of the way: real tokens first, for mixers that count positions or carry a state from one to the next.

Shapes: B batch, N tokens.
"""

from collections.abc import Callable
from typing import Any

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
    first = torch.arange(0, mask.numel(), mask.shape[1], device=mask.device).unsqueeze(1)
    there, back = ((first + places).flatten() for places in (order, order.argsort(dim=1)))
    y = mix(_Reorder.apply(x.flatten(0, 1), there, back).view_as(x))
    return _Reorder.apply(y.flatten(0, 1), back, there).view_as(y)


class _Reorder(torch.autograd.Function):
    """The rows ``there`` of (B N, dim). Its gradient takes rows, too, by the permutation ``back``: adding is slow."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(there, back)
        return x.index_select(0, there)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        there, back = ctx.saved_tensors
        return _Reorder.apply(grad, back, there), None, None
