"""W&B is asked nothing and reaches nothing where no key is set."""

from pathlib import Path

import pytest

from experiments.loggers import has_wandb_key


def test_a_key_is_found_in_the_environment_or_in_netrc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    netrc = tmp_path / "netrc"
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("WANDB_BASE_URL", raising=False)
    assert not has_wandb_key()
    netrc.write_text("machine api.wandb.ai login user password secret\n")
    netrc.chmod(0o600)
    assert has_wandb_key()
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    assert not has_wandb_key()
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    assert has_wandb_key()
