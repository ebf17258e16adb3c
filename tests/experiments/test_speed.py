"""The speed command prints what it measured, on what, and refuses what it can't measure."""

import json
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from experiments import speed


def test_every_contender_is_timed_at_every_length(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tmp_path: Path
) -> None:
    pytest.importorskip("performer_pytorch")
    arguments = ["--lengths", "8", "9", "--batch", "1", "--heads", "2", "--width", "4", "--route", "3", "--turns", "3"]
    arguments += ["--all", "--output", str(tmp_path / "speed.json")]
    monkeypatch.setattr("sys.argv", ["speed", *arguments])
    speed.main()
    lines = capsys.readouterr().out.splitlines()
    assert "threads, torch" in lines[0]
    measured = [line for line in lines if line.startswith("N ")]
    names = ["sdpa", "gma", "gma recompute", "linear", "literal", "performer-pytorch"]
    assert [(line.split()[1], line[10:28].strip()) for line in measured] == [(n, name) for n in "89" for name in names]
    assert "over sdpa 1.00 [1.00 - 1.00]" in measured[0]
    assert measured[1].endswith("of gma 1.00 [1.00 - 1.00]")
    content = json.loads((tmp_path / "speed.json").read_text())
    assert content["settings"]["route"] == 3
    assert len(content["lines"]) == len(measured)
    assert content["machine"]["threads"] >= 1


def test_the_equations_as_written_give_what_the_fast_form_gives() -> None:
    arguments = Namespace(heads=2, width=4, route=3, all=True, device="cpu")
    mixes, _ = speed.contenders(5, arguments)
    q, k, v = torch.randn(1, 2, 5, 3), torch.randn(1, 2, 5, 3), torch.randn(1, 2, 5, 4)
    expected = mixes["gma"](q, k, v)
    for name in ("literal", "gma recompute"):
        torch.testing.assert_close(mixes[name](q, k, v), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [(["--width", "0"], "--width must be at least 1"), (["--device", "cuda"], "--device cuda needs a GPU")],
)
def test_nonsense_is_refused(
    words: list[str], complaint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["speed", *words])
    with pytest.raises(SystemExit):
        speed.main()
    assert complaint in capsys.readouterr().err
