"""The ListOps data set: generated or read, cached, collated, and the floors of its scores."""

import logging
from pathlib import Path

import numpy as np
import pytest
import torch

from data import cache
from data.lra.expressions import SYMBOLS, evaluate
from data.lra.listops import ListOps

ROWS = {"train": 60, "validation": 20, "test": 20}
SHORT = {"min_length": 5, "max_length": 60, "length": 64}


def texts(split: list[list[int]]) -> list[str]:
    return [" ".join(SYMBOLS[token] for token in tokens) for tokens in split]


def test_generated_splits_are_right_disjoint_and_the_same_for_a_seed(tmp_path: Path) -> None:
    splits = ListOps(tmp_path / "a", ROWS, **SHORT).load()
    assert {split: len(rows) for split, rows in splits.items()} == ROWS
    everything = [tuple(tokens) for rows in splits.values() for tokens in rows["tokens"]]
    assert len(set(everything)) == sum(ROWS.values())
    assert all(evaluate(row["tokens"]) == row["label"] for rows in splits.values() for row in rows)
    again = ListOps(tmp_path / "b", ROWS, **SHORT, processes=1).load()
    assert again["train"]["tokens"] == splits["train"]["tokens"]
    other = ListOps(tmp_path / "a", ROWS, **SHORT, seed=1).load()
    assert other["train"]["tokens"] != splits["train"]["tokens"]


def test_held_out_rows_do_not_depend_on_how_many_are_trained_on(tmp_path: Path) -> None:
    few = ListOps(tmp_path, ROWS, **SHORT).load()
    many = ListOps(tmp_path, ROWS | {"train": 90}, **SHORT).load()
    for split in ("validation", "test"):
        assert few[split]["tokens"] == many[split]["tokens"]
    assert many["train"]["tokens"][:60] == few["train"]["tokens"]


def test_the_cache_is_reused_and_a_damaged_one_rebuilt(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = ListOps(tmp_path, ROWS, **SHORT)
    first = data.load()["test"]["tokens"]
    folder = tmp_path / "listops" / data.fingerprint
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    data.load()
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before

    arrow = next((folder / "test").glob("*.arrow"))
    content = bytearray(arrow.read_bytes())
    content[len(content) // 2] ^= 0xFF
    arrow.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert data.load()["test"]["tokens"] == first
    assert "is damaged (changed, missing or extra: test/" in caplog.text
    assert cache.find_damage(folder) is None

    arrow.write_bytes(content[:100])
    assert data.load()["test"]["tokens"] == first
    (folder / cache.MANIFEST).unlink()
    assert data.load()["test"]["tokens"] == first


def test_a_build_that_was_cut_off_leaves_nothing_to_be_mistaken(tmp_path: Path) -> None:
    data = ListOps(tmp_path, ROWS, **SHORT)
    half_written = tmp_path / "listops" / f"{data.fingerprint}.partial"
    half_written.mkdir(parents=True)
    (half_written / "dataset_dict.json").write_text("{")
    assert len(data.load()["train"]) == 60
    assert not half_written.exists()


def write_files(folder: Path, train: str = "Source\tTarget\n( ( ( [MAX 4 ) 3 ) ] )\t4\n( [MIN 2 9 ] )\t2\n") -> Path:
    for name in ("basic_train.tsv", "basic_val.tsv", "basic_test.tsv"):
        (folder / name).write_text("Source\tTarget\n[SM 6 5 ]\t1\n")
    (folder / "basic_train.tsv").write_text(train)
    return folder


def test_lra_files_are_read(tmp_path: Path) -> None:
    data = ListOps(tmp_path / "cache", ROWS, folder=write_files(tmp_path))
    splits = data.load()
    assert texts(splits["train"]["tokens"]) == ["[MAX 4 3 ]", "[MIN 2 9 ]"]
    assert splits["train"]["label"] == [4, 2]
    assert data.describe()["source"] == "files"
    before = data.fingerprint
    write_files(tmp_path, "Source\tTarget\n[MIN 2 1 ]\t1\n")
    assert data.fingerprint != before
    assert splits["validation"]["label"] == [1]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("Source\tTarget\n[MAX 4 3 ]\n", "line 2"),
        ("Source\tTarget\n[MAX 4 3 ]\t4\n[MAX 4 x ]\t4\n", "line 3: unknown symbol 'x'"),
        ("Source\tTarget\n[MAX 4 3 ]\t12\n", "line 2: label 12 is not a digit"),
        ("Source\tTarget\n" + "[MAX " * 3 + "1 " * 2000 + "] ] ]\t1\n", "line 2: 2006 tokens"),
        ("[MAX 4 3 ]\t4\n", "needs a header"),
        ("", "needs a header"),
    ],
)
def test_a_bad_file_is_named_with_its_line_and_leaves_no_cache(tmp_path: Path, content: str, complaint: str) -> None:
    data = ListOps(tmp_path / "cache", ROWS, folder=write_files(tmp_path, content))
    with pytest.raises(ValueError, match=complaint):
        data.load()
    assert not (tmp_path / "cache" / "listops" / data.fingerprint).exists()


def test_a_missing_file_is_named_before_any_work(tmp_path: Path) -> None:
    write_files(tmp_path)
    (tmp_path / "basic_val.tsv").unlink()
    with pytest.raises(FileNotFoundError, match=r"lacks basic_val\.tsv"):
        ListOps(tmp_path / "cache", ROWS, folder=tmp_path)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"rows": {"train": 1, "test": 1}}, "rows="),
        ({"rows": ROWS | {"test": 0}}, "rows="),
        ({"length": 1000}, "length=1000 is not allowed.*at least max_length=2000"),
        ({"min_length": 1999}, "min_length=1999"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(tmp_path: Path, arguments: dict, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        ListOps(**{"cache_dir": tmp_path, "rows": ROWS, **arguments})


def test_collate_pads_on_the_right_and_masks_by_length(tmp_path: Path) -> None:
    data = ListOps(tmp_path, ROWS, **SHORT)
    rows = data.load()["train"].with_format("numpy")
    batch = data.collate(rows.__getitems__([0, 1, 2]))
    lengths = [len(rows[i]["tokens"]) for i in range(3)]
    assert batch.mask.sum(1).tolist() == lengths
    assert batch.inputs.shape == batch.mask.shape == (3, max(lengths))
    assert batch.inputs.dtype == batch.labels.dtype == torch.int64
    assert ((batch.inputs == 0) == ~batch.mask).all()
    assert batch.inputs[1, : lengths[1]].tolist() == rows[1]["tokens"].tolist()
    assert batch.labels.tolist() == [int(rows[i]["label"]) for i in range(3)]


def test_floors_are_what_the_rules_score(tmp_path: Path) -> None:
    data = ListOps(tmp_path, {"train": 3000, "validation": 1, "test": 1000}, **SHORT)
    splits = data.load()
    floors = data.floors(splits)
    commonest = np.bincount(splits["train"]["label"]).argmax()
    assert floors["majority_class"] == np.mean(np.array(splits["test"]["label"]) == commonest)
    assert floors["majority_class"] < floors["root_operator"] < floors["root_operator_and_digits"] < 1
