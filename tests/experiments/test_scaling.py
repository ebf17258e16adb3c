"""Table 1's measurement: what a row holds, what is left out and why, and what an interrupted run keeps."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from omegaconf import DictConfig

from baselines.sdpa import ScaledDotProductAttention
from experiments import results, scaling, scaling_worker
from experiments.config import config_hash
from experiments.errors import RefusedError
from gma import GaussianMixtureAttention

Run = Callable[..., results.Measurement]


@pytest.fixture
def run(configure: Callable[..., DictConfig], tmp_path: Path) -> Run:
    def make(*overrides: str) -> results.Measurement:
        cfg = configure("task=memory_scaling", "task.turns=2", *overrides)
        return scaling.run(cfg, "memory_scaling/gma/tiny", tmp_path)

    return make


def test_every_row_is_measured_and_an_interrupted_run_goes_on(run: Run, tmp_path: Path) -> None:
    small = ("task.lengths=[64]", "task.contexts=[40]")
    result = run(*small)
    assert result == results.read(tmp_path / "result.json")
    assert (tmp_path / "scaling.png").stat().st_size > 1000
    rows = {(row["form"], row["inside"], row["length"]): row for row in result.rows}
    assert len(rows) == len(result.rows) == 2 * 2 + 1
    for (form, inside, length), row in rows.items():
        if form == "decoding":
            assert row["state_elements"] == 2 * 32 * 17
            assert row["state_bytes"] == 8 * row["state_elements"]  # float64
            assert row["step_seconds"][0] > 0
            continue
        assert 0 < row["forward_seconds"][0] < row["training_seconds"][0]
        assert row["tokens_per_second"] == pytest.approx(length / row["training_seconds"][0])
        assert row["training_speed_over_sdpa"][1] <= row["training_speed_over_sdpa"][0]
        assert row["saved_bytes"] > rows[form, "mixer", length]["saved_bytes"] or inside == "mixer"
    assert "train" not in result.config

    log = tmp_path / scaling.ROWS_FILE
    kept = log.read_text().splitlines()[:2]
    log.write_text("\n".join(kept) + "\n")
    again = run(*small)
    assert again.rows[:2] == [json.loads(line) for line in kept]
    assert len(again.rows) == len(rows)


def test_what_cannot_be_measured_is_a_row_that_says_why(run: Run) -> None:
    result = run("model=linformer", "task.lengths=[32]", "task.contexts=[16]")
    said = {row["form"]: row.get("refused", "") for row in result.rows}
    assert "causal=True is not allowed for Linformer" in said["causal"]
    assert "causal=True is not allowed for Linformer" in said["decoding"]
    assert said["bidirectional"] == ""


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("task.lengths=[]", r"task.lengths=\[\] is not allowed"),
        ("task.contexts=[0]", r"task.contexts=\[0\] is not allowed"),
        ("task.turns=1", "task.turns=1 is not allowed"),
        ("task.lengths=[100000]", "up to task.max_length"),
        ("backbone.num_heads=5", "num_heads=5"),
    ],
)
def test_wrong_requests_are_refused_before_anything_is_measured(run: Run, override: str, complaint: str) -> None:
    with pytest.raises(RefusedError, match=complaint):
        run(override)


def test_a_length_that_would_take_too_long_is_named_by_what_the_shorter_ones_took() -> None:
    rows = [{"length": n, "training_seconds": [n**2 / 1e6], "ratio": [2.0]} for n in (1000, 2000)]
    assert scaling.expected_seconds(rows, 4000) == pytest.approx(16)
    assert scaling.expected_seconds(rows, 4000, "ratio") == pytest.approx(32)
    assert scaling.expected_seconds(rows[:1], 4000) is None


def test_exponents_are_slopes_over_the_longer_half() -> None:
    rows = [
        {"form": "causal", "inside": "mixer", "length": n, "saved_bytes": 7 * n, "peak_bytes": None}
        | {"training_seconds": [3e-6 * n**2 + (1 if n < 500 else 0), 0, 0]}
        for n in (100, 200, 400, 800, 1600, 3200)
    ]
    rows.append({"form": "causal", "inside": "mixer", "length": 6400, "refused": "out of memory"})
    assert scaling.exponents(rows) == pytest.approx(
        {"causal/mixer/saved_bytes": 1.0, "causal/mixer/training_seconds": 2.0}
    )


def test_saved_bytes_are_those_of_the_layers_of_the_definition() -> None:
    """Of a linear map: its input. Of GMA: what the issue of its ops allows, and the input and output of projections."""
    x = torch.randn(1, 512, 16)
    assert scaling_worker.saved_bytes(torch.nn.Linear(16, 4), x) == x.numel() * 4
    layer = GaussianMixtureAttention(16, 2, 8, causal=True)
    per_token_and_head = 2 * 8 + 2 * 8 + 2 * 8 + 1  # 2 R + 2 D + 2 K + 1
    most = 512 * (2 * per_token_and_head + 2 * 16) + 8 * sum(p.numel() for p in layer.parameters())
    assert scaling_worker.saved_bytes(layer, x) <= 4 * most


def test_a_filled_cache_decodes_as_one_that_was_read() -> None:
    mixer = ScaledDotProductAttention(16, 2, causal=True)
    state = scaling_worker.state_after(mixer, 50, torch.randn(1, 1, 16), room=7)
    read = mixer.prefill(torch.randn(1, 50, 16))[1]
    assert state.length == read.length == 50
    assert state.keys[:, :, :50].shape == read.keys.shape
    assert mixer.step(torch.randn(1, 16), state)[1].length == 51


def test_the_run_has_a_name_of_its_own(configure: Callable[..., DictConfig]) -> None:
    task = "task=memory_scaling"
    assert config_hash(configure(task)) != config_hash(configure(task, "task.lengths=[64]"))
