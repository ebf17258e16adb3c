"""The list of data sets: states, sizes, and how to get what is missing."""

import subprocess
import sys
from pathlib import Path

import pytest

from experiments import datasets
from experiments.build import build_data


def test_states_follow_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GMA_DATA_DIR", raising=False)
    overrides = [f"cache_dir={tmp_path / 'cache'}", "scale=smoke"]
    rows = {row.task: row for row in datasets.describe(overrides)}
    assert set(rows) == {
        "wikitext103", *(f"lra/{name}" for name in ("image", "listops", "pathfinder", "pathx", "retrieval", "text"))
    }  # fmt: skip
    assert {name for name, row in rows.items() if row.state == "to generate"} == {
        "lra/listops", "lra/pathfinder", "lra/pathx"
    }  # fmt: skip
    assert rows["lra/text"].state == "to fetch"
    assert "GMA_DATA_DIR" in rows["lra/text"].help
    assert rows["lra/retrieval"].state == "missing"
    assert "new_aan_pairs" in rows["lra/retrieval"].help
    local = tmp_path / "data" / "hub" / "stanfordnlp" / "imdb" / "plain_text"
    local.mkdir(parents=True)
    (local / "x.parquet").write_bytes(b"123")
    rows = {row.task: row for row in datasets.describe([*overrides, f"data_dir={tmp_path / 'data'}"])}
    assert (rows["lra/text"].state, rows["lra/text"].size) == ("here", 3)


def test_a_generated_set_is_ready_with_a_checksum(tmp_path: Path) -> None:
    from hydra import compose, initialize_config_dir

    overrides = [f"cache_dir={tmp_path}", "scale=smoke"]
    with initialize_config_dir(str(datasets.CONF), version_base="1.3"):
        build_data(compose("config", [*overrides, "task=lra/pathfinder"])).load()
    (row,) = (row for row in datasets.describe(overrides) if row.task == "lra/pathfinder")
    assert row.state == "ready"
    assert row.size is not None
    assert row.size > 500 * 12 * 12
    assert len(row.checksum) == 12


def test_the_command_prints_every_task() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-m", "experiments.datasets"], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for task in ("wikitext103", "lra/listops", "lra/retrieval"):
        assert task in done.stdout
