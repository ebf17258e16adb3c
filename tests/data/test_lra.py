"""Text, Image, Retrieval and Pathfinder: rows, splits, padding, and what is said when data are missing."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, Features, Value
from datasets import Image as Picture
from PIL import Image as Pillow

from data.lra.image import Image
from data.lra.pathfinder import Pathfinder
from data.lra.retrieval import Retrieval
from data.lra.text import Text

CIFAR = Features({"img": Picture(), "label": ClassLabel(num_classes=10)})
REVIEWS = [("great fun", 1), ("dull", 0), ("naïve ☃", 1), ("a" * 50, 0)]


def hub(folder: Path, splits: dict[str, Dataset]) -> Path:
    """A folder in the hub's layout, with one configuration ``plain_text``."""
    files = "".join(f"  - split: {name}\n    path: plain_text/{name}-00000-of-00001.parquet\n" for name in splits)
    (folder / "plain_text").mkdir(parents=True)
    (folder / "README.md").write_text(f"---\nconfigs:\n- config_name: plain_text\n  data_files:\n{files}---\n")
    for name, rows in splits.items():
        rows.to_parquet(str(folder / "plain_text" / f"{name}-00000-of-00001.parquet"))
    return folder


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    rows = {"text": [text for text, _ in REVIEWS] * 10, "label": [label for _, label in REVIEWS] * 10}
    return hub(tmp_path / "imdb", {"train": Dataset.from_dict(rows), "test": Dataset.from_dict(rows)})


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)

    def some(count: int) -> Dataset:
        images = [Pillow.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)) for _ in range(count)]
        return Dataset.from_dict({"img": images, "label": [i % 10 for i in range(count)]}, features=CIFAR)

    return hub(tmp_path / "cifar", {"train": some(30), "test": some(10)})


def test_text_is_bytes_plus_one_cut_and_padded_with_zero(reviews: Path, tmp_path: Path) -> None:
    data = Text(tmp_path / "cache", path=str(reviews), length=20)
    splits = data.load()
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 36, "validation": 4, "test": 40}
    rows = splits["test"].with_format("numpy")
    for row, (text, label) in zip(rows, REVIEWS, strict=False):
        assert row["tokens"].astype(np.uint8).tobytes() == text.encode()[:20]
        assert row["label"] == label
    batch = data.collate([rows[0], rows[1]])
    assert batch.inputs[1].tolist() == [*(b + 1 for b in b"dull"), 0, 0, 0, 0, 0]
    assert batch.mask.sum(1).tolist() == [9, 4]
    assert data.floors(splits) == {"majority_class": 0.5, "byte_frequencies": 1.0}  # four reviews, over and over


def test_text_validates_on_the_test_split_if_asked_and_says_so(reviews: Path, tmp_path: Path) -> None:
    held_out, test = (Text(tmp_path / "cache", path=str(reviews), validation=v) for v in ("held_out", "test"))
    assert len(test.load()["validation"]) == len(test.load()["test"]) == len(test.load()["train"]) == 40
    assert held_out.fingerprint != test.fingerprint
    assert test.describe()["validation"] == "test"
    with pytest.raises(ValueError, match="validation='half' is not allowed: it must be held_out or test"):
        Text(tmp_path, validation="half")


def test_images_are_grey_levels_and_black_is_no_padding(pictures: Path, tmp_path: Path) -> None:
    data = Image(tmp_path / "cache", path=str(pictures))
    splits = data.load()
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 27, "validation": 3, "test": 10}
    rows = splits["test"].with_format("numpy")
    assert rows[0]["tokens"].shape == (1024,)
    black = {"tokens": np.zeros(1024, np.uint8), "label": 0}
    assert data.collate([rows[0], black]).mask is None


def test_pixels_may_be_numbers(pictures: Path, tmp_path: Path) -> None:
    data = Image(tmp_path / "cache", path=str(pictures), pixels="continuous")
    assert (data.vocab_size, data.channels) == (None, 1)
    batch = data.collate([{"tokens": np.array([0, 255, 51], np.uint8), "label": 3}])
    torch.testing.assert_close(batch.inputs, torch.tensor([[[-1.0], [1.0], [-0.6]]]))
    assert data.describe()["pixels"] == "continuous"
    with pytest.raises(ValueError, match="pixels='grey' is not allowed: pixels must be one of tokens, continuous"):
        Image(tmp_path, pixels="grey")


def test_a_local_copy_that_lost_detail_says_so(tmp_path: Path) -> None:
    picture = Pillow.new("RGB", (32, 32))
    for compression in ("JPEG", "PNG"):
        picture.save(tmp_path / f"picture.{compression}", compression)
        cell = {"path": None, "bytes": (tmp_path / f"picture.{compression}").read_bytes()}
        rows = Dataset.from_dict({"img": [cell], "label": [0]}, features=CIFAR)
        data = Image(tmp_path / "cache", path=str(hub(tmp_path / compression, {"train": rows, "test": rows})))
        assert ("with loss (JPEG)" in data.describe()["source"]) == (compression == "JPEG")


@pytest.mark.parametrize(
    ("bytes_", "label", "message"),
    [
        (None, 11, "row 0 of the .* split has label 11; labels go from 0 to 9"),
        (b"no image", 0, "cannot be read: .*image"),
    ],
)
def test_pictures_that_make_no_sense_are_named(bytes_: bytes | None, label: int, message: str, tmp_path: Path) -> None:
    good = tmp_path / "good.png"
    Pillow.new("RGB", (32, 32)).save(good)
    cell = {"path": None, "bytes": bytes_ or good.read_bytes()}
    features = Features({"img": Picture(), "label": Value("int64")})
    rows = Dataset.from_dict({"img": [cell] * 10, "label": [label] * 10}, features=features)
    data = Image(tmp_path / "cache", path=str(hub(tmp_path / "hub", {"train": rows, "test": rows})))
    with pytest.raises(ValueError, match=message):
        data.load()
    assert not data.place.exists()


@pytest.mark.parametrize("data_set", [Text, Image])
def test_missing_data_are_explained(data_set: Callable[..., Any], tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"Be online once.*GMA_DATA_DIR.*task.data.path"):
        data_set(tmp_path, path="Nobody/has-this").load()


def pairs(folder: Path, split: str, lines: list[str]) -> None:
    with gzip.open(folder / f"new_aan_pairs.{split}.tsv.gz", "wt") as file:
        file.writelines(line + "\n" for line in lines)


@pytest.fixture
def papers(tmp_path: Path) -> Path:
    for split in ("train", "eval", "test"):
        pairs(tmp_path, split, ["1.0\tA\tB\tfirst paper\tsecond", "0.0\tA\tC\tfirst paper\tsomething else entirely"])
    return tmp_path


def test_retrieval_reads_pairs_and_stacks_them(papers: Path) -> None:
    data = Retrieval(papers / "cache", folder=papers, length=12)
    rows = data.load()["test"].with_format("numpy")
    batch = data.collate([rows[0], rows[1]])
    texts = [bytes((row[mask] - 1).tolist()) for row, mask in zip(batch.inputs, batch.mask, strict=True)]
    assert texts == [b"first paper", b"first paper", b"second", b"something el"]
    assert batch.labels.tolist() == [1, 0]


def test_retrieval_says_what_is_wrong_with_its_files(papers: Path) -> None:
    with pytest.raises(ValueError, match=r"task.data.folder=null is not allowed.*taken offline"):
        Retrieval(papers)
    pairs(papers, "eval", ["1.0\tA\tB\tonly one text"])
    with pytest.raises(ValueError, match=r"new_aan_pairs.eval.tsv.gz, line 1: not a label"):
        Retrieval(papers / "cache", folder=papers).load()
    whole = (papers / "new_aan_pairs.train.tsv.gz").read_bytes()
    (papers / "new_aan_pairs.train.tsv.gz").write_bytes(whole[:-12])
    with pytest.raises(ValueError, match=r"new_aan_pairs.train.tsv.gz is cut short"):
        Retrieval(papers / "cache", folder=papers).load()
    (papers / "new_aan_pairs.test.tsv.gz").unlink()
    with pytest.raises(FileNotFoundError, match=r"has neither new_aan_pairs.test.tsv nor new_aan_pairs.test.tsv.gz"):
        Retrieval(papers / "cache", folder=papers)


STYLE = {
    "size": 32, "contour_length": 6, "distractors": 10, "distractor_length": 2, "dash": 2.0, "thickness": 0.5,
    "gap": 1.0, "clearance": 1.5, "marker_radius": 1.5, "marker_distance": 7.0, "continuity": 1.0, "contrast": 0.75,
    "padding": 1,
}  # fmt: skip


def test_pathfinder_is_the_same_however_many_processes_draw_it(tmp_path: Path) -> None:
    rows = {"train": 300, "validation": 20, "test": 30}
    one, two = (Pathfinder(tmp_path / str(n), rows, STYLE, processes=n).load() for n in (1, 2))
    for split, count in rows.items():
        assert len(one[split]) == count
        assert one[split]["tokens"] == two[split]["tokens"]
    fewer = Pathfinder(tmp_path / "fewer", rows | {"train": 10}, STYLE).load()
    assert fewer["test"]["tokens"] == one["test"]["tokens"]


def test_pathfinder_reads_the_release_without_its_empty_image(tmp_path: Path) -> None:
    place = tmp_path / "curv_baseline"
    (place / "metadata").mkdir(parents=True)
    (place / "imgs" / "0").mkdir(parents=True)
    lines = []
    for i in range(21):
        path = place / "imgs" / "0" / f"sample_{i}.png"
        if i == 5:
            path.touch()
        else:
            Pillow.fromarray(np.full((32, 32), i, np.uint8)).save(path)
        lines.append(f"imgs/0 sample_{i}.png {i} {i % 2} 6")
    (place / "metadata" / "0.npy").write_text("\n".join(lines) + "\n")
    data = Pathfinder(tmp_path / "cache", {"train": 1, "validation": 1, "test": 1}, STYLE, folder=tmp_path)
    splits = data.load()
    assert [len(splits[split]) for split in ("train", "validation", "test")] == [16, 2, 2]
    levels = [row[0] for split in splits.values() for row in split["tokens"]]
    assert levels == [i for i in range(21) if i != 5]
    (place / "imgs" / "0" / "sample_7.png").write_bytes(b"no image")
    again = Pathfinder(tmp_path / "other", {"train": 1, "validation": 1, "test": 1}, STYLE, folder=tmp_path)
    with pytest.raises(ValueError, match=r"sample_7.png cannot be read"):
        again.load()
    with pytest.raises(FileNotFoundError, match="must hold LRA's release"):
        Pathfinder(tmp_path, {"train": 1, "validation": 1, "test": 1}, STYLE, folder=tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"set task\.level=easy, intermediate or hard"):
        Pathfinder(tmp_path, {"train": 1, "validation": 1, "test": 1}, STYLE | {"contour_length": 2}, folder=tmp_path)


@pytest.mark.parametrize("validation", ["held_out", "test"])
def test_kept_rows_are_counted_by_split_and_named(reviews: Path, tmp_path: Path, validation: str) -> None:
    def text(**rows: int | None) -> Text:
        return Text(tmp_path / "cache", path=str(reviews), validation=validation, rows=rows)

    few, more = (text(train=None, validation=2, test=count) for count in (5, 7))
    assert len(few.load()["validation"]) == 2
    assert len(few.load()["test"]) == 5
    assert len(few.load()["train"]) == (36 if validation == "held_out" else 40)
    assert few.place != more.place
    with pytest.raises(ValueError, match="at least 1 row for each of train, validation, test"):
        text(train=5)
    with pytest.raises(ValueError, match="at least 1 row"):
        text(train=None, validation=0, test=None)


def test_the_distance_of_the_dots_tells_much_of_short_contours(tmp_path: Path) -> None:
    data = Pathfinder(tmp_path, {"train": 1000, "validation": 1, "test": 249}, STYLE)
    floors = data.floors(data.load())
    assert floors["majority_class"] == pytest.approx(0.5, abs=0.01)
    assert 0.7 < floors["dot_distance"] < 0.95


def test_another_style_is_another_data_set(tmp_path: Path) -> None:
    rows = {"train": 1, "validation": 1, "test": 1}
    one, two = (Pathfinder(tmp_path, rows, STYLE | {"distractors": n}) for n in (1, 2))
    assert one.place != two.place


def test_imdb_has_its_published_rows(data_dir: Path, tmp_path: Path) -> None:
    splits = Text(tmp_path, data_dir=data_dir, length=16).load()
    assert {split: len(rows) for split, rows in splits.items()} == {
        "train": 22_500,
        "validation": 2_500,
        "test": 25_000,
    }
    assert sum(splits["test"]["label"]) == 12_500
