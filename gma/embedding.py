"""How tokens become vectors, and how these learn where they stand.

Shapes: B batch, N tokens, C channels.
"""

import math

import torch
from torch import Tensor, nn

from gma.mixer import require


class TokenEmbedding(nn.Embedding):
    """(B, N) integers below ``vocab_size`` -> (B, N, dim). Pixels are tokens too: 256 of them, and 0 is black."""

    def __init__(self, vocab_size: int, dim: int) -> None:
        require(vocab_size >= 1, "vocab_size", vocab_size, "at least 1")
        super().__init__(vocab_size, dim)
        nn.init.normal_(self.weight, std=0.02)


class ContinuousEmbedding(nn.Linear):
    """(B, N, C) real values -> (B, N, dim), by an affine map."""

    def __init__(self, channels: int, dim: int) -> None:
        require(channels >= 1, "channels", channels, "at least 1")
        super().__init__(channels, dim)


class LearnedPositions(nn.Module):
    """Adds a learned vector to each of the first ``max_length`` positions."""

    def __init__(self, max_length: int, dim: int) -> None:
        super().__init__()
        require(max_length >= 1, "max_length", max_length, "at least 1")
        self.table = nn.Parameter(torch.empty(max_length, dim))
        nn.init.normal_(self.table, std=0.02)

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        """Add the vectors of positions ``start .. start + N - 1`` to ``x`` (B, N, dim).

        Raises:
            ValueError: if the sequence runs over ``max_length``.
        """
        end = start + x.shape[1]
        require(end <= len(self.table), "length", end, f"at most max_length={len(self.table)}")
        return x + self.table[start:end]


class GridPositions(nn.Module):
    """Adds a learned vector of the row and one of the column to each pixel of a picture read row by row.

    Args:
        height, width: of the picture, in pixels.
        std: of the vectors at the start; by default about that of :class:`ContinuousEmbedding` of one channel, in which
            smaller ones drown.
    """

    def __init__(self, height: int, width: int, dim: int, std: float = 0.5) -> None:
        super().__init__()
        require(height >= 1, "height", height, "at least 1")
        require(width >= 1, "width", width, "at least 1")
        self.rows = nn.Parameter(std * torch.randn(height, dim))
        self.columns = nn.Parameter(std * torch.randn(width, dim))

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        """Add the vectors of pixels ``start .. start + N - 1`` to ``x`` (B, N, dim).

        Raises:
            ValueError: if the sequence runs over the picture.
        """
        end, width = start + x.shape[1], len(self.columns)
        require(end <= len(self.rows) * width, "length", end, f"at most height x width={len(self.rows) * width}")
        pixels = torch.arange(start, end, device=x.device)
        return x + self.rows[pixels // width] + self.columns[pixels % width]


class SinusoidalPositions(nn.Module):
    """Adds sin and cos of n / 10000^(2i / dim) (Vaswani et al. 2017, section 3.5), scaled to the embedding's size.

    Args:
        dim: even.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        require(dim % 2 == 0, "dim", dim, "even for sinusoidal positions")
        self.scale = nn.Parameter(torch.tensor(0.02))
        self.frequencies: Tensor
        self.register_buffer(
            "frequencies", torch.exp(-math.log(10_000) * torch.arange(0, dim, 2) / dim), persistent=False
        )

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        """Add the waves of positions ``start .. start + N - 1`` to ``x`` (B, N, dim)."""
        positions = torch.arange(start, start + x.shape[1], device=x.device)
        angles = positions[:, None] * self.frequencies
        return x + self.scale * torch.cat([angles.sin(), angles.cos()], dim=-1).to(x.dtype)


class NoPositions(nn.Module):
    """Leaves the order of tokens to the mixer."""

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        """Return ``x``."""
        return x
