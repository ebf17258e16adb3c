"""The README keeps its word: its commands compose, its code runs, its map of the tree is true, its figures real."""

import importlib.util
import json
import re
import shlex
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from experiments import speed
from experiments.arguments import read_arguments
from experiments.claims import as_markdown as claims_as_markdown
from experiments.claims import judge
from experiments.config import CONF, register_resolvers
from experiments.models import decoding_state
from experiments.report import readme
from experiments.report.collect import collect
from experiments.report.tables import all_tables

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


OTHERS = [
    line.split("python -m experiments.", 1)[1]
    for language, block in BLOCKS
    if language == "bash"
    for line in block.splitlines()
    if "python -m experiments." in line and "experiments.run " not in line
]


@pytest.mark.parametrize("line", OTHERS)
def test_every_other_command_is_there_and_takes_its_arguments(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    command, *words = shlex.split(line, comments=True)
    assert importlib.util.find_spec(f"experiments.{command}")
    pairs = [word for word in words if "=" in word]
    if (CONF / f"{command}.yaml").is_file():
        read_arguments(command, words)
    elif command == "speed":
        monkeypatch.setattr("sys.argv", ["speed", *words])
        speed.read_arguments()
    elif pairs:  # choices of a run
        test_every_run_command_composes(" ".join(pairs))


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
    folders, named = [], set()  # of each depth, the last one
    for line in tree.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        names = [word for word in line[:25].split() if word.endswith(("/", ".py"))]
        above = "".join(folders[:depth])
        named |= {above + name for name in names}
        if names and names[0].endswith("/"):
            folders = [*folders[:depth], names[0]]
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
    modules = {
        path.relative_to(ROOT).as_posix()
        for package in ("gma", "baselines", "data", "experiments")
        for path in (ROOT / package).rglob("*.py")
        if path.name != "__init__.py"
    }
    assert modules <= named


def test_tables_and_claims_are_those_of_the_shipped_results() -> None:
    found = collect([ROOT / "experiments" / "reference"], "cpu")
    assert found.left_out == []
    texts = {table.name: table.markdown() for table in all_tables(found, "cpu")}
    texts["claims"] = claims_as_markdown(judge(found.records))
    for name, text in texts.items():
        assert readme.block(name, text) in README, name


@pytest.mark.parametrize("model", sorted(path.stem for path in (CONF / "model").glob("*.yaml")))
def test_figures_of_the_state_table_are_what_the_mixers_say(model: str) -> None:
    register_resolvers()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        state = decoding_state(compose("config", ["task=wikitext103", f"model={model}"]))
    cells = "no causal form | |" if state is None else " | ".join(f"{numbers:,}" for numbers in state)
    assert f"| `{model}` | {cells} |" in README


@pytest.mark.parametrize(
    ("row", "files"),
    [
        ("float32", ("float32", "slower_forms", "float32_long")),
        ("float32, R = 16", ("float32_route16",)),
        ("bfloat16", ("bfloat16",)),
        ("language model, float32", ("models",)),
    ],
)
def test_figures_of_the_speed_table_are_those_of_its_files(row: str, files: tuple[str, ...]) -> None:
    outputs = [json.loads((ROOT / f"experiments/studies/speed/{name}.json").read_text()) for name in files]
    over_sdpa = {x["length"]: x["over_sdpa"][0] for out in outputs for x in out["lines"] if x["name"] == "gma"}
    (head,) = re.findall(r"^\| \| N = (256 .*) \|$", README, flags=re.MULTILINE)
    cells = (over_sdpa.get(int(length.replace(",", ""))) for length in head.split(" | "))
    assert f"| {row} | {' | '.join('-' if cell is None else f'{cell:.2f}' for cell in cells)} |" in README
