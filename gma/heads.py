"""What reads the answer off the last block: a class of the sequence, or the next token at every position.

A head has two parts: ``prepare`` may add tokens of its own in front of the blocks, ``forward`` reads what they return.

Shapes: B batch, N tokens.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from gma.mixer import require


class Head(nn.Module):
    """What a :class:`gma.SequenceModel` asks of its head."""

    def prepare(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Add tokens of the head's own to (B, N, dim) and (B, N) before the first block; by default none."""
        return x, mask

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Logits from the normed output of the last block and the mask that ``prepare`` returned."""
        raise NotImplementedError(f"{type(self).__name__} must define forward")


class MeanPoolHead(Head):
    """Class logits (B, num_classes) from the mean over real tokens."""

    def __init__(self, dim: int, num_classes: int) -> None:
        super().__init__()
        require(num_classes >= 2, "num_classes", num_classes, "at least 2")
        self.classify = nn.Linear(dim, num_classes)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """(B, N, dim) -> (B, num_classes); an all-padded row counts as a zero vector."""
        return self.classify(mean_over_tokens(x, mask))


def mean_over_tokens(x: Tensor, mask: Tensor | None) -> Tensor:
    """(B, N, dim) -> (B, dim), over real tokens; zeros for a row of padding alone."""
    if mask is None:
        return x.mean(1)
    total = x.masked_fill(~mask.unsqueeze(-1), 0.0).sum(1)
    return total / mask.sum(1, keepdim=True).clamp(min=1).to(x.dtype)


class ClsHead(Head):
    """Class logits (B, num_classes) from a learned token put before the sequence. For bidirectional mixers."""

    def __init__(self, dim: int, num_classes: int) -> None:
        super().__init__()
        require(num_classes >= 2, "num_classes", num_classes, "at least 2")
        self.token = nn.Parameter(torch.empty(dim))
        nn.init.normal_(self.token, std=0.02)
        self.classify = nn.Linear(dim, num_classes)

    def prepare(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Put the token in front: (B, N, dim) -> (B, 1 + N, dim), and the mask likewise."""
        x = torch.cat([self.token.to(x.dtype).expand(len(x), 1, -1), x], dim=1)
        if mask is not None:
            mask = torch.cat([mask.new_ones(len(mask), 1), mask], dim=1)
        return x, mask

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """(B, 1 + N, dim) -> (B, num_classes)."""
        return self.classify(x[:, 0])


class PairHead(Head):
    """Class logits (B, num_classes) for pairs of sequences that one model has read: 2 B rows, first ones first.

    Both are mean-pooled over real tokens; [a, b, a b, a - b] goes through one hidden layer (Long Range Arena's head for
    retrieval).
    """

    def __init__(self, dim: int, num_classes: int) -> None:
        super().__init__()
        require(num_classes >= 2, "num_classes", num_classes, "at least 2")
        self.classify = nn.Sequential(nn.Linear(4 * dim, dim), nn.GELU(), nn.Linear(dim, num_classes))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """(2 B, N, dim) -> (B, num_classes)."""
        first, second = mean_over_tokens(x, mask).chunk(2)
        return self.classify(torch.cat([first, second, first * second, first - second], dim=-1))


class LanguageModelHead(Head):
    """Logits (B, N, vocab_size) of the next token, with the weights of the token embedding (tied)."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.weight = embedding.weight

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(..., dim) -> (..., vocab_size)."""
        return functional.linear(x, self.weight)
