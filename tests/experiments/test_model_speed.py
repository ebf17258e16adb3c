"""The whole model's speed: every mixer at every length, softmax attention as the measure."""

import json
from pathlib import Path

import pytest

from experiments import model_speed


def test_every_model_is_timed_at_every_length(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tmp_path: Path
) -> None:
    output = tmp_path / "speed.json"
    words = ["scale=smoke", "--lengths", "8", "16", "--tokens", "32", "--turns", "2", "--output", str(output)]
    monkeypatch.setattr("sys.argv", ["model_speed", *words])
    model_speed.main()
    lines = json.loads(output.read_text())["lines"]
    assert [(line["length"], line["name"]) for line in lines] == [(n, m) for n in (8, 16) for m in model_speed.MODELS]
    assert lines[0]["over_sdpa"] == [1, 1, 1]
    assert min(line["tokens_per_second"][1] for line in lines) > 0
    assert "N     16  mamba" in capsys.readouterr().out


def test_a_profile_names_the_operations_of_every_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tmp_path: Path
) -> None:
    output = tmp_path / "profile.json"
    words = ["scale=smoke", "--profile", "--lengths", "8", "--tokens", "16", "--turns", "2", "--output", str(output)]
    monkeypatch.setattr("sys.argv", ["model_speed", *words])
    model_speed.main()
    lines = json.loads(output.read_text())["lines"]
    for model in model_speed.MODELS:
        own = {line["operation"]: line["share"] for line in lines if line["name"] == model}
        assert sum(own.values()) == pytest.approx(1)
        assert own["addmm"] > 0
        assert list(own.values()) == sorted(own.values(), reverse=True)
    assert "N      8  gma" in capsys.readouterr().out


def test_a_step_without_room_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr("sys.argv", ["model_speed", "--lengths", "8192"])
    with pytest.raises(SystemExit):
        model_speed.main()
    assert "--tokens at least the longest" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("override", "complaint"), [("task=lra/text", "must model a language"), ("scale=huge", "scale=huge is not known")]
)
def test_a_request_without_a_language_model_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, override: str, complaint: str
) -> None:
    monkeypatch.setattr("sys.argv", ["model_speed", override])
    with pytest.raises(SystemExit, match=f"^error: .*{complaint}"):
        model_speed.main()
