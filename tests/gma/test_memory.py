"""The memory engine against the definition.

Shapes: B batch, N tokens, M keys, H heads, K slots, D value width.
"""

import pytest
import torch

from gma.ops import memory, reference

B, H, K, D = 2, 3, 5, 6
LENGTHS = [1, 2, 63, 64, 65, 300, 1000]
EPS = 1e-6


def inputs(length: int, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    queries = torch.randn(B, H, length, K, dtype=dtype).softmax(-1)
    keys = torch.randn(B, H, length, K, dtype=dtype).softmax(-1)
    values = torch.randn(B, H, length, D, dtype=dtype)
    return [tensor.requires_grad_() for tensor in (queries, keys, values)]


def padding(length: int) -> torch.Tensor:
    """Row 0 ends early, row 1 has holes and starts late; a lone token is padding in row 1."""
    mask = torch.rand(B, length) > 0.3
    mask[0] = torch.arange(length) < max(1, length // 2)
    mask[1, : length // 3 + 1] = False
    return mask


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    found, expected = found.detach(), expected.detach()
    return float((found.double() - expected).square().mean().sqrt() / expected.square().mean().sqrt())


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", ["mix", "causal_mix"])
def test_equals_the_definition_with_all_gradients(name: str, length: int, masked: bool) -> None:
    tensors = inputs(length)
    mask = padding(length) if masked else None
    expected = getattr(reference, name)(*tensors, mask, EPS)
    found = getattr(memory, name)(*tensors, mask, EPS)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    weight = torch.randn_like(expected)
    for mine, theirs in zip(
        torch.autograd.grad(found, tensors, weight), torch.autograd.grad(expected, tensors, weight), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 2e-6), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("length", [65, 1000])
@pytest.mark.parametrize("name", ["mix", "causal_mix"])
def test_low_precision_stays_close_to_float64(name: str, length: int, dtype: torch.dtype, bound: float) -> None:
    tensors = inputs(length)
    low = [tensor.detach().to(dtype).requires_grad_() for tensor in tensors]
    exact = [tensor.detach().double().requires_grad_() for tensor in low]
    found, expected = getattr(memory, name)(*low), getattr(reference, name)(*exact, None, EPS)
    assert found.dtype == dtype
    assert relative_error(found, expected) < bound
    weight = torch.randn_like(expected)
    for mine, theirs in zip(
        torch.autograd.grad(found, low, weight.to(dtype)), torch.autograd.grad(expected, exact, weight), strict=True
    ):
        assert relative_error(mine, theirs) < 3 * bound


@pytest.mark.parametrize("chunk_size", [1, 7, 64, 4096])
def test_chunk_size_changes_nothing(chunk_size: int) -> None:
    tensors = inputs(130)
    found = memory.causal_mix(*tensors, chunk_size=chunk_size)
    torch.testing.assert_close(found, reference.causal_mix(*tensors, None, EPS), rtol=1e-9, atol=1e-9)


def test_features_need_not_sum_to_one() -> None:
    queries, keys, values = (tensor.detach() for tensor in inputs(100))
    found = memory.causal_mix(3 * queries, 0.1 * keys.square(), values)
    torch.testing.assert_close(found, reference.causal_mix(3 * queries, 0.1 * keys.square(), values, None, EPS))


def test_mix_is_the_explicit_affinity_times_values() -> None:
    queries, keys, values = inputs(50)
    for causal, mix in ((False, reference.mix), (True, reference.causal_mix)):
        affinity = reference.affinity(queries, keys, causal, eps=EPS)
        torch.testing.assert_close(affinity @ values, mix(queries, keys, values, None, EPS))
        assert (affinity >= 0).all()
        scores = queries @ keys.transpose(-1, -2)
        d = (scores.tril() if causal else scores).sum(-1)
        torch.testing.assert_close(affinity.sum(-1), d / (d + EPS))
        assert causal or torch.linalg.matrix_rank(affinity).max() <= K


@pytest.mark.parametrize("name", ["mix", "causal_mix"])
def test_a_row_of_padding_alone_reads_zeros(name: str) -> None:
    mask = torch.tensor([[True] * 70, [False] * 70])
    found = getattr(memory, name)(*inputs(70), mask)
    assert (found[1] == 0).all()
    assert found.isfinite().all()


def test_early_outputs_do_not_feel_later_writes_however_large() -> None:
    queries, keys, values = (tensor.detach().float() for tensor in inputs(64))
    faint = keys.clone()
    faint[:, :, :32] *= 1e-6
    before = memory.causal_mix(queries, faint, values, eps=1e-12, chunk_size=32)
    faint[:, :, 40:] *= 1e6
    after = memory.causal_mix(queries, faint, values, eps=1e-12, chunk_size=32)
    torch.testing.assert_close(before[:, :, :40], after[:, :, :40], rtol=0, atol=0)


def test_steps_equal_the_parallel_form() -> None:
    queries, keys, values = inputs(200)
    state = memory.init_state(B, H, K, D, values.device)
    outputs = []
    with torch.no_grad():
        for t in range(200):
            output, state = memory.step(queries[:, :, t], keys[:, :, t], values[:, :, t], state, EPS)
            outputs.append(output)
    expected = reference.causal_mix(queries, keys, values, None, EPS)
    torch.testing.assert_close(torch.stack(outputs, 2), expected, rtol=1e-9, atol=1e-9)


def test_a_million_steps_lose_nothing_measurable() -> None:
    """float32 tokens decoded one by one, against float64 sums over all of them."""
    period, repeats = 1000, 1000
    queries, keys, values = (tensor[:1, :1].detach() for tensor in inputs(period, torch.float32))
    state = memory.init_state(1, 1, K, D, values.device)
    with torch.inference_mode():
        for t in range(period * repeats):
            i = t % period
            output, state = memory.step(queries[:, :, i], keys[:, :, i], values[:, :, i], state, EPS)
    memory_sum = repeats * keys.double().transpose(-1, -2) @ values.double()
    mass = repeats * keys.double().sum(-2)
    last = queries[:, :, -1:].double()
    expected = ((last @ memory_sum) / (last @ mass.unsqueeze(-1) + EPS)).squeeze(2)
    assert relative_error(output, expected) < 1e-6


def test_differentiating_twice_is_refused_not_wrong() -> None:
    tensors = inputs(130)
    loss = memory.causal_mix(*tensors).square().sum()
    with pytest.raises(RuntimeError, match="first derivatives only"):
        torch.autograd.grad(loss, tensors[:1], create_graph=True)


@pytest.mark.parametrize("length", [512, 1024, 2048])
def test_kept_for_the_backward_pass_are_both_features_values_result_and_normaliser(length: int) -> None:
    tensors, storages = inputs(length, torch.float32), {}
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: storages.setdefault(t.untyped_storage().data_ptr(), t), lambda t: t
    ):
        memory.causal_mix(*tensors).sum()
    kept = sum(t.untyped_storage().nbytes() for t in storages.values()) / 4
    assert kept == B * H * length * (2 * K + 2 * D + 1)
