"""For autograd Functions whose backward pass is written by hand."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch


def first_derivative_only(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Make ``backward`` raise ``RuntimeError`` when a graph of it is asked for, as a second derivative does.

    Unlike ``torch.autograd.function.once_differentiable``, which lets ``torch.autograd.grad`` leave the path through
    the Function out without a word.
    """

    @wraps(backward)
    def checked(ctx: Any, *grads: Any) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError("this operation has first derivatives only: create_graph=True asks for the second")
        return backward(ctx, *grads)

    return checked
