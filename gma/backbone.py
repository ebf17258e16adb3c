"""The model around the mixer, the same for every mixer: embedding, pre-norm blocks, head.

Shapes: B batch, N tokens.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from gma.embedding import NoPositions
from gma.heads import Head, LanguageModelHead
from gma.mixer import SequenceMixer, require
from gma.sampling import check_sampling, sample


class ModelState(NamedTuple):
    """Decoding state of a :class:`SequenceModel`: one state a block, and how many tokens it has seen."""

    blocks: tuple[Any, ...]
    position: int


class Block(nn.Module):
    """x + mixer(norm(x)), then x + mlp(norm(x)), with GELU (pre-norm, as in Long Range Arena).

    Args:
        mixer: any :class:`SequenceMixer`.
        mlp_dim: hidden width of the feed-forward network.
        dropout: probability on both residual branches.
    """

    def __init__(self, mixer: SequenceMixer, mlp_dim: int, dropout: float = 0.0) -> None:
        super().__init__()
        require(mlp_dim >= 1, "mlp_dim", mlp_dim, "at least 1")
        self.mixer_norm = nn.LayerNorm(mixer.dim)
        self.mixer = mixer
        self.mlp_norm = nn.LayerNorm(mixer.dim)
        self.mlp = nn.Sequential(nn.Linear(mixer.dim, mlp_dim), nn.GELU(), nn.Linear(mlp_dim, mixer.dim))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, N, dim) -> (B, N, dim)."""
        x = x + self.dropout(self.mixer(self.mixer_norm(x), mask))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))

    def prefill(self, x: Tensor) -> tuple[Tensor, Any]:
        """A prompt (B, N, dim) -> (B, N, dim), and the state after it."""
        mixed, state = self.mixer.prefill(self.mixer_norm(x))
        x = x + mixed
        return x + self.mlp(self.mlp_norm(x)), state

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """One token (B, dim) -> (B, dim)."""
        mixed, state = self.mixer.step(self.mixer_norm(x), state)
        x = x + mixed
        return x + self.mlp(self.mlp_norm(x)), state


class SequenceModel(nn.Module):
    """Embedding, ``depth`` blocks with a mixer each, a final norm and a head.

    Args:
        mixer: called with ``dim`` once a block; returns its mixer.
        embedding: maps inputs to (B, N, dim).
        head: one of :mod:`gma.heads`, or another :class:`gma.Head`.
        dim, depth, mlp_dim: width, number of blocks, hidden width of their feed-forward networks.
        positions: called with (B, N, dim) and the first position; default none.
        dropout: on the embedded tokens and on every residual branch.

    Raises:
        ValueError: for counts below 1 or a dropout outside [0, 1), and whatever the mixer refuses.

    Example:
        >>> from functools import partial
        >>> mixer = partial(GaussianMixtureAttention, num_heads=4, num_components=32)
        >>> model = SequenceModel(mixer, TokenEmbedding(256, 64), MeanPoolHead(64, 10), dim=64, depth=2, mlp_dim=128)
        >>> model(torch.randint(256, (2, 100))).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        mixer: Callable[[int], SequenceMixer],
        embedding: nn.Module,
        head: Head,
        *,
        dim: int,
        depth: int,
        mlp_dim: int,
        positions: nn.Module | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        require(depth >= 1, "depth", depth, "at least 1")
        require(0 <= dropout < 1, "dropout", dropout, "in [0, 1)")
        self.embedding = embedding
        self.positions = NoPositions() if positions is None else positions
        self.dropout = nn.Dropout(dropout)
        self.mlp_dim = mlp_dim
        self.blocks = nn.ModuleList([Block(mixer(dim), mlp_dim, dropout) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.head = head

    def forward(self, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        """Logits of the head.

        Args:
            inputs: (B, N) tokens or (B, N, C) values, as the embedding takes them.
            mask: (B, N) bool, true for real tokens; ``None`` means all.
        """
        x = self.positions(self.embedding(inputs))
        x, mask = self.head.prepare(self.dropout(x), mask)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x), mask)

    def init_state(self, batch_size: int) -> ModelState:
        """The state before the first token. Causal language models only."""
        self._require_language_model()
        blocks = cast(Iterable[Block], self.blocks)
        return ModelState(tuple(block.mixer.init_state(batch_size) for block in blocks), 0)

    @torch.no_grad()
    def prefill(self, inputs: Tensor) -> tuple[Tensor, ModelState]:
        """Read a prompt (B, N), N >= 1: logits (B, vocab_size) after its last token, and the state to go on from.

        Without dropout, as :meth:`step`.
        """
        self._require_language_model()
        x, states = self.positions(self.embedding(inputs)), []
        for block in cast(Iterable[Block], self.blocks):
            x, state = block.prefill(x)
            states.append(state)
        return self.head(self.norm(x[:, -1]), mask=None), ModelState(tuple(states), inputs.shape[1])

    def step(self, inputs: Tensor, state: ModelState) -> tuple[Tensor, ModelState]:
        """Logits (B, vocab_size) after one more token (B,), as ``forward`` gives at this position."""
        x = self.positions(self.embedding(inputs.unsqueeze(1)), state.position).squeeze(1)
        states = []
        for block, block_state in zip(cast(Iterable[Block], self.blocks), state.blocks, strict=True):
            x, block_state = block.step(x, block_state)
            states.append(block_state)
        return self.head(self.norm(x), mask=None), ModelState(tuple(states), state.position + 1)

    def generate(
        self,
        prompt: Tensor,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        generator: torch.Generator | None = None,
    ) -> Iterator[Tensor]:
        """Continue a prompt, a token at a time, without end: take as many as you want.

        Args:
            prompt: (B, P) tokens, P >= 1.
            temperature, top_k, top_p, generator: see :func:`gma.sampling.sample`.

        Yields:
            the next token of each row, (B,) int64.

        Raises:
            ValueError: for an empty prompt, whatever sampling refuses, and positions that have no vector.

        Example:
            >>> from itertools import islice
            >>> tokens = torch.stack(list(islice(model.generate(prompt, top_p=0.9), 100)), dim=1)
        """
        require(prompt.dim() == 2 and prompt.shape[1] >= 1, "prompt", tuple(prompt.shape), "(B, P) with P at least 1")
        check_sampling(temperature, top_k, top_p)
        self._require_language_model()  # here, so that a refusal comes before the first token is asked for
        choose = partial(sample, temperature=temperature, top_k=top_k, top_p=top_p, generator=generator)
        return self._continue(prompt, choose)

    @torch.no_grad()
    def _continue(self, prompt: Tensor, choose: Callable[[Tensor], Tensor]) -> Iterator[Tensor]:
        logits, state = self.prefill(prompt)
        while True:
            tokens = choose(logits)
            yield tokens
            logits, state = self.step(tokens, state)

    def _require_language_model(self) -> None:
        if not isinstance(self.head, LanguageModelHead):
            raise ValueError(f"decoding needs a LanguageModelHead; this model has a {type(self.head).__name__}")
        for block in cast(Iterable[Block], self.blocks):
            block.mixer.require_causal("step")
