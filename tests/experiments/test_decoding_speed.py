"""The time of one more token, after contexts of several lengths in turns."""

import json
from pathlib import Path

import pytest

from experiments import decoding_speed


def test_every_model_decodes_after_every_context(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tmp_path: Path
) -> None:
    output = tmp_path / "speed.json"
    words = ["scale=smoke", "--contexts", "4", "9", "--turns", "2", "--output", str(output)]
    monkeypatch.setattr("sys.argv", ["decoding_speed", *words, "--models", *decoding_speed.MODELS])
    decoding_speed.main()
    lines = json.loads(output.read_text())["lines"]
    assert [(line["name"], line["context"]) for line in lines] == [
        (m, n) for m in decoding_speed.MODELS for n in (4, 9)
    ]
    assert lines[0]["over_sdpa"] == lines[1]["over_sdpa"] == lines[0]["of_first"] == [1, 1, 1]
    assert min(line["microseconds"][1] for line in lines) > 0
    assert "after       9" in capsys.readouterr().out


def test_nonsense_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr("sys.argv", ["decoding_speed", "--contexts", "0"])
    with pytest.raises(SystemExit):
        decoding_speed.main()
    assert "--contexts must be at least 1" in capsys.readouterr().err
