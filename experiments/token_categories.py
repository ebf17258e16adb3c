"""Surface-form categories of the tokens of a text: what can be told of a token without understanding it.

A text is cut into words at blanks and newlines. The first token of a word stands for it; the others continue it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tokenizers import Tokenizer

CATEGORIES = (
    "newline",
    "markup",  # = of headings, @-@ @,@ @.@ inside numbers and compounds, <unk>
    "digit",  # has a digit
    "punctuation",  # has neither letter nor digit
    "continuation",  # any token of a word but its first
    "function word",
    "all capitals",  # at least two letters
    "capitalised",
    "rare word",  # fewer than RARE times in the train split
    "word",
)
RARE = 10
MARKUP = {"=", "@-@", "@,@", "@.@", "<unk>"}
NEWLINES = {"", "<eos>"}
_FUNCTION_WORDS = """
a about after all also although an and any are as at be because been before being between both but by can could did do
does during each for from had has have he her hers him his how i if in into is it its itself may me might more most must
my no nor not of on one only or other our over shall she should since so some such than that the their them then there
these they this those though through to under until up upon us was we were what when where which while who whom whose
why will with within without would you your
"""
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())


def categorise(tokens: Sequence[int], tokenizer: Tokenizer, train_counts: Mapping[str, int]) -> list[str]:
    """One of ``CATEGORIES`` for each of ``tokens``.

    Args:
        tokens: of one piece of text; the first counts as the start of a word. tokenizer: that made them.
        train_counts: of every word in the train split.
    """
    return [
        category if position == 0 or category in ("newline", "markup", "digit", "punctuation") else "continuation"
        for word in words(tokens, tokenizer)
        for category in [_category(tokenizer.decode(word, skip_special_tokens=False).strip(), train_counts)]
        for position in range(len(word))
    ]


def words(tokens: Iterable[int], tokenizer: Tokenizer) -> Iterator[list[int]]:
    """The tokens of each word; a newline is a word. With whole words as tokens, each is one."""
    word: list[int] = []
    byte_level = "Ġ" in tokenizer.get_vocab()  # how byte-level tokenizers write a blank
    for token in tokens:
        text = tokenizer.id_to_token(token)
        starts = (
            not byte_level or text.startswith(("Ġ", "Ċ")) or (word and tokenizer.id_to_token(word[-1]).endswith("Ċ"))
        )
        if word and starts:
            yield word
            word = []
        word.append(token)
    if word:
        yield word


def count_words(tokens: Iterable[int], tokenizer: Tokenizer) -> Counter[str]:
    """How often each word stands in a text."""
    times = Counter(map(tuple, words(tokens, tokenizer)))
    counts: Counter[str] = Counter()
    for word, number in times.items():
        counts[tokenizer.decode(list(word), skip_special_tokens=False).strip()] += number
    return counts


def _category(word: str, train_counts: Mapping[str, int]) -> str:
    letters = [character for character in word if character.isalpha()]
    if word in NEWLINES:
        return "newline"
    if word in MARKUP:
        return "markup"
    if any(character.isdigit() for character in word):
        return "digit"
    if not letters:
        return "punctuation"
    if word.lower() in FUNCTION_WORDS:
        return "function word"
    if len(letters) > 1 and all(character.isupper() for character in letters):
        return "all capitals"
    if letters[0].isupper():
        return "capitalised"
    return "rare word" if train_counts.get(word, 0) < RARE else "word"
