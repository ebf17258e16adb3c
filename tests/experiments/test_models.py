"""The table of models: its counts against counts made by hand."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from experiments import models
from experiments.config import register_resolvers
from experiments.errors import RefusedError
from experiments.flops import CountOperations

SMALL = ["task=lra", "scale=smoke", "task.data.min_length=5", "task.data.max_length=60", "task.data.length=100"]


@pytest.fixture(scope="module")
def rows() -> dict[str, models.Row]:
    register_resolvers()
    return {row.model: row for row in models.describe(SMALL)}


def test_products_count_two_operations_a_multiply_add_and_the_rest_one_an_element() -> None:
    x, w = torch.randn(3, 5), torch.randn(5, 7)
    with CountOperations() as count:
        (x @ w).exp().sum()
    assert count.products == 2 * 3 * 5 * 7
    assert count.elementwise == 21 + 21


def test_in_place_products_count_too() -> None:
    a, b, c = torch.randn(2, 3, 4), torch.randn(2, 4, 5), torch.randn(2, 3, 5)
    with CountOperations() as count:
        c.baddbmm_(a, b)
    assert count.products == 2 * 2 * 3 * 4 * 5


def test_softmax_attention_costs_what_its_formula_says(rows: dict[str, models.Row]) -> None:
    dim, mlp, length, classes = 32, rows["sdpa"].mlp_dim, 100, 10
    tokens = length + 1  # the class token
    block = 2 * 4 * dim * dim + 2 * 2 * tokens * dim + 2 * 2 * dim * mlp
    assert rows["sdpa"].products == pytest.approx((tokens * block + 2 * dim * classes) / length)


def test_states_are_those_of_the_formulas(rows: dict[str, models.Row]) -> None:
    dim, heads, components = 32, 2, 32
    assert rows["sdpa"].state == tuple(2 * dim * length for length in (1_000, 16_000, 1_000_000))
    assert rows["gma"].state == 3 * (components * (dim // heads + 1) * heads,)
    assert rows["linformer"].state is None


def test_a_model_that_is_refused_is_a_row_that_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    register_resolvers()
    rows = models.describe([*SMALL, "task.causal=true"])
    (linformer,) = (row for row in rows if row.refused)
    assert linformer.model == "linformer"
    models.show(rows)
    assert "causal=True is not allowed for Linformer" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(RefusedError, match=r"backbone.depth=0 is not allowed"):
        models.describe([*SMALL, "backbone.depth=0"])


def test_the_command_answers_help_and_bad_requests() -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "experiments.models"]
    done = subprocess.run([*command, "--help"], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0
    assert "task=lra scale=paper" in done.stdout
    done = subprocess.run([*command, "task=lraa"], cwd=root, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("error: task=lraa is not known; nearest: lra")
