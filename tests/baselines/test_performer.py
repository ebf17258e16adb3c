"""Performer against softmax attention and against performer-pytorch.

Shapes: B batch, N tokens, H heads, K features, R = D width of a head.
"""

from itertools import pairwise

import pytest
import torch
from torch.nn import functional as F

from baselines.performer import Performer, orthogonal_projection
from gma.ops import memory

B, H, N, R = 2, 3, 50, 8


def test_projection_rows_are_orthogonal_within_a_block_and_as_long_as_normal_ones() -> None:
    projection = orthogonal_projection(2000, R)
    for block in projection[:80].split(R):
        products = block @ block.T
        torch.testing.assert_close(products, products.diagonal().diag(), rtol=0, atol=1e-4)
    assert projection.square().sum(-1).mean() == pytest.approx(R, rel=0.1)
    assert projection.mean().abs() < 0.05


@pytest.mark.parametrize("causal", [False, True])
def test_more_features_come_closer_to_softmax_attention(causal: bool) -> None:
    mix = memory.causal_mix if causal else memory.mix
    errors = dict.fromkeys((16, 256, 4096), 0.0)
    for features in errors:
        for seed in range(4):
            torch.manual_seed(seed)
            queries, keys, values = (0.5 * torch.randn(B, H, N, R, dtype=torch.float64) for _ in range(3))
            exact = F.scaled_dot_product_attention(queries, keys, values, is_causal=causal)
            layer = Performer(H * R, H, causal, num_features=features).double()
            found = mix(layer.query_features(queries), layer.key_features(keys), values, eps=layer.eps)
            errors[features] += float((found - exact).norm() / exact.norm()) / 4
    few, some, many = errors.values()
    assert many < some / 2 < few / 4 < 0.1
    assert many < 0.05


def test_bidirectional_output_equals_performer_pytorch_over_its_own_features() -> None:
    theirs = pytest.importorskip("performer_pytorch.performer_pytorch")
    layer = Performer(H * R, H, num_features=20).double()
    queries, keys, values = (torch.randn(B, H, N, R, dtype=torch.float64) for _ in range(3))
    features = [
        theirs.softmax_kernel(x, projection_matrix=layer.projection, is_query=is_query, eps=0.0)
        for x, is_query in ((queries, True), (keys, False))
    ]
    expected = theirs.linear_attention(*features, values)
    found = memory.mix(layer.query_features(queries), layer.key_features(keys), values, eps=layer.eps)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
def test_features_stay_finite_and_reads_bounded_by_the_values(scale: float) -> None:
    layer = Performer(2 * 64, 2)
    queries, keys = scale * torch.randn(B, 2, N, 64), scale * torch.randn(B, 2, N, 64)
    values = torch.ones(B, 2, N, 64)
    found = memory.mix(layer.query_features(queries), layer.key_features(keys), values, eps=layer.eps)
    assert found.isfinite().all()
    assert (found <= 1 + 1e-5).all()


def test_projection_is_redrawn_when_due_and_saved() -> None:
    layer = Performer(H * R, H, redraw_every=2)
    x, seen = torch.randn(B, N, H * R), []
    for _ in range(5):
        layer(x)
        seen.append(layer.projection.clone())
    assert [torch.equal(a, b) for a, b in pairwise(seen)] == [True, False, True, False]
    layer.eval()
    layer(x)
    assert torch.equal(layer.projection, seen[-1])
    other = Performer(H * R, H, redraw_every=2)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other.eval()(x), layer(x))


def test_wrong_arguments_are_named() -> None:
    for argument, value in (("num_features", 0), ("redraw_every", -1)):
        with pytest.raises(ValueError, match=f"={value} is not allowed"):
            Performer(H * R, H, **{argument: value})
