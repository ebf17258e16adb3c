"""Linformer: softmax attention over E K and E V, and what it refuses."""

import pytest
import torch

from baselines.linformer import Linformer


def explicit(mixer: Linformer, x: torch.Tensor, projection: torch.Tensor) -> torch.Tensor:
    """With the matrices written out: ``projection`` (H, k, N)."""
    q, k, v = (mixer.split_heads(f(x)) for f in (mixer.q_proj, mixer.k_proj, mixer.v_proj))
    scores = q @ (projection @ k).transpose(-1, -2) / mixer.head_dim**0.5
    return mixer.merge_heads(scores.softmax(-1) @ (projection @ v))


@pytest.mark.parametrize("length", [1, 7, 64])
def test_full_matrix(length: int) -> None:
    mixer, x = Linformer(24, 3, max_length=64, rank=5).double(), torch.randn(2, length, 24, dtype=torch.float64)
    projection = mixer.E[:, :length].expand(3, -1, -1)
    torch.testing.assert_close(mixer(x), explicit(mixer, x, projection))


@pytest.mark.parametrize("length", [1, 7, 62, 64])
def test_convolution_is_a_matrix_that_repeats_its_window(length: int) -> None:
    mixer = Linformer(24, 3, max_length=64, rank=5, convolution=True).double()
    x = torch.randn(2, length, 24, dtype=torch.float64)
    assert mixer.window == 13
    projection = torch.stack([torch.kron(torch.eye(5, dtype=torch.float64), row[None]) for row in mixer.E])
    reached = -(-length // 13)
    torch.testing.assert_close(mixer(x), explicit(mixer, x, projection[:, :reached, :length]))


def test_time_and_memory_do_not_depend_on_pairs_of_tokens() -> None:
    """Nothing of N x N is kept for the backward pass: numbers kept grow as N does."""

    def kept(length: int) -> int:
        mixer, total = Linformer(24, 3, max_length=4096, rank=16, convolution=True), 0

        def pack(x: torch.Tensor) -> torch.Tensor:
            nonlocal total
            total += x.numel()
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            mixer(torch.randn(1, length, 24))
        return total

    assert kept(4096) < 4.2 * kept(1024)


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match=r"causal=True is not allowed for Linformer: .* seeing the future"):
        Linformer(24, 3, causal=True, max_length=64)
    with pytest.raises(ValueError, match="rank=65 is not allowed: rank must be from 1 to max_length=64"):
        Linformer(24, 3, max_length=64, rank=65)
    with pytest.raises(ValueError, match="length=65 is not allowed: length must be at most max_length=64"):
        Linformer(24, 3, max_length=64)(torch.randn(1, 65, 24))
