"""What GMA has beyond the mixer contract: the definition end to end, cross-attention, responsibilities, state size."""

from functools import partial

import pytest
import torch
from torch import nn

from gma import GaussianMixtureAttention, MeanPoolHead, SequenceModel, start_means_from_data
from gma.ops import reference


def heads(x: torch.Tensor, num_heads: int) -> torch.Tensor:
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def defined(
    layer: GaussianMixtureAttention, x: torch.Tensor, context: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    """The layer written out with the reference."""
    mixture = (layer.mixture.means, layer.mixture.variances, layer.mixture.log_priors, layer.mixture.temperature)
    queries = reference.responsibilities(heads(layer.q_proj(x), layer.num_heads), *mixture)
    keys = reference.responsibilities(heads(layer.k_proj(context), layer.num_heads), *mixture)
    mix = reference.causal_mix if layer.causal else reference.mix
    mixed = mix(queries, keys, heads(layer.v_proj(context), layer.num_heads), mask, layer.eps)
    return layer.out_proj(mixed.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("route_dim", [None, 3, 20])
def test_equals_the_definition_with_gradients_of_every_parameter(causal: bool, route_dim: int | None) -> None:
    layer = GaussianMixtureAttention(12, 2, 5, route_dim, causal).double()
    x = torch.randn(2, 77, 12, dtype=torch.float64)
    mask = torch.arange(77) < torch.tensor([[77], [50]])
    found, expected = layer(x, mask), defined(layer, x, x, mask)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    weight = torch.randn_like(found)
    parameters = list(layer.parameters())
    for mine, theirs in zip(
        torch.autograd.grad(found, parameters, weight), torch.autograd.grad(expected, parameters, weight), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


def test_cross_attention_reads_from_the_context_and_ignores_its_padding() -> None:
    layer = GaussianMixtureAttention(12, 2, 5).double()
    x, context = torch.randn(2, 9, 12, dtype=torch.float64), torch.randn(2, 31, 12, dtype=torch.float64)
    mask = torch.arange(31) < torch.tensor([[31], [10]])
    found = layer(x, mask, context)
    torch.testing.assert_close(found, defined(layer, x, context, mask), rtol=1e-9, atol=1e-9)
    changed = context.masked_fill(~mask.unsqueeze(-1), 1e3)
    torch.testing.assert_close(layer(x, mask, changed), found, rtol=0, atol=0)
    with pytest.raises(ValueError, match="context is for causal=False"):
        GaussianMixtureAttention(12, 2, 5, causal=True)(x.float(), mask, context.float())


def test_responsibilities_are_distributions_over_components() -> None:
    layer = GaussianMixtureAttention(12, 3, 7)
    queries, keys = layer.responsibilities(torch.randn(2, 10, 12), torch.randn(2, 4, 12))
    assert queries.shape == (2, 3, 10, 7)
    assert keys.shape == (2, 3, 4, 7)
    for gamma in (queries, keys):
        assert (gamma >= 0).all()
        torch.testing.assert_close(gamma.sum(-1), torch.ones(gamma.shape[:-1]))


@pytest.mark.parametrize("causal", [False, True])
def test_recomputing_changes_no_number_and_keeps_projections_alone(causal: bool) -> None:
    layer = GaussianMixtureAttention(12, 2, 5, 4, causal=causal)
    lean = GaussianMixtureAttention(12, 2, 5, 4, causal=causal, recompute=True)
    lean.load_state_dict(layer.state_dict())
    x, mask = torch.randn(2, 130, 12, requires_grad=True), torch.arange(130) < torch.tensor([[130], [50]])
    expected, kept = layer(x, mask), {}
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: kept.setdefault(t.untyped_storage().data_ptr(), t), lambda t: t
    ):
        found = lean(x, mask)
    weight = torch.randn_like(found)
    for mine, theirs in zip(
        torch.autograd.grad(found, [x, *lean.parameters()], weight),
        torch.autograd.grad(expected, [x, *layer.parameters()], weight),
        strict=True,
    ):
        assert torch.equal(mine, theirs)
    parameters = {p.untyped_storage().data_ptr() for p in lean.parameters()}
    numbers = sum(t.numel() for place, t in kept.items() if place not in parameters and t.is_floating_point())
    # the input, what goes into the last projection, and queries, keys and values
    assert numbers <= 2 * 130 * (12 + 12 + 2 * (4 + 4 + 6))


@pytest.mark.parametrize("causal", [False, True])
def test_compiles_in_one_graph_to_the_same_numbers(causal: bool) -> None:
    layer = GaussianMixtureAttention(12, 2, 5, causal=causal)
    x, mask = torch.randn(2, 130, 12, requires_grad=True), torch.arange(130) < torch.tensor([[130], [50]])
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    expected, found = layer(x, mask), compiled(x, mask)
    torch.testing.assert_close(found, expected)
    weight, inputs = torch.randn_like(found), [x, *layer.parameters()]
    for mine, theirs in zip(
        torch.autograd.grad(found, inputs, weight), torch.autograd.grad(expected, inputs, weight), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_state_holds_what_is_declared_at_any_length() -> None:
    layer = GaussianMixtureAttention(12, 3, 7, causal=True)
    state = layer.init_state(batch_size=2)
    assert (
        sum(tensor[0].numel() for tensor in state)
        == layer.state_elements(1)
        == layer.state_elements(10**6)
        == 3 * 7 * 5
    )


def test_layers_that_ask_for_it_start_their_means_from_what_reaches_them() -> None:
    def build(means_from_data: bool) -> SequenceModel:
        torch.manual_seed(0)
        mixer = partial(
            GaussianMixtureAttention, num_heads=2, num_components=5, equal_norms=False, means_from_data=means_from_data
        )
        return SequenceModel(mixer, nn.Identity(), MeanPoolHead(12, 2), dim=12, depth=2, mlp_dim=8)

    x, mask = torch.randn(2, 30, 12), torch.arange(30) < torch.tensor([[30], [4]])
    model, other = build(True), build(False)
    start_means_from_data(other, x, mask)
    assert all(torch.equal(one, same) for one, same in zip(other.parameters(), build(False).parameters(), strict=True))
    start_means_from_data(model, x, mask)
    for block in model.blocks:
        layer, reached = block.mixer, block.mixer_norm(x)
        tokens = torch.cat([heads(layer.q_proj(reached), 2), heads(layer.k_proj(reached), 2)], 2)
        real = torch.cat([mask, mask], 1)
        for head in range(2):
            differences = layer.mixture.means[head].unsqueeze(1) - tokens[:, head][real]
            assert (differences.abs().amax(-1).amin(-1) < 1e-5).all()
        x = block(x, mask)
    assert not model.blocks[0].mixer._forward_pre_hooks


@pytest.mark.parametrize(
    ("argument", "value"), [("dim", 0), ("num_heads", 5), ("num_components", 0), ("route_dim", 0), ("eps", 0.0)]
)
def test_wrong_arguments_are_named_with_their_value(argument: str, value: float) -> None:
    arguments = {"dim": 12, "num_heads": 3, "num_components": 4, argument: value}
    with pytest.raises(ValueError, match=f"{argument}={value}.*must be"):
        GaussianMixtureAttention(**arguments)
