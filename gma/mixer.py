"""The one protocol that the backbone knows: a module that mixes a sequence and can also do so a token at a time.

Shapes: B batch, N tokens.
"""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn


def require(condition: bool, argument: str, value: object, allowed: str) -> None:
    """Raise ``ValueError`` naming the argument, its value and what is allowed, unless ``condition`` holds."""
    if not condition:
        raise ValueError(f"{argument}={value!r} is not allowed: {argument} must be {allowed}")


def require_mask(mask: Tensor | None, tokens: Tensor) -> None:
    """Raise ``ValueError`` unless ``mask`` is ``None`` or bool (B, N) for ``tokens`` (B, N, dim)."""
    if mask is not None and (mask.dtype != torch.bool or mask.shape != tokens.shape[:2]):
        raise ValueError(
            f"mask of {mask.dtype} {tuple(mask.shape)} is not allowed: it must be torch.bool {tuple(tokens.shape[:2])},"
            " true where a real token stands"
        )


class SequenceMixer(nn.Module, ABC):
    """Mixes information across the positions of a sequence; the only part that differs between compared models.

    Args:
        dim: width of the tokens, in and out.
        causal: if true, output ``i`` depends on inputs ``0 .. i`` only, and ``init_state`` and ``step`` work.

    Raises:
        ValueError: if ``dim`` is below 1.
    """

    def __init__(self, dim: int, causal: bool) -> None:
        super().__init__()
        require(dim >= 1, "dim", dim, "at least 1")
        self.dim = dim
        self.causal = causal

    @abstractmethod
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Mix a whole sequence.

        Args:
            x: (B, N, dim).
            mask: (B, N) bool, true where a real token stands; ``None`` means all are real. What stands at the other
                positions changes no output at a real one.

        Returns:
            (B, N, dim) in the dtype of the projections; finite, and meaningless, where ``mask`` is false.
        """

    @abstractmethod
    def init_state(self, batch_size: int) -> Any:
        """The state before the first token: a NamedTuple of tensors. Causal mixers only, else ``ValueError``."""

    @abstractmethod
    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Mix one more token, as ``forward`` would at this position. For decoding, without gradients.

        Args:
            x: (B, dim).
            state: what ``init_state`` or the last ``step`` returned; it may be overwritten, so go on with the new one.

        Returns:
            the output (B, dim) and the state that includes this token.
        """

    @torch.no_grad()
    def prefill(self, x: Tensor) -> tuple[Tensor, Any]:
        """Read a prompt: the outputs of ``forward``, and the state after the last token. Without gradients.

        Here a step after the other; a mixer that can do it at once does.

        Args:
            x: (B, N, dim), N >= 1, every token real.
        """
        state, outputs = self.init_state(len(x)), []
        for token in x.unbind(1):
            output, state = self.step(token, state)
            outputs.append(output)
        return torch.stack(outputs, 1), state

    @abstractmethod
    def state_elements(self, length: int) -> int:
        """Numbers held per sequence after ``length`` tokens, over all heads."""

    def require_causal(self, method: str) -> None:
        """Raise ``ValueError`` unless the mixer is causal: a bidirectional one has no step."""
        if not self.causal:
            raise ValueError(
                f"{type(self).__name__}.{method} needs causal=True; this mixer was built with causal=False"
            )
