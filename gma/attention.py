"""Gaussian Mixture Attention (arXiv 2606.18283): tokens meet in K learned components instead of comparing pairwise.

Shapes: B batch, N tokens, M context tokens, H heads, K components, R routing width, D = dim / H value width.
"""

from typing import Any

import torch
from torch import Tensor, nn

from gma.memory_mixer import MemoryMixer
from gma.mixer import require, require_mask
from gma.mixture import GaussianMixture


class GaussianMixtureAttention(MemoryMixer):
    """Queries and keys are assigned softly to the components of one mixture per head; values travel through them.

    Gamma^Q and Gamma^K are the responsibilities of q = x W_Q and k = x W_K. Keys write values into K slots,
    Vt = (Gamma^K)^T V with mass Z = (Gamma^K)^T 1, and queries read O = Gamma^Q Vt / (Gamma^Q Z + eps); causally, with
    prefix sums. Time and memory are linear in N, the decoding state is K (D + 1) numbers a head.

    Args:
        dim: width of the tokens.
        num_heads: H, a divisor of ``dim``.
        num_components: K.
        route_dim: R, the width of queries and keys; ``None`` takes D.
        causal: whether output i sees inputs 0 .. i only.
        temperature, learn_temperature, normalize_inputs, learning_rate_scale, mean_spread, equal_norms,
        means_from_data, initial_variance, variance_floor: of the mixture, see :class:`GaussianMixture`; the paper's
            exact form is ``temperature=1, equal_norms=False``.
        bias: whether the four projections have one.
        eps: added to the normaliser.
        recompute: see :class:`gma.MemoryMixer`: less memory for training, at the price of a second forward pass.

    Raises:
        ValueError: naming the argument, its value and what is allowed.

    Example:
        >>> layer = GaussianMixtureAttention(dim=64, num_heads=4, num_components=32)
        >>> x = torch.randn(2, 100, 64)
        >>> mask = torch.arange(100) < torch.tensor([[100], [70]])
        >>> layer(x, mask).shape
        torch.Size([2, 100, 64])
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        num_components: int,
        route_dim: int | None = None,
        causal: bool = False,
        *,
        temperature: float | None = None,
        learn_temperature: bool = False,
        normalize_inputs: bool = False,
        learning_rate_scale: float = 1.0,
        mean_spread: float = 1.0,
        equal_norms: bool = True,
        means_from_data: bool = False,
        initial_variance: float = 1.0,
        variance_floor: float = 1e-4,
        bias: bool = True,
        eps: float = 1e-6,
        recompute: bool = False,
    ) -> None:
        whole = isinstance(num_components, int) and num_components >= 1
        require(whole, "num_components", num_components, "a whole number, at least 1")
        super().__init__(dim, num_heads, causal, num_components, route_dim, bias, eps, recompute)
        self.mixture = GaussianMixture(
            num_heads,
            num_components,
            self.route_dim,
            temperature=temperature,
            learn_temperature=learn_temperature,
            normalize_inputs=normalize_inputs,
            learning_rate_scale=learning_rate_scale,
            mean_spread=mean_spread,
            equal_norms=equal_norms,
            means_from_data=means_from_data,
            initial_variance=initial_variance,
            variance_floor=variance_floor,
        )

    def query_features(self, queries: Tensor) -> Tensor:
        """Gamma^Q."""
        return self.mixture(queries)

    def key_features(self, keys: Tensor) -> Tensor:
        """Gamma^K."""
        return self.mixture(keys)

    def responsibilities(self, x: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Gamma^Q (B, H, N, K) of ``x`` and Gamma^K (B, H, M, K) of ``context`` (default ``x``), float32 or better."""
        return self.features(x, context)

    @torch.no_grad()
    def start_means_from(self, x: Tensor, mask: Tensor | None = None) -> None:
        """Put the initial means on queries and keys of the real tokens of ``x`` (B, N, dim), drawn at random.

        Raises:
            ValueError: for fewer queries and keys than components.
        """
        require_mask(mask, x)
        tokens = x.flatten(0, 1) if mask is None else x[mask]
        both = torch.cat([self.q_proj(tokens), self.k_proj(tokens)])
        self.mixture.start_means_from(both.unflatten(-1, (self.num_heads, self.route_dim)))


@torch.no_grad()
def start_means_from_data(model: nn.Module, *inputs: Any) -> None:
    """Run ``model(*inputs)`` once; each layer that asks for ``means_from_data`` starts its means from what reaches it.

    Deeper layers see what the layers before them give with their new means. Does nothing if no layer asks for it.
    """
    layers = [
        layer
        for layer in model.modules()
        if isinstance(layer, GaussianMixtureAttention) and layer.mixture.means_from_data
    ]
    hooks = [
        layer.register_forward_pre_hook(lambda layer, arguments: layer.start_means_from(*arguments)) for layer in layers
    ]
    try:
        if layers:
            model(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
