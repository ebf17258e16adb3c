"""Padding rows of different lengths into one batch."""

import numpy as np

from data.batch import pad


def test_the_mask_comes_from_the_lengths_not_from_the_values() -> None:
    rows = [np.array([0, 5, 0], dtype=np.uint8), np.array([7], dtype=np.uint8)]
    batch = pad(rows, [1, 0], pad_value=0)
    assert batch.inputs.tolist() == [[0, 5, 0], [7, 0, 0]]
    assert batch.mask.tolist() == [[True, True, True], [True, False, False]]
    assert batch.labels.tolist() == [1, 0]
