"""Pictures as sequences of pixels, row by row: grey levels as tokens, or as numbers."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from data.batch import Batch
from data.lra.base import LabelledSequences

PIXELS = ("tokens", "continuous")


class PixelSequences(LabelledSequences):
    """Square pictures of one size. Black is a grey level like any other: nothing is padding.

    Args:
        pixels: ``tokens``, 256 of them, as in Long Range Arena; or ``continuous``, one number from -1 (black) to 1
            (white) a position, as state-space models have it.

    Raises:
        ValueError: for other pixels.
    """

    def __init__(self, pixels: str) -> None:
        if pixels not in PIXELS:
            raise ValueError(f"pixels={pixels!r} is not allowed: pixels must be one of {', '.join(PIXELS)}")
        self.pixels = pixels
        self.vocab_size = 256 if pixels == "tokens" else None
        self.channels = None if pixels == "tokens" else 1

    @property
    def side(self) -> int:
        """Pixels of a row, and rows."""
        return math.isqrt(self.length)

    def describe(self) -> dict[str, Any]:
        """What a result says of its data."""
        return super().describe() | {"pixels": self.pixels}

    def collate(self, rows: Sequence[Mapping[str, Any]]) -> Batch:
        """Rows of a split in numpy format -> one batch: (B, N) tokens or (B, N, 1) float32."""
        levels = torch.from_numpy(np.stack([row["tokens"] for row in rows]))
        labels = torch.tensor([int(row["label"]) for row in rows])
        if self.pixels == "tokens":
            return Batch(levels.long(), None, labels)
        return Batch(levels.unsqueeze(-1).float() / 127.5 - 1, None, labels)
