"""The ListOps grammar (Nangia & Bowman 2018; lengths and depths as in Long Range Arena): growing, reading, evaluating.

An expression is a list of token numbers: 0 is padding, 1-10 the digits 0-9, 11-14 the operators, 15 the bracket ``]``.
"""

import random
from collections.abc import Sequence

import numpy as np

PAD = 0
DIGIT_0 = 1
OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
FIRST_OPERATOR = 11
CLOSE = 15
VOCAB_SIZE = 16
SYMBOLS = ("<pad>", *"0123456789", *OPERATORS, "]")
_NUMBER_OF = {symbol: number for number, symbol in enumerate(SYMBOLS)}

MAX_DEPTH = 10
OPERATOR_PROBABILITY = 0.25
MIN_ARGUMENTS, MAX_ARGUMENTS = 2, 10


def _median(arguments: Sequence[int]) -> int:
    """The median, truncated to an integer: [3, 4] -> 3."""
    ordered = sorted(arguments)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) // 2


def _sum_modulo_10(arguments: Sequence[int]) -> int:
    return sum(arguments) % 10


_APPLY = (min, max, _median, _sum_modulo_10)


class _TooLongError(Exception):
    """The tree being grown has reached the longest length that is kept."""


def grow(rng: random.Random, min_length: int, max_length: int) -> tuple[list[int], int]:
    """Draw trees until one has a length strictly between the bounds; return its tokens and its value.

    A node at depth 1 .. 9 is an operator with probability 1/4, with 2 to 10 arguments; every other node is a digit. The
    length counts digits, operators and closing brackets.
    """
    uniform = rng.random

    def node(depth: int) -> int:
        if depth >= MAX_DEPTH or uniform() > OPERATOR_PROBABILITY:
            digit = int(10 * uniform())
            tokens.append(DIGIT_0 + digit)
            return digit
        operator = int(len(OPERATORS) * uniform())
        tokens.append(FIRST_OPERATOR + operator)
        count = MIN_ARGUMENTS + int((MAX_ARGUMENTS - MIN_ARGUMENTS + 1) * uniform())
        if len(tokens) >= max_length:
            raise _TooLongError
        value = _APPLY[operator]([node(depth + 1) for _ in range(count)])
        tokens.append(CLOSE)
        return value

    while True:
        tokens: list[int] = []
        try:
            value = node(1)
        except _TooLongError:
            continue
        if min_length < len(tokens) < max_length:
            return tokens, value


def tokenize(text: str) -> list[int]:
    """Token numbers of an expression in nested form such as ``( ( ( [MAX 4 ) 3 ) ] )``; parentheses are dropped.

    Raises:
        ValueError: naming the first symbol that is not one of ListOps.
    """
    symbols = text.replace("(", " ").replace(")", " ").split()
    try:
        return [_NUMBER_OF[symbol] for symbol in symbols]
    except KeyError as unknown:
        raise ValueError(
            f"unknown symbol {unknown} in a ListOps expression; allowed: {' '.join(SYMBOLS[1:])}"
        ) from None


def evaluate(tokens: Sequence[int]) -> int:
    """The value 0-9 of an expression.

    Raises:
        ValueError: if the brackets do not match or an operator has no argument.
    """
    pending: list[tuple[int, list[int]]] = [(-1, [])]
    for token in tokens:
        if FIRST_OPERATOR <= token < CLOSE:
            pending.append((token - FIRST_OPERATOR, []))
        elif token == CLOSE:
            operator, arguments = pending.pop()
            if not pending or not arguments:
                raise ValueError("unbalanced ListOps expression: a bracket closes nothing, or an empty list")
            pending[-1][1].append(_APPLY[operator](arguments))
        else:
            pending[-1][1].append(token - DIGIT_0)
    (_, values), *unclosed = pending
    if unclosed or len(values) != 1:
        raise ValueError("unbalanced ListOps expression: it is cut short or has more than one value")
    return values[0]


def root_operator(tokens: Sequence[int]) -> int:
    """The operator at the root, 0-3 in the order of ``OPERATORS``, or -1 for a lone digit."""
    return tokens[0] - FIRST_OPERATOR if FIRST_OPERATOR <= tokens[0] < CLOSE else -1


def root_digits(tokens: np.ndarray) -> np.ndarray:
    """The digits that stand as direct arguments of the root operator."""
    operators = (tokens >= FIRST_OPERATOR) & (tokens < CLOSE)
    depth = np.cumsum(operators.astype(np.int16) - (tokens == CLOSE))
    return tokens[(depth == 1) & (tokens < FIRST_OPERATOR)] - DIGIT_0


def grow_shard(seed: int, shard: int, rows: int, min_length: int, max_length: int) -> list[tuple[bytes, int]]:
    """``rows`` expressions as (token bytes, value), the same for the same arguments whatever the process."""
    rng = random.Random(f"listops {seed} {shard}")
    grown = (grow(rng, min_length, max_length) for _ in range(rows))
    return [(bytes(tokens), value) for tokens, value in grown]
