"""The result file: written whole, read back, refused if it is not one."""

import json
from dataclasses import fields
from pathlib import Path

import pytest

from experiments import results
from experiments.results import Result


def result() -> Result:
    values = {field.name: field.default for field in fields(Result)}
    values |= {name: name for name in ("run_id", "task", "model", "scale", "config_hash", "finished_at")}
    values |= {name: {} for name in ("dataset", "metrics_last", "checkpoints", "floors", "execution", "config", "git")}
    values |= {"versions": {}, "machine": {}, "metrics": {"test/accuracy": 0.25}}
    values |= dict.fromkeys(
        ("seed", "parameters", "mlp_dim", "steps", "tokens_seen", "peak_memory_bytes", "sittings"), 1
    )
    values |= dict.fromkeys(("train_seconds", "wall_seconds", "tokens_per_second"), 0.5)
    return Result(**values)


def test_a_written_result_reads_back_equal(tmp_path: Path) -> None:
    path = result().write(tmp_path)
    assert path == tmp_path / "result.json"
    assert results.read(path) == result()
    assert json.loads(path.read_text())["schema"] == results.SCHEMA
    assert list(results.find(tmp_path)) == [path]
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda text: text[: len(text) // 2], "is not a result file"),
        (lambda text: "[]", "is not a result file"),
        (lambda text: text.replace(f'"schema": {results.SCHEMA}', '"schema": 0'), "has schema 0"),
        (lambda text: text.replace('"seed": 1,', ""), "lacks or adds keys: seed"),
    ],
)
def test_a_file_that_is_no_result_is_named(tmp_path: Path, change: object, complaint: str) -> None:
    path = result().write(tmp_path)
    path.write_text(change(path.read_text()))
    with pytest.raises(ValueError, match=complaint) as error:
        results.read(path)
    assert str(path) in str(error.value)
