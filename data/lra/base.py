"""What the data sets of Long Range Arena have in common: cached Arrow splits of tokens with a label."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from datasets import Dataset, DatasetDict, Features, Value
from datasets import Sequence as ListOf

from data.batch import Batch, pad
from data.cache import load_or_build

SPLITS = ("train", "validation", "test")
FLOOR_ROWS = 10_000  # that a rule with parameters is fitted on
FEATURES = Features({"tokens": ListOf(Value("uint8")), "label": Value("int64")})


class LabelledSequences(ABC):
    """Three splits with columns ``tokens`` and ``label``, built once and found again.

    A subclass sets ``cache_dir`` and says what names its rows (``fingerprint``), where they come from (``source``) and
    how to build them (``_build``).
    """

    name: ClassVar[str]
    vocab_size: int | None  # None: positions hold numbers
    channels: int | None = None  # of them at each position
    num_classes: ClassVar[int]
    pad_value: ClassVar[int] = 0
    length: int  # of the longest row
    cache_dir: Path

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Names the data: the same for the same rows."""

    @property
    @abstractmethod
    def source(self) -> str:
        """Where the rows come from: generated, files, hub, or a local copy of the hub's."""

    @abstractmethod
    def _build(self) -> DatasetDict:
        """Make the three splits."""

    def _build_checked(self) -> DatasetDict:
        splits = self._build()
        for split, rows in splits.items():
            labels = np.asarray(rows["label"])
            wrong = np.flatnonzero((labels < 0) | (labels >= self.num_classes))
            if len(wrong):
                row = wrong[0]
                raise ValueError(
                    f"{self.name}: row {row} of the {split} split has label {labels[row]};"
                    f" labels go from 0 to {self.num_classes - 1}"
                )
        return splits

    @property
    def place(self) -> Path:
        """Where the cache keeps it."""
        return self.cache_dir / self.name / self.fingerprint

    def load(self) -> DatasetDict:
        """The three splits, memory-mapped from the cache; built first if they are not there."""
        return load_or_build(self.place, self._build_checked)

    def describe(self) -> dict[str, Any]:
        """What a result says of its data."""
        return {"name": self.name, "source": self.source, "fingerprint": self.fingerprint}

    def collate(self, rows: Sequence[Mapping[str, Any]]) -> Batch:
        """Rows of a split in numpy format -> one batch, padded on the right where lengths differ."""
        return pad([row["tokens"] for row in rows], [int(row["label"]) for row in rows], self.pad_value)

    def floors(self, splits: DatasetDict) -> dict[str, float]:
        """Test accuracy of rules that do not solve the task, to read a score against.

        Each answers the commonest train label for what it sees of a row (:meth:`what_rules_see`), or the commonest of
        all where it saw no such row.
        """
        seen_with: dict[str, Counter[tuple[Any, int]]] = {}
        for tokens, label in _examples(splits["train"]):
            for rule, seen in self.what_rules_see(tokens).items():
                seen_with.setdefault(rule, Counter())[seen, label] += 1
        answers = {rule: _commonest_label(counts) for rule, counts in seen_with.items()}
        right: Counter[str] = Counter()
        for tokens, label in _examples(splits["test"]):
            for rule, seen in self.what_rules_see(tokens).items():
                right[rule] += answers[rule].get(seen, answers["majority_class"][None]) == label
        return {rule: right[rule] / len(splits["test"]) for rule in answers}

    def what_rules_see(self, tokens: np.ndarray) -> dict[str, Any]:
        """What each rule looks at in a row of tokens; ``majority_class`` looks at nothing."""
        return {"majority_class": None}


def check_rows(rows: Mapping[str, int]) -> dict[str, int]:
    """``rows`` as a dict of the three splits.

    Raises:
        ValueError: if a split is missing, unknown or below 1 row.
    """
    if set(rows) != set(SPLITS) or any(count is None or count < 1 for count in rows.values()):
        raise ValueError(f"rows={dict(rows)} is not allowed: give at least 1 row for each of {', '.join(SPLITS)}")
    return {split: int(rows[split]) for split in SPLITS}


def check_limits(rows: Mapping[str, int | None] | None) -> dict[str, int | None]:
    """How many rows of each split are kept, as a dict of the three; ``None``, for one or for all: every row there is.

    Raises:
        ValueError: if a split is missing, unknown or below 1 row.
    """
    rows = dict.fromkeys(SPLITS) if rows is None else dict(rows)
    check_rows({split: 1 if count is None else count for split, count in rows.items()})
    return {split: rows[split] for split in SPLITS}


def count_name(rows: Mapping[str, int | None]) -> str:
    """``rows`` as part of a fingerprint."""
    return "-".join(str(rows[split] or "all") for split in SPLITS)


def split_rows(rows: Iterable[tuple[bytes, int]], counts: Mapping[str, int]) -> DatasetDict:
    """The first rows test, the next validate, the others train, so that fewer train rows change none held out."""
    stream: Iterator[tuple[bytes, int]] = iter(rows)
    parts = {split: list(islice(stream, counts[split])) for split in ("test", "validation", "train")}
    return DatasetDict({split: as_dataset(parts[split]) for split in SPLITS})


def as_dataset(rows: Sequence[tuple[bytes, int]]) -> Dataset:
    """Tokens, one a byte, with their labels."""
    tokens = [np.frombuffer(row, dtype=np.uint8) for row, _ in rows]
    return Dataset.from_dict({"tokens": tokens, "label": [label for _, label in rows]}, features=FEATURES)


def hold_out(rows: Dataset, seed: int) -> tuple[Dataset, Dataset]:
    """``rows`` without a tenth of them, and that tenth; both in their old order."""
    order = np.random.default_rng(seed).permutation(len(rows))
    tenth = len(rows) // 10
    return rows.select(np.sort(order[tenth:])), rows.select(np.sort(order[:tenth]))


def limited(splits: Mapping[str, Dataset], rows: Mapping[str, int | None], seed: int) -> DatasetDict:
    """At most ``rows`` of each split (``None``: all), chosen by ``seed``, in their old order."""
    kept = {}
    for split, data in splits.items():
        chosen = np.random.default_rng(seed).permutation(len(data))[: rows[split]]
        kept[split] = data.select(np.sort(chosen))
    return DatasetDict(kept)


def frequencies_floor(splits: Mapping[str, Dataset]) -> float:
    """Test accuracy of logistic regression on how often each token occurs in a row, blind to their order.

    Fitted on at most ``FLOOR_ROWS`` train rows.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    frequencies, labels = {}, {}
    for split in ("train", "test"):
        rows = limited({split: splits[split]}, {split: FLOOR_ROWS if split == "train" else None}, 0)[split]
        pairs = [(np.bincount(tokens, minlength=256) / max(1, len(tokens)), label) for tokens, label in _examples(rows)]
        frequencies[split], labels[split] = (np.array(part) for part in zip(*pairs, strict=True))
    if len(set(labels["train"].tolist())) < 2:
        return float((labels["test"] == labels["train"][0]).mean())
    rule = make_pipeline(StandardScaler(), LogisticRegression(max_iter=200)).fit(frequencies["train"], labels["train"])
    return float(rule.score(frequencies["test"], labels["test"]))


def _examples(split: Dataset) -> Iterator[tuple[np.ndarray, int]]:
    for block in split.with_format("numpy").iter(1000):
        yield from zip(block["tokens"], block["label"].tolist(), strict=True)


def _commonest_label(counts: Counter[tuple[Any, int]]) -> dict[Any, int]:
    best: dict[Any, int] = {}
    for (seen, label), _ in sorted(counts.items(), key=lambda item: -item[1]):
        best.setdefault(seen, label)
    return best
