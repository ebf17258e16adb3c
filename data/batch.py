"""What every loader yields.

Shapes: B batch, N tokens (the longest row of the batch).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Batch(NamedTuple):
    """``inputs`` (B, N) int64, ``mask`` (B, N) bool and true for real tokens, ``labels`` (B,) int64."""

    inputs: Tensor
    mask: Tensor
    labels: Tensor


def pad(sequences: Sequence[np.ndarray], labels: Sequence[int], pad_value: int) -> Batch:
    """Put sequences of different lengths into one batch, filled up on the right; the mask comes from the lengths."""
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    inputs = torch.full((len(sequences), int(lengths.max())), pad_value, dtype=torch.int64)
    for row, sequence in zip(inputs, sequences, strict=True):
        row[: len(sequence)] = torch.from_numpy(sequence.astype(np.int64))
    mask = torch.arange(inputs.shape[1]) < lengths[:, None]
    return Batch(inputs, mask, torch.as_tensor(labels, dtype=torch.int64))
