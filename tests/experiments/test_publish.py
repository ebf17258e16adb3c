"""Results at W&B: all of a record, once, offline and read back; and from there into a report."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import wandb
from omegaconf import OmegaConf
from wandb.proto import wandb_internal_pb2

from experiments.errors import RefusedError
from experiments.publish import publish, publish_tables
from experiments.report.wandb_source import download
from experiments.results import Measurement, Result

BLOCK = 32768


def runs_of(folder: Path) -> list[list[Any]]:
    """What each offline run in ``folder`` has written, oldest first."""
    return [read(file) for file in sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))]


def read(file: Path) -> list[Any]:
    """Records in LevelDB's log format, behind a header of 7 bytes."""
    content, place, parts, found = file.read_bytes(), 7, b"", []
    while place + 7 <= len(content):
        if BLOCK - place % BLOCK < 7:  # no room for a chunk's header: the rest of the block is padding
            place += BLOCK - place % BLOCK
            continue
        length, kind = struct.unpack("<HB", content[place + 4 : place + 7])
        parts += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or its last part
            found.append(wandb_internal_pb2.Record.FromString(parts))
            parts = b""
    return found


def artifacts_of(records: list[Any]) -> list[Any]:
    asked = [r.request.log_artifact.artifact for r in records if r.request.HasField("log_artifact")]
    return asked + [r.artifact for r in records if r.HasField("artifact")]


def history_of(records: list[Any]) -> dict[str, Any]:
    items = [item for record in records for item in record.history.item]
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def arguments(folder: Path, **values: object) -> Any:
    defaults = {"project": "gma", "entity": None, "checkpoints": False, "tables": None}
    return OmegaConf.create({"results": [str(folder)]} | defaults | values)


@pytest.fixture
def runs(
    make_result: Callable[..., Result], make_measurement: Callable[..., Measurement], tmp_path: Path
) -> Callable[[], Path]:
    def make() -> Path:
        for name in ("trained", "measured"):
            (tmp_path / name).mkdir()
        metrics = {"test/accuracy": 0.25}
        make_result(run_id="lra/text/gma/a", task="lra/text", model="gma", metrics=metrics, metrics_last=metrics).write(
            tmp_path / "trained"
        )
        rows = [{"length": 8, "time": [1.0, 0.5, 1.5]}, {"length": 16, "refused": "too long"}]
        make_measurement(
            run_id="memory_scaling/gma/b", task="memory_scaling", model="gma", rows=rows, exponents={"x": 1.5}
        ).write(tmp_path / "measured")
        (tmp_path / "measured" / "figure.png").write_bytes(PNG)
        return tmp_path

    return make


PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c4944415408d763f8ffff3f0005fe02fe"
    "dccc59e70000000049454e44ae426082"
)


def test_results_are_logged_whole_and_once(runs: Callable[[], Path]) -> None:
    folder = runs()
    assert publish(arguments(folder)) == (2, 0)
    (trained,), (measured,) = (runs_of(folder / name) for name in ("trained", "measured"))
    assert history_of(trained)["test/accuracy"] == history_of(trained)["last/test/accuracy"] == 0.25
    (run,) = (record.run for record in trained if record.HasField("run"))
    assert (run.run_id, run.run_group, list(run.tags)) == ("lra-text-gma-a", "lra/text/gma", ["lra/text", "gma", "cpu"])
    history = history_of(measured)
    assert history["exponent/x"] == 1.5
    assert history["figure/_type"] == "image-file"
    (table,) = (measured_file for measured_file in (folder / "measured").rglob("*.table.json"))
    content = json.loads(table.read_text())
    assert content["columns"] == ["length", "time", "refused"]
    assert content["data"] == [[8, 1.0, None], [16, None, "too long"]]
    for records in (trained, measured):
        (artifact,) = (a for a in artifacts_of(records) if a.type == "result")
        assert [entry.path for entry in artifact.manifest.contents] == ["result.json"]
    assert publish(arguments(folder)) == (0, 2)
    (folder / "trained" / "checkpoints").mkdir()
    (folder / "trained" / "checkpoints" / "best.ckpt").write_text("weights")
    assert publish(arguments(folder, checkpoints=True)) == (2, 0)  # only what is new goes
    assert publish(arguments(folder, checkpoints=True)) == publish(arguments(folder)) == (0, 2)
    models = [
        [(a.type, [e.path for e in a.manifest.contents]) for a in artifacts_of(run)]
        for run in runs_of(folder / "trained")
    ]
    assert models == [[("result", ["result.json"])], [("model", ["best.ckpt"])]]
    assert publish(arguments(folder, project="other")) == (2, 0)


def test_the_tables_and_figures_of_a_scale_are_logged_once(runs: Callable[[], Path]) -> None:
    folder = runs()
    (folder / "measured" / "result.json").unlink()
    asked = arguments(folder, tables="cpu")
    assert publish_tables(asked)
    (records,) = runs_of(folder)
    history = history_of(records)
    assert history["table2_lra/_type"] == "table-file"
    assert history["lra/_type"] == "image-file"
    (file,) = folder.glob("wandb/**/table2_lra*.table.json")
    content = json.loads(file.read_text())
    assert content["data"][0][:3] == ["`gma`", "missing", "0.2500 (1)"]
    assert not publish_tables(asked)
    with pytest.raises(RefusedError, match="tables=paper: there is no result of that scale"):
        publish_tables(arguments(folder, tables="paper"))


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="nowhere is no folder"):
        publish(arguments(tmp_path / "nowhere"))


def test_results_come_back_from_wandb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fetch(root: str) -> None:
        Path(root).mkdir(parents=True)
        (Path(root) / "result.json").write_text("{}")

    result = SimpleNamespace(type="result", download=fetch)
    model = SimpleNamespace(type="model", download=None)
    run = SimpleNamespace(id="one", logged_artifacts=lambda: [model, result])
    monkeypatch.setattr(wandb, "Api", lambda: SimpleNamespace(runs=lambda project: [run] if project == "gma" else []))
    assert download("gma", tmp_path) == tmp_path
    assert (tmp_path / "one" / "result.json").exists()
    (tmp_path / "empty").mkdir()
    with pytest.raises(RefusedError, match="none of the 0 runs of other has a result"):
        download("other", tmp_path / "empty")
