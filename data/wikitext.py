"""WikiText-103 and WikiText-2 (Merity et al. 2017), or any text in three files, for language modelling.

From the Hugging Face hub, from a local folder of the same layout, or from plain text. A tokenizer is trained on the
train split or read from files; each split is tokenised once into one array on disk, which is memory-mapped.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from data.batch import Batch, pad
from data.cache import find_or_fill
from data.hub import digest, digest_of_files, find_local_copy, load_split
from data.windows import Windows

SPLITS = ("train", "validation", "test")
TOKENIZERS = ("bpe", "words", "gpt2")
UNKNOWN, END_OF_LINE = "<unk>", "<eos>"  # of words
GPT2_VOCAB_SIZE = 50_257
FILE_NAMES = {  # of plain text, the first that exists
    split: [f"{name}.txt" for name in names] + [f"wiki.{name}.{kind}" for name in names for kind in ("tokens", "raw")]
    for split, names in {"train": ["train"], "validation": ["validation", "valid"], "test": ["test"]}.items()
}
LINES_AT_ONCE = 5_000
FORMAT_VERSION = 1  # part of the cache key: raise it when the same text would give other tokens


class WikiText:
    """Windows of ``length`` tokens over the three splits, see :class:`data.windows.Windows`.

    Every line ends with a newline (``<eos>`` of words), which counts as a word and a byte. The first token of a split
    is predicted from a newline. With ``words``, a word that the vocabulary lacks is one ``<unk>``, easy to predict:
    scores compare only with those of the same vocabulary.

    Args:
        cache_dir: where tokenizer and tokens go.
        path: a data set of the hub, or a folder in its layout. config: its configuration.
        data_dir: looked through for ``path`` and ``hub/<path>`` before the hub is asked.
        folder: with ``{train,validation,test}.txt`` or ``wiki.{train,valid,test}.{tokens,raw}``, instead of all that.
        tokenizer: ``bpe``, byte-level, trained on the train split; ``words``, split at blanks, the commonest of the
            train split; ``gpt2``, from ``vocab.json`` and ``merges.txt`` in ``tokenizer_folder``.
        vocab_size: of the first two; GPT-2 has its own.
        length: N, tokens of a window. stride: from one evaluation window to the next; ``None`` takes N.

    Raises:
        ValueError: naming the argument, for a tokenizer or a count that makes no sense.
        FileNotFoundError: for files missing in ``folder`` or ``tokenizer_folder``, and from :meth:`load` if the text is
            neither here nor to be fetched.
    """

    num_classes = None  # every position has a label

    def __init__(
        self,
        cache_dir: str | Path,
        path: str = "Salesforce/wikitext",
        config: str = "wikitext-103-raw-v1",
        data_dir: str | Path | None = None,
        folder: str | Path | None = None,
        tokenizer: str = "bpe",
        vocab_size: int = 16_384,
        tokenizer_folder: str | Path | None = None,
        length: int = 256,
        stride: int | None = None,
    ) -> None:
        if tokenizer not in TOKENIZERS:
            raise ValueError(f"tokenizer={tokenizer!r} is not allowed: it must be one of {', '.join(TOKENIZERS)}")
        least = 257 if tokenizer == "bpe" else 3
        if tokenizer != "gpt2" and not least <= vocab_size <= 2**31:
            raise ValueError(f"vocab_size={vocab_size} is not allowed: {tokenizer} needs at least {least}")
        if length < 1:
            raise ValueError(f"length={length} is not allowed: it must be at least 1")
        if stride is not None and not 1 <= stride <= length:
            raise ValueError(
                f"stride={stride} is not allowed: it must be from 1 to length={length}, or null for length"
            )
        self.cache_dir = Path(cache_dir).expanduser()
        self.path, self.config = path, config
        self.folder = None if folder is None else Path(folder).expanduser()
        self.local = find_local_copy(path, config, data_dir)
        self.kind = tokenizer
        self.vocab_size = GPT2_VOCAB_SIZE if tokenizer == "gpt2" else vocab_size
        self.tokenizer_files = _gpt2_files(tokenizer_folder) if tokenizer == "gpt2" else []
        self.length, self.stride = length, length if stride is None else stride
        if self.folder is not None:
            self.text_files = {split: _text_file(self.folder, split) for split in SPLITS}

    def load(self) -> dict[str, Windows]:
        """The three splits; tokenised first if they are not in the cache."""
        place = self._tokens()
        about = json.loads((place / "about.json").read_text())
        start = about["newline"]
        self.words = {split: about["words"][split] for split in SPLITS}
        self.bytes = {split: about["bytes"][split] for split in SPLITS}
        windows = {}
        for split in SPLITS:
            tokens = np.memmap(place / f"{split}.bin", dtype=about["dtype"], mode="r")
            windows[split] = Windows(tokens, start, self.length, self.length if split == "train" else self.stride)
        return windows

    @property
    def tokenizer(self) -> Tokenizer:
        """Text to tokens and back; trained first if it is not in the cache."""
        return Tokenizer.from_file(str(self._tokens() / "tokenizer.json"))

    @property
    def place(self) -> Path:
        """Where the cache keeps it."""
        return self.cache_dir / "wikitext" / self.fingerprint

    @property
    def fingerprint(self) -> str:
        """Names the tokens: the same for the same text and tokenizer."""
        if self.folder is not None:
            name, text = "text", digest_of_files(self.text_files.values())
        else:
            name, text = self.config, digest(self.path, self.config, self.local)
        made = f"{self.kind}{self.vocab_size}"
        if self.tokenizer_files:
            made += f"-{digest_of_files(self.tokenizer_files)}"
        return f"{name}-v{FORMAT_VERSION}-{made}-{text}"

    def describe(self) -> dict[str, Any]:
        """What a result says of its data."""
        source = "files" if self.folder is not None else "hub" if self.local is None else "local copy of the hub's"
        return {
            "name": "text" if self.folder is not None else self.config,
            "source": source,
            "fingerprint": self.fingerprint,
            "tokenizer": self.kind,
            "vocab_size": self.vocab_size,
            "window": self.length,
            "stride": self.stride,
        }

    def collate(self, rows: Sequence[Mapping[str, Any]]) -> Batch:
        """Windows -> one batch, labels at every position."""
        return pad([row["tokens"] for row in rows], [row["labels"] for row in rows], pad_value=0)

    def floors(self, splits: Mapping[str, Windows]) -> dict[str, float]:
        """Perplexity of a model that knows nothing but how often each token stands in the train split (add one)."""
        counts = np.bincount(splits["train"].tokens, minlength=self.vocab_size) + 1.0
        surprise = np.log(counts.sum()) - np.log(counts)
        return {"unigram_perplexity": float(np.exp(surprise[splits["test"].tokens].mean()))}

    def _tokens(self) -> Path:
        return find_or_fill(self.place, self._tokenise)

    def _tokenise(self, place: Path) -> None:
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns) as progress:
            bar = progress.add_task(f"Reading {self.config if self.folder is None else self.folder}", total=None)
            tokenizer = self._make_tokenizer()
            tokenizer.save(str(place / "tokenizer.json"))
            dtype = np.uint16 if tokenizer.get_vocab_size() <= 2**16 else np.uint32
            about: dict[str, Any] = {"dtype": np.dtype(dtype).name, "newline": tokenizer.encode("\n").ids[-1]}
            about |= {"words": {}, "bytes": {}}
            for split in SPLITS:
                tokens = words = size = 0
                with (place / f"{split}.bin").open("wb") as file:
                    for lines in _blocks(self._lines(split)):
                        ids = [i for line in tokenizer.encode_batch(lines, add_special_tokens=False) for i in line.ids]
                        file.write(np.asarray(ids, dtype).tobytes())
                        tokens += len(ids)
                        words += sum(len(line.split()) + 1 for line in lines)
                        size += sum(len(line.encode()) for line in lines)
                        progress.update(bar, description=f"Tokenising {split}: {tokens:,} tokens")
                if not tokens:
                    raise ValueError(
                        f"the {split} split of {self.config if self.folder is None else self.folder} is empty"
                    )
                about["words"][split], about["bytes"][split] = words, size
            (place / "about.json").write_text(json.dumps(about, indent=1))

    def _make_tokenizer(self) -> Tokenizer:
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
        if self.kind == "words":
            counts = Counter(word for line in self._lines("train") for word in line.split())
            commonest = sorted(counts.keys() - {UNKNOWN, END_OF_LINE}, key=lambda word: (-counts[word], word))
            words = [UNKNOWN, END_OF_LINE, *commonest][: self.vocab_size]
            vocabulary = {word: index for index, word in enumerate(words)}
            tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
            tokenizer.normalizer = normalizers.Replace(Regex("\n"), f" {END_OF_LINE}")
            tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
            return tokenizer
        if self.kind == "gpt2":
            tokenizer = Tokenizer(models.BPE.from_file(*map(str, self.tokenizer_files)))
        else:
            tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer, tokenizer.decoder = byte_level, decoders.ByteLevel()
        if self.kind == "bpe":
            trainer = trainers.BpeTrainer(
                vocab_size=self.vocab_size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
            )
            tokenizer.train_from_iterator(self._lines("train"), trainer)
        return tokenizer

    def _lines(self, split: str) -> Iterator[str]:
        """Every line of a split, each with its newline."""
        if self.folder is not None:
            with self.text_files[split].open(encoding="utf-8", newline="\n") as file:
                yield from (line.rstrip("\r\n") + "\n" for line in file)
        else:
            other_way = "set task.data.folder to one with train.txt, validation.txt and test.txt"
            rows = load_split(self.path, self.config, split, self.local, other_way)
            yield from (row["text"].rstrip("\n") + "\n" for row in rows)


def _blocks(lines: Iterator[str]) -> Iterator[list[str]]:
    while block := list(islice(lines, LINES_AT_ONCE)):
        yield block


def _text_file(folder: Path, split: str) -> Path:
    for name in FILE_NAMES[split]:
        if (folder / name).is_file():
            return folder / name
    raise FileNotFoundError(f"{folder} has no {split} text: it must hold one of {', '.join(FILE_NAMES[split])}")


def _gpt2_files(folder: str | Path | None) -> list[Path]:
    if folder is None:
        raise ValueError(
            "tokenizer_folder=null is not allowed with tokenizer=gpt2: name a folder with GPT-2's vocab.json and"
            " merges.txt"
        )
    files = [Path(folder).expanduser() / name for name in ("vocab.json", "merges.txt")]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise FileNotFoundError(f"{folder} lacks {', '.join(missing)} of GPT-2's tokenizer")
    return files
