"""WikiText: three sources, three tokenizers, counts that perplexities are divided by, and helpful refusals."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.wikitext import WikiText

LINES = ["", " = A Title = ", "", " the cat sat on the <unk> , naïve ☃ . ", " the end "]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, times in (("train", 40), ("valid", 3), ("test", 2)):
        (tmp_path / f"wiki.{name}.tokens").write_text("\n".join(LINES * times) + "\n", encoding="utf-8")
    return tmp_path


def build(folder: Path, **arguments: Any) -> WikiText:
    return WikiText(**{"cache_dir": folder / "cache", "folder": folder, "vocab_size": 300, "length": 16} | arguments)


def text_of(data: WikiText, split: str) -> str:
    tokens = data.load()[split].tokens
    return data.tokenizer.decode(tokens.tolist(), skip_special_tokens=False)


def test_byte_level_bpe_gives_the_text_back(folder: Path) -> None:
    data = build(folder)
    assert text_of(data, "test") == "\n".join(LINES * 2) + "\n"
    assert data.load()["train"].tokens.max() < data.vocab_size


def test_words_are_split_at_blanks_and_lines_end_with_eos(folder: Path) -> None:
    data = build(folder, tokenizer="words")
    expected = " ".join(" ".join([*line.split(), "<eos>"]) for line in LINES * 2)
    assert text_of(data, "test") == expected
    few = build(folder, tokenizer="words", vocab_size=3)
    assert set(text_of(few, "test").split()) == {"<unk>", "<eos>", "the"}


def test_words_and_bytes_are_counted_for_the_whole_split(folder: Path) -> None:
    data = build(folder)
    data.load()
    assert data.words["validation"] == 3 * (sum(len(line.split()) for line in LINES) + len(LINES))
    assert data.bytes["validation"] == (folder / "wiki.valid.tokens").stat().st_size


def test_the_first_token_is_predicted_from_a_newline(folder: Path) -> None:
    data = build(folder)
    first = data.load()["validation"][0]["tokens"][0]
    assert data.tokenizer.decode([first]) == "\n"


def test_the_fingerprint_follows_text_and_tokenizer_and_nothing_else(folder: Path, tmp_path_factory: Any) -> None:
    names = {build(folder, **change).fingerprint for change in ({}, {"vocab_size": 301}, {"tokenizer": "words"})}
    assert len(names) == 3
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    for path in folder.glob("wiki.*"):
        shutil.copy(path, elsewhere)
    assert build(elsewhere, length=32, stride=4).fingerprint == build(folder).fingerprint
    with (elsewhere / "wiki.train.tokens").open("a") as file:
        file.write("more\n")
    assert build(elsewhere).fingerprint != build(folder).fingerprint


def test_tokens_are_made_once_and_memory_mapped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build(folder).load()["train"]
    assert isinstance(first.tokens, np.memmap)
    assert first.tokens.dtype == np.uint16
    monkeypatch.setattr(WikiText, "_tokenise", lambda *_: pytest.fail("tokenised again"))
    assert (build(folder).load()["train"].tokens == first.tokens).all()


def test_the_unigram_floor_is_what_its_formula_says(folder: Path) -> None:
    data = build(folder)
    splits = data.load()
    counts = np.ones(data.vocab_size)
    for token in splits["train"].tokens:
        counts[token] += 1
    expected = np.exp(np.mean([-np.log(counts[t] / counts.sum()) for t in splits["test"].tokens]))
    assert data.floors(splits)["unigram_perplexity"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"tokenizer": "chars"}, "tokenizer='chars' is not allowed: it must be one of bpe, words, gpt2"),
        ({"vocab_size": 100}, "vocab_size=100 is not allowed: bpe needs at least 257"),
        ({"length": 0}, "length=0 is not allowed"),
        ({"stride": 17}, "stride=17 is not allowed: it must be from 1 to length=16"),
        ({"tokenizer": "gpt2"}, r"name a folder with GPT-2's vocab.json and merges.txt"),
    ],
)
def test_wrong_arguments_are_named(folder: Path, arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        build(folder, **arguments)


def test_missing_files_are_named(folder: Path) -> None:
    (folder / "wiki.test.tokens").unlink()
    with pytest.raises(FileNotFoundError, match=r"has no test text: it must hold one of test.txt, wiki.test.tokens"):
        build(folder)
    with pytest.raises(FileNotFoundError, match=r"lacks vocab.json, merges.txt of GPT-2's tokenizer"):
        WikiText(folder / "cache", tokenizer="gpt2", tokenizer_folder=folder)


def test_without_network_and_copy_the_error_says_every_way_to_get_it(tmp_path: Path) -> None:
    data = WikiText(tmp_path, path="Nobody/has-this", config="wikitext-2-v1")
    with pytest.raises(FileNotFoundError) as error:
        data.load()
    for way in ("Be online once", "GMA_DATA_DIR", "hub/Nobody/has-this/wikitext-2-v1", "task.data.folder"):
        assert way in str(error.value)
    assert not [path for path in (tmp_path / "wikitext").iterdir() if path.suffix not in (".lock", ".partial")]


def test_wikitext_2_has_the_published_numbers_of_words(data_dir: Path, tmp_path: Path) -> None:
    data = WikiText(tmp_path, config="wikitext-2-v1", data_dir=data_dir, tokenizer="words", vocab_size=40_000)
    splits = data.load()
    assert data.words == {"train": 2_088_628, "validation": 217_646, "test": 245_569}
    assert {split: len(windows.tokens) for split, windows in splits.items()} == data.words
    assert data.tokenizer.get_vocab_size() == 33_278
    assert data.describe()["source"] == "local copy of the hub's"


def test_gpt2_tokens_are_those_of_the_published_vocabulary(folder: Path, data_dir: Path) -> None:
    data = build(folder, tokenizer="gpt2", tokenizer_folder=data_dir / "gpt2_bpe")
    assert data.vocab_size == 50_257
    vocabulary = json.loads((data_dir / "gpt2_bpe" / "vocab.json").read_text())
    assert data.tokenizer.encode("Hello world").ids == [vocabulary["Hello"], vocabulary["Ġworld"]]
    assert text_of(data, "test") == "\n".join(LINES * 2) + "\n"


def test_no_network_is_asked_for_a_local_copy(data_dir: Path) -> None:
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    assert WikiText("unused", config="wikitext-2-v1", data_dir=data_dir).local is not None
