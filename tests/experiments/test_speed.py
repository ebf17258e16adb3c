"""The speed command prints what it measured, on what, and refuses what it can't measure."""

import pytest

from experiments import speed


def test_every_contender_is_timed_at_every_length(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    arguments = ["--lengths", "8", "9", "--batch", "1", "--heads", "2", "--width", "4", "--turns", "3"]
    monkeypatch.setattr("sys.argv", ["speed", *arguments])
    speed.main()
    lines = capsys.readouterr().out.splitlines()
    assert "threads, torch" in lines[0]
    measured = [line for line in lines if line.startswith("N ")]
    assert [line.split()[1:3] for line in measured] == [[n, name] for n in "89" for name in ("sdpa", "gma", "linear")]
    assert measured[0].endswith("ratio 1.00 [1.00 - 1.00]")


def test_nonsense_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr("sys.argv", ["speed", "--width", "0"])
    with pytest.raises(SystemExit):
        speed.main()
    assert "--width must be at least 1" in capsys.readouterr().err
