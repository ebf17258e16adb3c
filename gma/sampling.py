"""Drawing the next token.

Shapes: B batch, V vocabulary.
"""

import torch
from torch import Tensor

from gma.mixer import require


def check_sampling(temperature: float, top_k: int | None, top_p: float | None) -> None:
    """Raise ``ValueError`` for arguments that :func:`sample` does not take."""
    require(temperature >= 0, "temperature", temperature, "at least 0; 0 takes the likeliest token")
    require(top_k is None or top_k >= 1, "top_k", top_k, "at least 1, or None for all")
    require(top_p is None or 0 < top_p <= 1, "top_p", top_p, "above 0 and at most 1, or None for all")


def sample(
    logits: Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw from softmax(logits / temperature), cut to its likeliest tokens and renormalised.

    Args:
        logits: (B, V).
        temperature: 0 takes the likeliest token.
        top_k: only so many likeliest tokens.
        top_p: only the fewest likeliest tokens whose probabilities add up to this much (Holtzman et al. 2020); after
            ``top_k``, and at least one.
        generator: of the draws.

    Returns:
        (B,) int64.
    """
    check_sampling(temperature, top_k, top_p)
    if temperature == 0:
        return logits.argmax(-1)
    logits, order = (logits.float() / temperature).sort(-1, descending=True)
    if top_k is not None:
        logits = logits[:, :top_k]
    p = logits.softmax(-1)
    if top_p is not None:
        p = p.masked_fill(p.cumsum(-1) - p >= top_p, 0.0)  # what stands before a token already reaches top_p
    choice = torch.multinomial(p, 1, generator=generator)
    return order.gather(-1, choice).squeeze(-1)
