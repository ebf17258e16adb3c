"""What every loader yields.

Shapes: B batch, N tokens (the longest row of the batch).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

IGNORED = -100  # a label that no loss counts, as in torch.nn.functional.cross_entropy


class Batch(NamedTuple):
    """Inputs and what they should give.

    ``inputs`` (B, N) int64, or (B, N, C) float32; ``mask`` (B, N) bool and true for real tokens, or ``None`` where all
    are; ``labels`` int64, one a row (B,), or one a position (B, N) with ``IGNORED`` where there is none.
    """

    inputs: Tensor
    mask: Tensor | None
    labels: Tensor


def pad(sequences: Sequence[np.ndarray], labels: Sequence[int] | Sequence[np.ndarray], pad_value: int) -> Batch:
    """Put sequences of different lengths into one batch, filled up on the right; the mask comes from the lengths."""
    inputs = _fill(sequences, pad_value)
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    mask = torch.arange(inputs.shape[1]) < lengths[:, None]
    per_position = isinstance(labels[0], np.ndarray)
    targets = _fill(labels, IGNORED) if per_position else torch.as_tensor(labels, dtype=torch.int64)
    return Batch(inputs, None if mask.all() else mask, targets)


def _fill(sequences: Sequence[np.ndarray], value: int) -> Tensor:
    filled = torch.full((len(sequences), max(len(sequence) for sequence in sequences)), value, dtype=torch.int64)
    for row, sequence in zip(filled, sequences, strict=True):
        row[: len(sequence)] = torch.from_numpy(sequence.astype(np.int64))
    return filled
