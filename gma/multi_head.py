"""What mixers with queries, keys and values have in common: projections into heads, and the way back.

Shapes: B batch, N tokens, H heads, R width of queries and keys, D = dim / H value width, W either width.
"""

from einops import rearrange
from torch import Tensor, nn

from gma.mixer import SequenceMixer, require


class MultiHeadMixer(SequenceMixer):
    """A mixer with linear maps ``q_proj``, ``k_proj``, ``v_proj`` into H heads and ``out_proj`` back.

    All four start normal with variance 1 / dim: inputs of unit variance give queries, keys and values of unit variance.

    Args:
        dim: width of the tokens.
        num_heads: H, a divisor of ``dim``.
        causal: whether output i sees inputs 0 .. i only.
        route_dim: R; ``None`` takes D.
        bias: whether the four maps have one.

    Raises:
        ValueError: for a count below 1, or heads that don't divide ``dim``.
    """

    def __init__(self, dim: int, num_heads: int, causal: bool, route_dim: int | None = None, bias: bool = True) -> None:
        super().__init__(dim, causal)
        require(num_heads >= 1, "num_heads", num_heads, "at least 1")
        require(dim % num_heads == 0, "num_heads", num_heads, f"a divisor of dim={dim}")
        require(route_dim is None or route_dim >= 1, "route_dim", route_dim, "at least 1, or None for dim / num_heads")
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.route_dim = self.head_dim if route_dim is None else route_dim
        self.q_proj = nn.Linear(dim, num_heads * self.route_dim, bias=bias)
        self.k_proj = nn.Linear(dim, num_heads * self.route_dim, bias=bias)
        self.v_proj = nn.Linear(dim, dim, bias=bias)
        self.out_proj = nn.Linear(dim, dim, bias=bias)
        for projection in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
            nn.init.normal_(projection.weight, std=dim**-0.5)
            if bias:
                nn.init.zeros_(projection.bias)

    def split_heads(self, x: Tensor) -> Tensor:
        """(B, N, H W) -> (B, H, N, W)."""
        return rearrange(x, "b n (h w) -> b h n w", h=self.num_heads)

    def merge_heads(self, mixed: Tensor) -> Tensor:
        """(B, H, N, D) -> (B, N, dim), through ``out_proj``."""
        return self.out_proj(rearrange(mixed, "b h n d -> b n (h d)"))
