"""Embeddings, blocks and heads around a mixer."""

from functools import partial

import pytest
import torch

import gma

MIXER = partial(gma.GaussianMixtureAttention, num_heads=2, num_components=4)


def classifier(head: torch.nn.Module, positions: torch.nn.Module | None = None) -> gma.SequenceModel:
    model = gma.SequenceModel(MIXER, gma.TokenEmbedding(20, 16), head, dim=16, depth=2, mlp_dim=24, positions=positions)
    return model.double()


def language_model(positions: torch.nn.Module | None = None) -> gma.SequenceModel:
    embedding = gma.TokenEmbedding(20, 16)
    mixer = partial(MIXER, causal=True)
    return gma.SequenceModel(
        mixer, embedding, gma.LanguageModelHead(embedding), dim=16, depth=2, mlp_dim=24, positions=positions
    ).double()


@pytest.mark.parametrize("head", [gma.MeanPoolHead, gma.ClsHead])
def test_classes_do_not_depend_on_what_stands_in_the_padding(head: type[torch.nn.Module]) -> None:
    model = classifier(head(16, 3), gma.LearnedPositions(50, 16))
    tokens = torch.randint(1, 20, (2, 50))
    mask = torch.arange(50) < torch.tensor([[50], [30]])
    logits = model(tokens, mask)
    assert logits.shape == (2, 3)
    torch.testing.assert_close(model(tokens.masked_fill(~mask, 7), mask), logits, rtol=0, atol=0)
    torch.testing.assert_close(model(tokens[1:, :30]), logits[1:])


def test_pairs_are_read_by_one_model_and_compared_without_their_padding() -> None:
    model = classifier(gma.PairHead(16, 2))
    first, second = torch.randint(1, 20, (2, 3, 30)).unbind()
    mask = torch.arange(30) < torch.tensor([30, 12, 1, 7, 30, 2])[:, None]
    logits = model(torch.cat([first, second]), mask)
    assert logits.shape == (3, 2)
    alone = model(torch.cat([first[1:2, :12], torch.zeros(1, 12, dtype=torch.int64)]), None)
    assert not torch.allclose(alone[0], logits[1])
    pair = torch.cat([first[1:2], second[1:2]])
    torch.testing.assert_close(model(pair, mask[[1, 4]])[0], logits[1])


@pytest.mark.parametrize("head", [gma.MeanPoolHead, gma.ClsHead])
def test_an_all_padded_row_is_finite(head: type[torch.nn.Module]) -> None:
    mask = torch.tensor([[True] * 8, [False] * 8])
    assert classifier(head(16, 3))(torch.zeros(2, 8, dtype=torch.int64), mask).isfinite().all()


@pytest.mark.parametrize(
    "positions",
    [gma.LearnedPositions(40, 16), gma.GridPositions(5, 8, 16), gma.SinusoidalPositions(16), gma.NoPositions()],
)
def test_decoding_equals_the_parallel_form(positions: torch.nn.Module) -> None:
    model = language_model(positions).eval()
    tokens = torch.randint(20, (2, 40))
    state, steps = model.init_state(2), []
    with torch.no_grad():
        for t in range(40):
            logits, state = model.step(tokens[:, t], state)
            steps.append(logits)
        torch.testing.assert_close(torch.stack(steps, 1), model(tokens), rtol=1e-9, atol=1e-9)
    assert state.position == 40


def test_language_model_ties_its_weights() -> None:
    model = language_model()
    assert model.head.weight is model.embedding.weight
    assert model(torch.randint(20, (2, 5))).shape == (2, 5, 20)


def test_continuous_values_are_embedded() -> None:
    model = gma.SequenceModel(
        MIXER, gma.ContinuousEmbedding(3, 16), gma.MeanPoolHead(16, 2), dim=16, depth=1, mlp_dim=8
    )
    assert model(torch.randn(2, 10, 3)).shape == (2, 2)


def test_positions_tell_order_apart() -> None:
    tokens = torch.randint(1, 20, (1, 12))
    for positions in (gma.LearnedPositions(12, 16), gma.GridPositions(3, 4, 16), gma.SinusoidalPositions(16)):
        model = classifier(gma.MeanPoolHead(16, 3), positions)
        assert not torch.allclose(model(tokens), model(tokens.flip(1)))
    model = classifier(gma.MeanPoolHead(16, 3))
    torch.testing.assert_close(model(tokens), model(tokens.flip(1)))


def test_pixels_of_a_grid_share_the_vectors_of_their_row_and_column() -> None:
    positions = gma.GridPositions(3, 4, 16)
    added = positions(torch.zeros(1, 12, 16)).reshape(3, 4, 16)
    torch.testing.assert_close(added, positions.rows[:, None] + positions.columns)


def test_refusals_say_what_is_wrong() -> None:
    with pytest.raises(ValueError, match=r"length=13 .* at most max_length=12"):
        gma.LearnedPositions(12, 16)(torch.zeros(1, 13, 16))
    with pytest.raises(ValueError, match=r"length=13 .* at most height x width=12"):
        gma.GridPositions(3, 4, 16)(torch.zeros(1, 13, 16))
    with pytest.raises(ValueError, match=r"dim=15 .* even"):
        gma.SinusoidalPositions(15)
    with pytest.raises(ValueError, match="LanguageModelHead"):
        classifier(gma.MeanPoolHead(16, 3)).init_state(1)
    for argument, value in (("depth", 0), ("mlp_dim", 0), ("dropout", 1.0)):
        arguments = {"dim": 16, "depth": 1, "mlp_dim": 8, argument: value}
        with pytest.raises(ValueError, match=f"{argument}={value}"):
            gma.SequenceModel(MIXER, gma.TokenEmbedding(20, 16), gma.MeanPoolHead(16, 3), **arguments)
