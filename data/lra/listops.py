"""ListOps of Long Range Arena: the value 0-9 of a nested expression of MIN, MAX, median and sum modulo 10.

Generated after the rules of LRA's own generator, without a network, or read from LRA's ``basic_{train,val,test}.tsv``.
"""

import hashlib
import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, DatasetDict, Features, Value
from datasets import Sequence as ListOf
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from data.batch import Batch, pad
from data.cache import load_or_build
from data.lra import expressions

SPLITS = ("train", "validation", "test")
LRA_FILES = {"train": "basic_train.tsv", "validation": "basic_val.tsv", "test": "basic_test.tsv"}
SHARD_ROWS = 500
FEATURES = Features({"tokens": ListOf(Value("uint8")), "label": Value("uint8")})
GENERATOR_VERSION = 1  # part of the cache key: raise it when the same seed would give other rows


class ListOps:
    """Three splits of expressions with columns ``tokens`` (see :mod:`data.lra.expressions`) and ``label`` 0-9.

    Args:
        cache_dir: where the Arrow files go.
        rows: rows of the splits ``train``, ``validation`` and ``test``, when generated.
        min_length, max_length: only lengths strictly between are kept, when generated.
        length: the longest input the model takes; expressions are not cut, so it must hold the longest of them.
        seed: of the generator.
        folder: read LRA's three files from here instead of generating.
        processes: that generate; ``None`` takes every core. The rows do not depend on it.

    Raises:
        ValueError: naming the argument, for lengths or counts that make no sense.
        FileNotFoundError: for files missing in ``folder``.
    """

    vocab_size = expressions.VOCAB_SIZE
    num_classes = 10

    def __init__(
        self,
        cache_dir: str | Path,
        rows: Mapping[str, int],
        min_length: int = 500,
        max_length: int = 2000,
        length: int = 2000,
        seed: int = 0,
        folder: str | Path | None = None,
        processes: int | None = None,
    ) -> None:
        if set(rows) != set(SPLITS) or any(count < 1 for count in rows.values()):
            raise ValueError(f"rows={dict(rows)} is not allowed: give at least 1 row for each of {', '.join(SPLITS)}")
        if not 0 <= min_length < max_length - 1:
            raise ValueError(
                f"min_length={min_length} is not allowed: it must be from 0 to max_length - 2={max_length - 2}"
            )
        if length < max_length:
            raise ValueError(
                f"length={length} is not allowed: expressions of up to {max_length - 1} tokens would be cut, which"
                f" loses their value; give a length of at least max_length={max_length}, or lower max_length with it"
            )
        self.cache_dir = Path(cache_dir).expanduser()
        self.rows = {split: int(rows[split]) for split in SPLITS}
        self.min_length, self.max_length, self.length = min_length, max_length, length
        self.seed = seed
        self.folder = None if folder is None else Path(folder).expanduser()
        self.processes = processes or _cores()
        if self.folder is not None:
            missing = [name for name in LRA_FILES.values() if not (self.folder / name).is_file()]
            if missing:
                raise FileNotFoundError(
                    f"{self.folder} lacks {', '.join(missing)}: folder must hold LRA's listops files"
                    f" ({', '.join(LRA_FILES.values())}), or be null to generate the data"
                )

    def load(self) -> DatasetDict:
        """The three splits, memory-mapped from the cache; built first if they are not there."""
        build = self._generate if self.folder is None else self._read
        return load_or_build(self.cache_dir / "listops" / self.fingerprint, build)

    @property
    def fingerprint(self) -> str:
        """Names the data: the same for the same rows."""
        if self.folder is None:
            return "-".join(
                ["generated", f"v{GENERATOR_VERSION}", f"seed{self.seed}", f"{self.min_length}-{self.max_length}"]
                + [str(self.rows[split]) for split in SPLITS]
            )
        digest = hashlib.sha256(f"length {self.length}".encode())
        for name in LRA_FILES.values():
            with (self.folder / name).open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return f"files-{digest.hexdigest()[:16]}"

    def describe(self) -> dict[str, Any]:
        """What a result says of its data."""
        return {
            "name": "listops",
            "source": "generated" if self.folder is None else "files",
            "fingerprint": self.fingerprint,
        }

    def collate(self, rows: Sequence[Mapping[str, Any]]) -> Batch:
        """Rows of a split in numpy format -> one padded batch."""
        return pad([row["tokens"] for row in rows], [int(row["label"]) for row in rows], expressions.PAD)

    def floors(self, splits: DatasetDict) -> dict[str, float]:
        """Test accuracy of rules that do not compute: each answers the commonest train label for what it looks at.

        ``majority_class`` looks at nothing, ``root_operator`` at the first token, ``root_operator_and_digits`` also at
        the least (MIN) or greatest (MAX) digit among the root's direct arguments.
        """
        looks: dict[str, Counter[tuple[Any, int]]] = {}
        for tokens, label in _examples(splits["train"]):
            for rule, seen in _what_rules_see(tokens).items():
                looks.setdefault(rule, Counter())[seen, label] += 1
        answers = {rule: _commonest_label(counts) for rule, counts in looks.items()}
        right: Counter[str] = Counter()
        for tokens, label in _examples(splits["test"]):
            for rule, seen in _what_rules_see(tokens).items():
                right[rule] += answers[rule].get(seen, answers["majority_class"][None]) == label
        return {rule: right[rule] / len(splits["test"]) for rule in answers}

    def _generate(self) -> DatasetDict:
        wanted = sum(self.rows.values())
        rows: dict[bytes, int] = {}  # a dict keeps the order and drops repeated expressions
        columns = (TextColumn("Generating ListOps"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(self.processes, context, initializer=_leave_interrupts_to_the_parent)
        try:
            with Progress(*columns) as progress:
                bar = progress.add_task("", total=wanted)
                shard = 0
                while len(rows) < wanted:
                    count = -(-(wanted - len(rows)) // SHARD_ROWS)
                    shards = range(shard, shard + count)
                    shard += count
                    arguments = ((self.seed, number, self.min_length, self.max_length) for number in shards)
                    for grown in pool.map(_grow_shard, arguments):
                        rows.update(grown)
                        progress.update(bar, completed=min(len(rows), wanted))
        finally:
            pool.shutdown(cancel_futures=True)
        return self._split(rows.items())

    def _split(self, rows: Iterable[tuple[bytes, int]]) -> DatasetDict:
        # held-out rows first: they stay the same when a scale takes fewer rows to train on
        stream = iter(rows)
        parts = {split: list(islice(stream, self.rows[split])) for split in ("test", "validation", "train")}
        return DatasetDict({split: _dataset(parts[split]) for split in SPLITS})

    def _read(self) -> DatasetDict:
        assert self.folder is not None
        return DatasetDict({split: _dataset(self._rows_of(self.folder / name)) for split, name in LRA_FILES.items()})

    def _rows_of(self, path: Path) -> list[tuple[bytes, int]]:
        lines = path.read_text().splitlines()
        rows = []
        for number, line in enumerate(lines[1:], start=2):
            try:
                source, target = line.split("\t")
                label = int(target)
                tokens = expressions.tokenize(source)
                if not 0 <= label <= 9:
                    raise ValueError(f"label {label} is not a digit")
                if not 1 <= len(tokens) <= self.length:
                    raise ValueError(f"{len(tokens)} tokens, allowed are 1 to length={self.length}")
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from None
            rows.append((bytes(tokens), label))
        if not lines or lines[0].split("\t") != ["Source", "Target"] or not rows:
            raise ValueError(f"{path} is not one of LRA's listops files: it needs a header Source<TAB>Target and rows")
        return rows


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _grow_shard(arguments: tuple[int, int, int, int]) -> list[tuple[bytes, int]]:
    seed, shard, min_length, max_length = arguments
    return expressions.grow_shard(seed, shard, SHARD_ROWS, min_length, max_length)


def _dataset(rows: list[tuple[bytes, int]]) -> Dataset:
    tokens = [np.frombuffer(row, dtype=np.uint8) for row, _ in rows]
    return Dataset.from_dict({"tokens": tokens, "label": [label for _, label in rows]}, features=FEATURES)


def _examples(split: Dataset) -> Iterator[tuple[np.ndarray, int]]:
    for block in split.with_format("numpy").iter(1000):
        yield from zip(block["tokens"], block["label"].tolist(), strict=True)


def _what_rules_see(tokens: np.ndarray) -> dict[str, Any]:
    operator = expressions.root_operator(tokens)
    extreme = (min, max)[operator](expressions.root_digits(tokens), default=None) if operator in (0, 1) else None
    return {"majority_class": None, "root_operator": operator, "root_operator_and_digits": (operator, extreme)}


def _commonest_label(counts: Counter[tuple[Any, int]]) -> dict[Any, int]:
    best: dict[Any, int] = {}
    for (seen, label), _ in sorted(counts.items(), key=lambda item: -item[1]):
        best.setdefault(seen, label)
    return best
