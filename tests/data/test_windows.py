"""Windows: every token predicted once, from the tokens right before it."""

import numpy as np
import pytest

from data.batch import IGNORED
from data.windows import Windows

START = 99


@pytest.mark.parametrize("total", [1, 7, 8, 9, 16, 30])
@pytest.mark.parametrize(("length", "stride"), [(8, 8), (8, 3), (8, 1), (1, 1)])
def test_every_token_is_predicted_once_from_what_stands_before_it(total: int, length: int, stride: int) -> None:
    text = np.arange(total, dtype=np.uint16)
    windows = Windows(text, START, length, stride)
    predicted = []
    for index, row in enumerate(windows):
        shown, labels = row["tokens"], row["labels"]
        assert len(shown) == len(labels) == windows.lengths[index] <= length
        for position, label in enumerate(labels):
            if label == IGNORED:
                continue
            predicted.append(int(label))
            context = shown[: position + 1]
            assert context[-1] == (START if label == 0 else label - 1)
            assert (np.diff(context[1:]) == 1).all()
            if index > 0:
                assert position + 1 > length - stride  # at least that much context
    assert predicted == list(range(total))


def test_a_window_beyond_the_end_is_refused() -> None:
    windows = Windows(np.arange(10), START, 4, 4)
    assert len(windows) == 3
    with pytest.raises(IndexError, match="window 3 of 3"):
        windows[3]
