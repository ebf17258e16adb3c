"""Which rows make up which batch."""

import numpy as np
import pytest

from experiments.batching import EvaluationBatches, TrainBatches

LENGTHS = np.random.default_rng(0).integers(500, 2000, size=1003)


def test_a_pass_takes_every_row_at_most_once_and_the_next_is_shuffled_anew() -> None:
    batches = list(TrainBatches(LENGTHS, 8, 250, seed=0))
    assert len(batches) == 250
    first, second = batches[:125], batches[125:]
    for batches_of_pass in (first, second):
        rows = [row for batch in batches_of_pass for row in batch]
        assert len(set(rows)) == len(rows) == 1000
    assert first != second
    assert batches == list(TrainBatches(LENGTHS, 8, 250, seed=0))
    assert batches != list(TrainBatches(LENGTHS, 8, 250, seed=1))


@pytest.mark.parametrize("start", [0, 1, 77, 125, 249, 250])
def test_a_resumed_run_sees_the_batches_that_it_would_have_seen(start: int) -> None:
    whole = list(TrainBatches(LENGTHS, 8, 250, seed=0))
    resumed = TrainBatches(LENGTHS, 8, 250, seed=0, start=start)
    assert list(resumed) == whole[start:]
    assert len(resumed) == 250
    assert start == 250 or sorted(resumed.rows(start)) == sorted(whole[start])


def test_ranks_share_each_batch_evenly() -> None:
    whole = list(TrainBatches(LENGTHS, 8, 30, seed=0))
    parts = [list(TrainBatches(LENGTHS, 8, 30, seed=0, rank=rank, world_size=2)) for rank in range(2)]
    for together, left, right in zip(whole, *parts, strict=True):
        assert len(left) == len(right) == 4
        assert sorted(left + right) == sorted(together)


def test_batches_waste_little_on_padding() -> None:
    real = padded = 0
    for batch in TrainBatches(LENGTHS, 8, 125, seed=0):
        real += LENGTHS[batch].sum()
        padded += LENGTHS[batch].max() * len(batch)
    assert real / padded > 0.95


def test_batches_of_a_window_come_in_no_order_of_length() -> None:
    longest = [LENGTHS[batch].max() for batch in TrainBatches(LENGTHS, 8, 32, seed=0)]
    assert longest != sorted(longest)


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("rows", [3, 8, 64, 65, 1003])
def test_evaluation_takes_every_row_once_in_equally_many_batches(rows: int, world_size: int) -> None:
    ranks = [list(EvaluationBatches(LENGTHS[:rows], 8, rank, world_size)) for rank in range(world_size)]
    assert len({len(batches) for batches in ranks}) == 1
    assert all(batch for batches in ranks for batch in batches)
    assert sorted(row for batches in ranks for batch in batches for row in batch) == list(range(rows))
    assert max(len(batch) for batches in ranks for batch in batches) <= 8


def test_more_processes_than_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="2 rows cannot be spread over 3 processes"):
        EvaluationBatches(LENGTHS[:2], 8, 0, 3)
