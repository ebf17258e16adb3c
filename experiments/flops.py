"""Arithmetic of a forward pass, counted operation by operation as PyTorch dispatches them."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

# Not tagged as pointwise, one operation per element read.
_REDUCTIONS = {"sum", "mean", "amax", "_softmax", "_safe_softmax", "_log_softmax", "native_layer_norm", "cumsum"}


class CountOperations(TorchDispatchMode):
    """``products``: multiplications and additions of matrix products; ``elementwise``: one an element of all else.

    Elementwise work is counted too, because a scan or a feature map consists of nothing else. Exponentials and
    additions count alike. Softmax attention is counted in full, also where a causal kernel would skip half of it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.products = 0
        self.elementwise = 0

    def __enter__(self) -> "CountOperations":
        self._plain_attention = sdpa_kernel(SDPBackend.MATH)  # fused kernels do not show what they do
        self._plain_attention.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._plain_attention.__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = func._overloadpacket.__name__
        packet = getattr(torch.ops.aten, name.rstrip("_"), None)  # an in-place product is a product
        if packet in flop_registry:
            self.products += flop_registry[packet](*args, **kwargs, out_val=out)
        elif torch.Tag.pointwise in func.tags or name in _REDUCTIONS:
            tensors = [t for t in (*args, out) if isinstance(t, Tensor) and t.is_floating_point()]
            self.elementwise += max((t.numel() for t in tensors), default=0)
        return out
