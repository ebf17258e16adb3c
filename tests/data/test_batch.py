"""Padding rows of different lengths into one batch."""

import numpy as np

from data.batch import IGNORED, pad


def test_the_mask_comes_from_the_lengths_not_from_the_values() -> None:
    rows = [np.array([0, 5, 0], dtype=np.uint8), np.array([7], dtype=np.uint8)]
    batch = pad(rows, [1, 0], pad_value=0)
    assert batch.inputs.tolist() == [[0, 5, 0], [7, 0, 0]]
    assert batch.mask.tolist() == [[True, True, True], [True, False, False]]
    assert batch.labels.tolist() == [1, 0]


def test_rows_of_one_length_need_no_mask() -> None:
    rows = [np.array([0, 5]), np.array([7, 0])]
    assert pad(rows, [1, 0], pad_value=0).mask is None


def test_labels_at_every_position_are_padded_with_what_no_loss_counts() -> None:
    rows = [np.array([1, 2, 3]), np.array([4])]
    batch = pad(rows, [np.array([2, 3, 9]), np.array([5])], pad_value=0)
    assert batch.labels.tolist() == [[2, 3, 9], [5, IGNORED, IGNORED]]
