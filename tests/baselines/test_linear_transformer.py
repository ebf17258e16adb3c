"""Linear Transformer against the explicit sum."""

import pytest
import torch
from torch.nn import functional as F

from baselines.linear_transformer import LinearTransformer
from gma.ops import reference


@pytest.mark.parametrize("causal", [False, True])
def test_equals_the_explicit_sum_over_pairs(causal: bool) -> None:
    layer = LinearTransformer(12, 3, causal).double()
    x = torch.randn(2, 77, 12, dtype=torch.float64)
    mask = torch.arange(77) < torch.tensor([[77], [50]])
    queries, keys, values = (layer.split_heads(proj(x)) for proj in (layer.q_proj, layer.k_proj, layer.v_proj))
    weights = (F.elu(queries) + 1) @ (F.elu(keys) + 1).transpose(-1, -2) * mask[:, None, None, :]
    weights = weights.tril() if causal else weights
    expected = weights @ values / (weights.sum(-1, keepdim=True) + layer.eps)
    torch.testing.assert_close(layer(x, mask), layer.merge_heads(expected), rtol=1e-9, atol=1e-9)
    affinity = reference.affinity(*layer.features(x), causal, mask, layer.eps)
    torch.testing.assert_close(affinity @ values, expected, rtol=1e-9, atol=1e-9)


def test_state_does_not_grow() -> None:
    layer = LinearTransformer(12, 3, causal=True)
    assert layer.state_elements(1) == layer.state_elements(10**6) == 3 * 4 * (4 + 1)
