"""Verdicts on the paper's claims: each outcome from results made for it."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from statistics import mean

import pytest

from experiments import claims
from experiments.claims import IN_ORDER, NOT_ENOUGH, NOT_REPRODUCED, REPRODUCED, Verdict, judge
from experiments.results import Measurement, Record, Result


def make(kind: type[Record], **values: object) -> Record:
    empty = {field.name: {} for field in fields(kind)} | {"scale": "cpu", "seed": 0, "schema": 2}
    return kind(**(empty | values))


def scores(task: str, metric: str, table: dict[str, list[float]]) -> list[Record]:
    """One result a model and seed."""
    return [
        make(Result, task=task, model=model, seed=seed, metrics={metric: value})
        for model, values in table.items()
        for seed, value in enumerate(values)
    ]


def verdict(name: str, records: list[Record]) -> Verdict:
    return next(verdict for verdict in judge(records) if verdict.name == name)


def test_without_results_nothing_is_claimed() -> None:
    assert [verdict.outcome for verdict in judge([])] == [NOT_ENOUGH] * 4


@pytest.mark.parametrize(("exponent", "outcome"), [(1.01, REPRODUCED), (1.4, NOT_REPRODUCED)])
def test_linear_memory_is_an_exponent_near_one(exponent: float, outcome: str) -> None:
    fits = {"causal/mixer/saved_bytes": 1.0, "bidirectional/mixer/saved_bytes": exponent, "causal/block/peak_bytes": 3}
    found = verdict("C1", [make(Measurement, task="memory_scaling", model="gma", exponents=fits, rows=[])])
    assert found.outcome == outcome
    assert f"bidirectional: N^{exponent:.3f}" in found.evidence


@pytest.mark.parametrize(
    ("gma", "outcome"), [([0.7, 0.6], REPRODUCED), ([0.9, 0.42], IN_ORDER), ([0.3, 0.3], NOT_REPRODUCED)]
)
def test_the_best_mean_on_lra_is_over_tasks_with_every_model(gma: list[float], outcome: str) -> None:
    others = {"sdpa": [0.4, 0.3], "linear_transformer": [0.5, 0.4], "performer": [0.4, 0.3]}
    records = [
        record
        for task in ("listops", "text")
        for record in scores(f"lra/{task}", "test/accuracy", {"gma": gma, **others})
    ]
    records += scores("lra/image", "test/accuracy", {"gma": [0.0, 0.0], "sdpa": [1.0, 1.0]})  # not of every model
    assert verdict("C2", records).outcome == outcome
    assert "image" not in verdict("C2", records).evidence
    difference = mean([0.4, 0.3]) - mean(gma)
    assert f"paired difference to gma, with 95 % interval: sdpa {difference:+.4f}" in verdict("C2", records).evidence
    assert verdict("C2", [r for r in records if r.seed == 0]).outcome == NOT_ENOUGH


def test_seeds_that_nothing_pairs_are_not_enough() -> None:
    table = {model: [0.5] for model in claims.ATTENTION_STYLE}
    records, other = scores("lra/listops", "test/accuracy", table), scores("lra/text", "test/accuracy", table)
    for record in other:
        record.seed = 1
    found = verdict("C2", [*records, *other])
    assert found.outcome == NOT_ENOUGH
    assert found.evidence.endswith("so far none")


@pytest.mark.parametrize(
    ("gma", "outcome"),
    [([55, 56], REPRODUCED), ([55, 59], IN_ORDER), ([55, 62], NOT_REPRODUCED), ([45, 56], NOT_REPRODUCED)],
)
def test_language_modelling_must_hold_in_every_seed(gma: list[float], outcome: str) -> None:
    table = {"gma": gma, "sdpa": [50, 51], "linear_transformer": [60, 61], "performer": [62, 63], "mamba": [40, 41]}
    records = scores("wikitext103", "val/perplexity", table)
    assert verdict("C3", records).outcome == outcome
    assert verdict("C3", records).evidence.startswith("seed 0: mamba 40.00 < ")
    without = [r for r in records if (r.model, r.seed) != ("mamba", 1)]
    assert verdict("C3", without).outcome == NOT_ENOUGH


@pytest.mark.parametrize(
    ("dead", "value", "outcome"),
    [(0.2, 0.3, REPRODUCED), (0.7, 0.3, NOT_REPRODUCED), (0.2, 0.01, NOT_REPRODUCED)],
)
def test_components_must_be_used_and_agree_beyond_chance(dead: float, value: float, outcome: str) -> None:
    agreement = {"value": value, "chance": 0.02, "chance_low": 0.01, "chance_high": 0.03}
    usage = {"effective_components": 2.0, "usage": [0.5, 0.5, 0.0]}
    row = {"state": "trained", "dead_share": dead, **usage, "normalised_mutual_information": agreement}
    control = row | {"state": "untrained", "dead_share": 1.0}
    record = make(Measurement, task="interpretability", model="gma", rows=[row, control], exponents={})
    assert verdict("C4", [record]).outcome == outcome


def test_the_command_names_what_it_leaves_out(make_result: Callable[..., Result], tmp_path: Path) -> None:
    metrics = {
        f"{split}/{name}": 59.4
        for split in ("val", "test")
        for name in ("perplexity", "word_perplexity", "bits_per_byte")
    }
    for name in ("good", "broken"):
        (tmp_path / name).mkdir()
    make_result(task="wikitext103", model="gma", metrics=metrics, metrics_last=metrics).write(tmp_path / "good")
    (tmp_path / "broken" / "result.json").write_text("{")
    command = [sys.executable, "-m", "experiments.claims", str(tmp_path)]
    done = subprocess.run(command, cwd=Path(claims.__file__).parents[1], capture_output=True, text=True)
    assert done.returncode == 0
    assert "so far seed 0: gma 59.40" in done.stdout
    assert "broken/result.json is not a result file" in done.stderr
