"""Sampling and generation: the distribution is the one asked for, and decoding goes on from the prompt."""

from functools import partial
from itertools import islice

import pytest
import torch

import gma
from gma.sampling import sample

DRAWS = 20_000


def frequencies(logits: torch.Tensor, **arguments: float) -> torch.Tensor:
    tokens = sample(logits.expand(DRAWS, -1), generator=torch.Generator().manual_seed(0), **arguments)
    return torch.bincount(tokens, minlength=logits.shape[-1]) / DRAWS


P = torch.tensor([0.1, 0.4, 0.05, 0.3, 0.15])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, P),
        ({"temperature": 0.5}, P.square() / P.square().sum()),
        ({"temperature": 0}, torch.tensor([0, 1.0, 0, 0, 0])),
        ({"top_k": 2}, torch.tensor([0, 4 / 7, 0, 3 / 7, 0])),
        ({"top_k": 99}, P),
        ({"top_p": 0.5}, torch.tensor([0, 4 / 7, 0, 3 / 7, 0])),
        ({"top_p": 0.39}, torch.tensor([0, 1.0, 0, 0, 0])),
        ({"top_p": 1.0}, P),
        ({"top_k": 3, "top_p": 0.8}, torch.tensor([0, 4 / 7, 0, 3 / 7, 0])),
    ],
)
def test_draws_follow_the_distribution_asked_for(arguments: dict[str, float], expected: torch.Tensor) -> None:
    found = frequencies(P.log(), **arguments)
    assert ((found > 0) == (expected > 0)).all()
    torch.testing.assert_close(found, expected, rtol=0, atol=4 * 0.5 / DRAWS**0.5)


@pytest.mark.parametrize("arguments", [{"temperature": -1}, {"top_k": 0}, {"top_p": 0.0}, {"top_p": 1.1}])
def test_wrong_arguments_are_named(arguments: dict[str, float]) -> None:
    (name,) = arguments
    with pytest.raises(ValueError, match=f"{name}=.* is not allowed"):
        sample(P.log()[None], **arguments)


@pytest.fixture
def model() -> gma.SequenceModel:
    embedding = gma.TokenEmbedding(11, 16)
    mixer = partial(gma.GaussianMixtureAttention, num_heads=2, num_components=4, causal=True)
    torch.nn.init.normal_(embedding.weight)
    return gma.SequenceModel(mixer, embedding, gma.LanguageModelHead(embedding), dim=16, depth=2, mlp_dim=32).eval()


def test_greedy_generation_is_what_forward_says(model: gma.SequenceModel) -> None:
    tokens = torch.randint(11, (3, 5))
    generated = torch.stack(list(islice(model.generate(tokens, temperature=0), 20)), dim=1)
    for _ in range(20):
        tokens = torch.cat([tokens, model(tokens)[:, -1:].argmax(-1)], dim=1)
    assert torch.equal(generated, tokens[:, 5:])


def test_the_same_seed_writes_the_same(model: gma.SequenceModel) -> None:
    def write(seed: int) -> list[int]:
        tokens = model.generate(torch.tensor([[3]]), generator=torch.Generator().manual_seed(seed))
        return [int(token) for token in islice(tokens, 30)]

    assert write(1) == write(1)
    assert write(1) != write(2)


def test_an_empty_prompt_and_a_bidirectional_model_are_refused_before_the_first_token(model: gma.SequenceModel) -> None:
    with pytest.raises(ValueError, match=r"prompt=\(2, 0\) is not allowed"):
        model.generate(torch.zeros(2, 0, dtype=torch.int64))
    with pytest.raises(ValueError, match="top_k=0 is not allowed"):
        model.generate(torch.zeros(2, 1, dtype=torch.int64), top_k=0)
    mixer = partial(gma.GaussianMixtureAttention, num_heads=2, num_components=4)
    classifier = gma.SequenceModel(
        mixer, gma.TokenEmbedding(11, 16), gma.MeanPoolHead(16, 2), dim=16, depth=1, mlp_dim=8
    )
    with pytest.raises(ValueError, match="decoding needs a LanguageModelHead"):
        classifier.generate(torch.zeros(2, 1, dtype=torch.int64))
