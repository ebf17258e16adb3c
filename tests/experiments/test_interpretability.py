"""What components do: categories of tokens, agreement beside chance, and the run that puts them together."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import DictConfig
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from experiments import interpretability, results
from experiments.agreement import MEASURES, agreement, cramers_v, purity
from experiments.checkpoints import load_language_model
from experiments.component_figures import look
from experiments.errors import RefusedError
from experiments.token_categories import categorise, count_words, words

TEXT = " = NASA visited 3 @-@ D Marlborough of the <unk> , and saw pneumonoultra \n"
EXPECTED = {
    "=": "markup", "NASA": "all capitals", "visited": "word", "3": "digit", "@-@": "markup", "D": "capitalised",
    "Marlborough": "capitalised", "of": "function word", "the": "function word", "<unk>": "markup", ",": "punctuation",
    "and": "function word", "saw": "word", "pneumonoultra": "rare word", "": "newline",
}  # fmt: skip


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([TEXT] * 3, trainer)
    return tokenizer


def test_a_token_has_the_category_of_its_word_and_the_rest_of_a_word_continues_it() -> None:
    tokenizer = byte_level()
    tokens = tokenizer.encode(TEXT).ids
    assert len(tokens) > len(EXPECTED)
    categories = iter(categorise(tokens, tokenizer, {"visited": 10, "saw": 99}))
    found = {}
    for word in words(tokens, tokenizer):
        text = tokenizer.decode(word).strip()
        found[text], *others = (next(categories) for _ in word)
        whole = found[text] if found[text] in ("markup", "digit", "punctuation", "newline") else "continuation"
        assert set(others) <= {whole}
    assert found == EXPECTED


def test_words_as_tokens_have_categories_too() -> None:
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "<eos>": 1, "The": 2, "cat": 3}, unk_token="<unk>"))
    assert categorise([2, 3, 0, 1], tokenizer, {"cat": 50}) == ["function word", "word", "markup", "newline"]
    assert count_words([2, 3, 3, 1], tokenizer) == {"The": 1, "cat": 2, "<eos>": 1}


def test_agreement_is_full_for_the_same_labels_and_chance_for_shuffled_ones() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 5, 4000)
    same = agreement(labels, (labels + 2) % 5, shuffles=10, seed=0)
    assert [same[name]["value"] for name in MEASURES] == pytest.approx([1.0] * 4)
    other = agreement(labels, rng.integers(0, 7, 4000), shuffles=30, seed=0)
    for name, found in other.items():
        assert found["chance_low"] <= found["chance"] <= found["chance_high"]
        assert found["value"] == pytest.approx(found["chance"], abs=0.05), name
        assert found["value"] < same[name]["value"]


def test_purity_and_cramers_v_are_what_a_small_table_says() -> None:
    labels, clusters = np.array([0, 0, 1, 1, 1, 2]), np.array([0, 0, 0, 1, 1, 1])
    assert purity(labels, clusters) == pytest.approx(4 / 6)
    chi_squared = 6 * (2**2 / (2 * 3) + 1 / (3 * 3) + 2**2 / (3 * 3) + 1 / (1 * 3) - 1)
    assert cramers_v(labels, clusters) == pytest.approx((chi_squared / 6) ** 0.5)
    assert cramers_v(labels, np.zeros(6, int)) == 0


Make = Callable[..., DictConfig]


def test_a_trained_model_is_looked_at_beside_an_untrained_one(
    configure: Make, train_text: Callable[..., results.Result], tmp_path: Path
) -> None:
    train_text("backbone.depth=2")
    cfg = configure(
        "task=interpretability", f"checkpoint={tmp_path}/run/checkpoints/best.ckpt", "task.windows=3", "task.shuffles=2"
    )
    result = interpretability.run(cfg, "interpretability/gma/tiny", tmp_path / "out")
    assert results.read(tmp_path / "out" / "result.json") == result
    assert str(tmp_path) not in (tmp_path / "out" / "result.json").read_text()
    assert len(result.rows) == 2 * 2 * 2 * 2  # states, layers, sides, heads
    for row in result.rows:
        assert sum(row["usage"]) == pytest.approx(1, abs=1e-4)
        assert 1 <= row["effective_components"] <= len(row["usage"])
        assert np.sum(row["table"]) == 3 * 24 == result.execution["tokens"]
        assert 0 <= row["dead_share"] <= 1
        assert 0 < row["lipschitz"] <= row["lipschitz_bound"]
    for name in ("categories", "usage", "responsibilities", "affinity", "routing_space"):
        assert (tmp_path / "out" / f"{name}.png").stat().st_size > 1000
    interpretability.show(result, tmp_path)

    loaded = load_language_model(tmp_path / "run" / "checkpoints" / "best.ckpt", cfg.cache_dir, None)
    tokens = torch.randint(300, (interpretability.WINDOWS_AT_ONCE + 1, 24))
    observed = interpretability.observe(loaded.model, tokens)
    (vectors, gamma), (_, key_gamma) = observed[1]
    layer, gammas, (queries, _) = look(loaded.model, tokens[-1], 1, 1)
    torch.testing.assert_close(gammas[0], gamma[-1, 1])
    torch.testing.assert_close(gammas[1], key_gamma[-1, 1])
    torch.testing.assert_close(queries, vectors[-1, 1])
    torch.testing.assert_close(layer.mixture(queries.expand(1, 2, -1, -1))[0, 1], gammas[0])


def test_a_model_without_components_is_refused(
    configure: Make, train_text: Callable[..., results.Result], tmp_path: Path
) -> None:
    train_text("model=linear_transformer")
    cfg = configure("task=interpretability", f"checkpoint={tmp_path}/run/checkpoints/best.ckpt")
    with pytest.raises(RefusedError, match="a model without Gaussian mixtures; train one with model=gma"):
        interpretability.run(cfg, "interpretability/gma/tiny", tmp_path / "out")
