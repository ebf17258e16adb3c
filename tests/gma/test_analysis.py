"""Usage of components: the extremes and a case by hand."""

import math

import pytest
import torch

from gma.analysis import effective_components, mean_entropy, usage


def test_even_and_single_use() -> None:
    even, single = torch.full((2, 3, 5, 4), 0.25), torch.zeros(2, 3, 5, 4)
    single[..., 1] = 1
    torch.testing.assert_close(effective_components(even), torch.full((3,), 4.0))
    torch.testing.assert_close(mean_entropy(even), torch.full((3,), math.log(4)))
    torch.testing.assert_close(effective_components(single), torch.ones(3))
    torch.testing.assert_close(mean_entropy(single), torch.zeros(3))


def test_hard_but_even_assignments_use_every_component_without_entropy() -> None:
    gamma = torch.eye(4).reshape(1, 1, 4, 4)
    assert effective_components(gamma).item() == pytest.approx(4)
    assert mean_entropy(gamma).item() == 0


def test_padding_does_not_count() -> None:
    gamma = torch.rand(2, 3, 5, 4).softmax(-1)
    mask = torch.tensor([[True, True, False, True, False], [True, False, False, False, False]])
    real = torch.cat([gamma[0, :, mask[0]], gamma[1, :, mask[1]]], dim=1)
    torch.testing.assert_close(usage(gamma, mask), real.mean(1))
    torch.testing.assert_close(mean_entropy(gamma, mask), -(real * real.log()).sum(-1).mean(1))
