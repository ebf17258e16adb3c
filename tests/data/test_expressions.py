"""The ListOps grammar: evaluator, reader, generator."""

import gzip
import random
from pathlib import Path

import numpy as np
import pytest

from data.lra.expressions import (
    CLOSE,
    FIRST_OPERATOR,
    OPERATORS,
    SYMBOLS,
    evaluate,
    grow,
    grow_shard,
    root_digits,
    root_operator,
    tokenize,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("( ( ( [MAX 4 ) 3 ) ] )", 4),
        ("[MIN 7 2 9 ]", 2),
        ("[MED 3 4 ]", 3),
        ("[MED 9 1 5 ]", 5),
        ("[MED 1 2 8 9 ]", 5),
        ("[SM 6 5 9 0 ]", 0),
        ("[MAX 2 [MIN 8 7 ] [SM 9 9 9 ] ]", 7),
        ("8", 8),
    ],
)
def test_expressions_have_their_value(text: str, value: int) -> None:
    assert evaluate(tokenize(text)) == value


def test_all_labels_of_the_original_test_set_are_reproduced(data_dir: Path) -> None:
    with gzip.open(data_dir / "listops" / "listops_test_d20s.tsv.gz", "rt") as file:
        rows = [line.rstrip("\n").split("\t") for line in file]
    assert len(rows) == 10_000
    wrong = [number for number, (label, text) in enumerate(rows) if evaluate(tokenize(text)) != int(label)]
    assert wrong == []


@pytest.mark.parametrize("text", ["[MAX 1 2", "1 2", "1 ]", "[MIN ]", "]", ""])
def test_broken_expressions_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="unbalanced"):
        evaluate(tokenize(text))


def test_an_unknown_symbol_is_named() -> None:
    with pytest.raises(ValueError, match=r"unknown symbol '\[AVG'.*allowed: 0 1 2"):
        tokenize("[AVG 1 2 ]")


def test_grown_expressions_keep_the_rules_of_the_arena() -> None:
    for tokens, value in (grow(random.Random(seed), 500, 2000) for seed in range(20)):
        assert 500 < len(tokens) < 2000
        assert evaluate(tokens) == value
        depth, arguments = 0, [0]
        for token in tokens:
            assert 1 <= token < len(SYMBOLS)
            if token == CLOSE:
                assert 2 <= arguments.pop() <= 10
                depth -= 1
            else:
                arguments[-1] += 1
                if token >= FIRST_OPERATOR:
                    depth += 1
                    arguments.append(0)
            assert depth <= 9  # digits stand at depth 10 at most


def test_statistics_agree_with_the_published_generator() -> None:
    """Mean length 1064 and majority class 17.0 % of LRA's own rules, within the noise of 2,000 rows."""
    rows = grow_shard(1, 0, 2000, 500, 2000)
    lengths = np.array([len(tokens) for tokens, _ in rows])
    assert abs(lengths.mean() - 1064) < 4 * lengths.std() / np.sqrt(len(rows)) + 20
    counts = np.bincount([value for _, value in rows], minlength=10)
    assert abs(counts.max() / len(rows) - 0.17) < 0.03
    operators = np.bincount([root_operator(np.frombuffer(tokens, np.uint8)) for tokens, _ in rows])
    assert len(operators) == len(OPERATORS)
    assert np.abs(operators / len(rows) - 0.25).max() < 0.05


def test_a_shard_is_a_function_of_its_arguments() -> None:
    assert grow_shard(0, 3, 5, 10, 50) == grow_shard(0, 3, 5, 10, 50)
    assert grow_shard(0, 3, 5, 10, 50) != grow_shard(0, 4, 5, 10, 50)
    assert grow_shard(0, 3, 5, 10, 50) != grow_shard(1, 3, 5, 10, 50)


def test_what_stands_under_the_root() -> None:
    tokens = np.array(tokenize("[MIN 8 [MAX 1 2 ] 5 [SM 3 3 ] ]"), dtype=np.uint8)
    assert root_operator(tokens) == 0
    assert root_digits(tokens).tolist() == [8, 5]
