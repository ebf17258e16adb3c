"""What a result says of the machine under it."""

import platform

import pytest

from experiments import machine


def test_malloc_thresholds_are_raised_where_glibc_is() -> None:
    assert machine.raise_malloc_thresholds() == (platform.libc_ver()[0] == "glibc")


def test_bfloat16_follows_the_flags_of_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    for flags, answer in (
        ("fpu avx2", False),
        ("avx512f avx512_bf16", True),
        ("amx_tile amx_bf16", True),
        ("asimd bf16", True),
    ):
        monkeypatch.setattr(machine, "_cpu_info", lambda flags=flags: {"flags": flags})
        assert machine.has_bfloat16("cpu") is answer


def test_description_names_processor_and_threads() -> None:
    described = machine.describe()
    assert described["cpu"]
    assert described["cores"] >= described["threads"] >= 1
    assert machine.versions().keys() >= {"torch", "lightning"}
    assert machine.git_state().keys() == {"commit", "dirty"}
