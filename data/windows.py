"""A long text cut into windows of a model's context, each token to be predicted once.

Shapes: T tokens of the text, N tokens of a window.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from data.batch import IGNORED


class Windows(Sequence[dict[str, np.ndarray]]):
    """Rows ``tokens`` and ``labels``: what a window shows, and the token that follows each of its positions.

    A window starts ``stride`` tokens after the one before it. Labels that an earlier window had are ``IGNORED``, so
    that each token of the text is predicted once, by the first window that reaches it; with ``stride`` below
    ``length``, from at least ``length - stride`` tokens of context. The last window may be shorter.

    Args:
        tokens: (T,) integers, perhaps memory-mapped.
        start: shown before the first token, so that it is predicted too.
        length: N. stride: from 1 to N.
    """

    def __init__(self, tokens: np.ndarray, start: int, length: int, stride: int) -> None:
        self.tokens, self.start, self.length, self.stride = tokens, start, length, stride

    def __len__(self) -> int:
        return 1 + max(0, -(-(len(self.tokens) - self.length) // self.stride))

    def __getitem__(self, index: Any) -> dict[str, np.ndarray]:
        if not 0 <= index < len(self):
            raise IndexError(f"window {index} of {len(self)}")
        first = index * self.stride
        labels = self.tokens[first : first + self.length].astype(np.int64)
        before = self.start if first == 0 else self.tokens[first - 1]
        shown = np.concatenate([[before], labels[:-1]])
        if index > 0:
            labels[: self.length - self.stride] = IGNORED
        return {"tokens": shown, "labels": labels}

    @property
    def lengths(self) -> np.ndarray:
        """N of every window."""
        lengths = np.full(len(self), self.length)
        lengths[-1] = len(self.tokens) - (len(self) - 1) * self.stride
        return lengths
