"""Linformer (Wang et al. 2020): softmax attention over k summaries of the keys and values, bidirectional only.

Shapes: B batch, N tokens, H heads, D = dim / H, k summaries, L the longest sequence, W = L / k tokens a window.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from baselines.packing import packed
from gma.mixer import require, require_mask
from gma.multi_head import MultiHeadMixer


class Linformer(MultiHeadMixer):
    """softmax(Q (E K)^T / sqrt(D)) (E V): linear time in N, as E (k, N) maps the sequence to k summaries.

    One E serves keys, values and heads (the paper's key-value sharing); shorter sequences use its first columns. With
    ``convolution``, E is instead a convolution of width and stride W a head (the paper's "general projections"): H W
    numbers instead of k L. Padding is moved behind the real tokens first, and writes zeros.

    Args:
        dim: width of the tokens. num_heads: H, a divisor of ``dim``.
        causal: must be false: every summary has seen the whole sequence.
        max_length: L. rank: k.
        convolution: whether E is one.
        bias: whether the four projections have one.

    Raises:
        ValueError: for ``causal=True``, counts below 1, and sequences over ``max_length``.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        causal: bool = False,
        *,
        max_length: int,
        rank: int = 64,
        convolution: bool = False,
        bias: bool = True,
    ) -> None:
        if causal:
            raise ValueError(
                "causal=True is not allowed for Linformer: each of its summaries mixes tokens of the whole sequence,"
                " so that no output could be kept from seeing the future; take another model or another task"
            )
        super().__init__(dim, num_heads, causal, bias=bias)
        require(max_length >= 1, "max_length", max_length, "at least 1")
        require(1 <= rank <= max_length, "rank", rank, f"from 1 to max_length={max_length}")
        self.max_length, self.rank, self.convolution = max_length, rank, convolution
        self.window = math.ceil(max_length / rank)
        self.E = nn.Parameter(torch.empty((num_heads, self.window) if convolution else (rank, max_length)))
        nn.init.normal_(self.E, std=self.E.shape[1] ** -0.5)  # summaries of unit variance from such tokens

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Mix (B, N, dim); rows of padding alone read zeros.

        Raises:
            ValueError: if N is over ``max_length``.
        """
        require_mask(mask, x)
        require(x.shape[1] <= self.max_length, "length", x.shape[1], f"at most max_length={self.max_length}")
        counts = None if mask is None else mask.sum(1)
        return packed(lambda x: self._attend(x, counts), x, mask)

    def init_state(self, batch_size: int) -> None:
        """Refused: there is no causal form."""
        self.require_causal("init_state")

    def step(self, x: Tensor, state: None) -> tuple[Tensor, None]:
        """Refused: there is no causal form."""
        self.require_causal("step")
        raise AssertionError("a Linformer is never causal")

    def state_elements(self, length: int) -> int:
        """Refused: there is no causal form."""
        self.require_causal("state_elements")
        raise AssertionError("a Linformer is never causal")

    def _attend(self, x: Tensor, counts: Tensor | None) -> Tensor:
        """``x`` (B, N, dim), of which the first ``counts`` (B,) of each row are real; ``None``: all."""
        queries, keys, values = (self.split_heads(f(x)) for f in (self.q_proj, self.k_proj, self.v_proj))
        filled = None
        if counts is not None:
            real = torch.arange(x.shape[1], device=x.device) < counts.unsqueeze(1)
            keys, values = (t.masked_fill(~real[:, None, :, None], 0.0) for t in (keys, values))
        keys, values = self._summarise(keys), self._summarise(values)
        if counts is not None:
            first = torch.arange(keys.shape[2], device=x.device) * (self.window if self.convolution else 0)
            filled = (first < counts.unsqueeze(1))[:, None, None]  # a summary of no real token is not there
        return self.merge_heads(F.scaled_dot_product_attention(queries, keys, values, attn_mask=filled))

    def _summarise(self, x: Tensor) -> Tensor:
        """(B, H, N, D) -> (B, H, k, D), or fewer of a convolution over a shorter sequence."""
        if not self.convolution:
            return self.E[:, : x.shape[2]].to(x.dtype) @ x
        x = F.pad(x, (0, 0, 0, -x.shape[2] % self.window)).unflatten(2, (-1, self.window))
        return torch.einsum("bhkwd,hw->bhkd", x, self.E.to(x.dtype))
