"""The README keeps its word: its commands compose, its code runs, its map of the tree is true, its figures real."""

import re
import shlex
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from experiments import results
from experiments.config import CONF, register_resolvers
from experiments.models import decoding_state

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, flags=re.DOTALL)
COMMANDS = [
    line.split("python -m experiments.run ", 1)[1]
    for language, block in BLOCKS
    if language == "bash"
    for line in block.splitlines()
    if "python -m experiments.run " in line
]


@pytest.mark.parametrize("arguments", COMMANDS)
def test_every_run_command_composes(arguments: str) -> None:
    register_resolvers()
    overrides = [argument for argument in shlex.split(arguments, comments=True) if not argument.startswith("-")]
    jobs = [override.split(",")[0] for override in overrides]  # of a multirun, the first
    with initialize_config_dir(str(CONF), version_base="1.3"):
        compose("config", jobs)


def test_python_blocks_run() -> None:
    blocks = [block for language, block in BLOCKS if language == "python"]
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})


def test_the_map_of_the_tree_is_complete_and_true() -> None:
    (tree,) = (block for language, block in BLOCKS if language == "" and "gma/  " in block)
    folder, named = "", set()
    for line in tree.splitlines():
        names = [word for word in line[:25].split() if word.endswith(("/", ".py"))]
        if not line.startswith(" "):
            folder = names[0]
            named.add(folder)
        else:
            named |= {folder + name for name in names}
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
    modules = {
        path.relative_to(ROOT).as_posix()
        for package in ("gma", "baselines", "data", "experiments")
        for path in (ROOT / package).rglob("*.py")
        if path.name != "__init__.py"
    }
    assert modules <= named


def test_figures_of_the_results_table_are_those_of_the_reference_results() -> None:
    found = [results.read(path) for path in results.find(ROOT / "experiments" / "reference")]
    assert found
    for result in (result for result in found if result.task.startswith("lra/")):
        best, last = result.metrics["test/accuracy"], result.metrics_last["test/accuracy"]
        row = (
            f"| `{result.model}` | {best:.4f} | {last:.4f} | {result.parameters:,} | {result.tokens_per_second:,.0f} |"
            f" {result.peak_memory_bytes / 1e9:.1f} | {result.wall_seconds:.0f} |"
        )
        assert row in README
        for floor in result.floors.values():
            assert f"{floor:.4f}" in README


def test_figures_of_the_language_table_are_those_of_the_reference_results() -> None:
    found = [results.read(path) for path in results.find(ROOT / "experiments" / "reference" / "wikitext103")]
    assert found
    for result in found:
        scores = [
            f"{result.metrics[f'{split}/{name}']:.{digits}f}"
            for split in ("val", "test")
            for name, digits in (("perplexity", 2), ("word_perplexity", 1), ("bits_per_byte", 3))
        ]
        cells = [f"`{result.model}`", str(result.seed), *scores, f"{result.parameters:,}"]
        assert f"| {' | '.join(cells)} |" in README
    for seed in {result.seed for result in found}:
        order = sorted((r for r in found if r.seed == seed), key=lambda r: r.metrics["test/word_perplexity"])
        assert f"seed {seed}: {' < '.join(f'`{result.model}`' for result in order)}" in README


@pytest.mark.parametrize("model", sorted(path.stem for path in (CONF / "model").glob("*.yaml")))
def test_figures_of_the_state_table_are_what_the_mixers_say(model: str) -> None:
    register_resolvers()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        state = decoding_state(compose("config", ["task=wikitext103", f"model={model}"]))
    cells = "no causal form | |" if state is None else " | ".join(f"{numbers:,}" for numbers in state)
    assert f"| `{model}` | {cells} |" in README
