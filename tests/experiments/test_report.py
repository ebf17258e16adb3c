"""The report: what counts, what the tables say, the page in a browser."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hydra import compose, initialize_config_dir

from experiments.claims import judge
from experiments.config import CONF, config_hash, register_resolvers, resolved
from experiments.report import figures, page, readme
from experiments.report.collect import Collection, collect
from experiments.report.statistics import clear_winner, paired_difference, spread
from experiments.report.table import Entry, Table
from experiments.report.tables import all_tables, language, long_range_arena, speed
from experiments.results import Measurement, Result

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "experiments" / "reference"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
MEASURE = """<iframe id="page" src="{page}" style="width: {width}px; height: 4000px; border: 0"></iframe>
<script>
onload = () => {{
  const inner = document.getElementById("page").contentDocument;
  document.body.dataset.found = JSON.stringify({{
    scroll: inner.documentElement.scrollWidth,
    dark: getComputedStyle(inner.body).backgroundColor,
    images: [...inner.images].map(image => [image.naturalWidth > 0, image.alt]),
  }});
}};
</script>"""

Make = Callable[..., Result]


@pytest.fixture
def lra(make_result: Make) -> Callable[..., Result]:
    def make(model: str, seed: int, accuracy: float, **values: object) -> Result:
        metrics = {"test/accuracy": accuracy}
        floors = {"majority_class": 0.5}
        return make_result(
            task="lra/text", model=model, seed=seed, metrics=metrics, metrics_last=metrics, floors=floors, **values
        )

    return make


def write(folder: Path, *records: Result | Measurement) -> Path:
    for number, record in enumerate(records):
        (folder / str(number)).mkdir(parents=True)
        record.write(folder / str(number))
    return folder


def test_the_folder_named_first_counts_and_the_other_is_named(lra: Make, tmp_path: Path) -> None:
    first = write(tmp_path / "first", lra("gma", 0, 0.6), lra("gma", 1, 0.7))
    second = write(tmp_path / "second", lra("gma", 0, 0.9, finished_at="later"), lra("sdpa", 0, 0.5))
    found = collect([first, second], "cpu")
    assert [(r.model, r.seed, r.metrics["test/accuracy"]) for r in found.of("lra/")] == [
        ("gma", 0, 0.6), ("gma", 1, 0.7), ("sdpa", 0, 0.5)
    ]  # fmt: skip
    (reason,) = found.left_out
    assert str(second / "0" / "result.json") in reason
    assert "comes first" in reason
    assert collect([first, first], "cpu").left_out == []
    assert collect([first], "paper").records == []


def test_what_does_not_count_is_named_and_the_rest_reported(lra: Make, tmp_path: Path) -> None:
    other = {"train": {"steps": 5, "batch_size": 8}, "backbone": {"dim": 8}}
    folder = write(
        tmp_path,
        lra("gma", 0, 0.6),
        lra("gma", 0, 0.7, finished_at="2", config_hash="same"),  # another config of the same cell
        lra("sdpa", 0, 0.5),
        lra("performer", 0, float("nan")),
        lra("mamba", 0, 0.8, config=other),  # trained for less
        lra("linear_transformer", 0, 0.5, finished_at="1"),
        lra("linear_transformer", 0, 0.6, finished_at="2"),  # the same run, later
    )
    write(tmp_path / "sweeps", lra("sdpa", 0, 0.9, config_hash="trial"))  # no cell of a table, and nothing to name
    (folder / "cut").mkdir()
    (folder / "cut" / "result.json").write_text((folder / "0" / "result.json").read_text()[:200])
    (folder / "old").mkdir()
    (folder / "old" / "result.json").write_text(
        (folder / "0" / "result.json").read_text().replace('"schema": 2', '"schema": 1')
    )
    (folder / "bare").mkdir()
    (folder / "bare" / "result.json").write_text((folder / "0" / "result.json").read_text().replace("test/", "val/"))
    found = collect([folder], "cpu")
    assert {(r.model, r.metrics["test/accuracy"]) for r in found.records} == {
        ("sdpa", 0.5),
        ("linear_transformer", 0.6),
    }
    reasons = "\n".join(found.left_out)
    assert "several configs of lra/text gma 0" in reasons
    assert re.search(r"3/result.json: metrics has test/accuracy = nan", reasons)
    assert re.search(r"4/result.json: other data, backbone or length of training", reasons)
    assert re.search(r"5/result.json: .*6/result.json is the same run, finished later", reasons)
    assert re.search(r"cut/result.json is not a result file", reasons)
    assert re.search(r"old/result.json has schema 1", reasons)
    assert re.search(r"bare/result.json: metrics has no test/accuracy", reasons)
    assert len(found.left_out) == 7


def test_a_difference_is_paired_by_seed_and_only_a_clear_one_wins() -> None:
    assert spread({0: 0.5}, 2) == "0.50 (1)"
    assert spread({0: 0.4, 1: 0.6}, 2) == "0.50 ± 0.14 (2)"
    difference, half_width, n = paired_difference({0: 2.0, 1: 4.1, 2: 6.0, 3: 9.0}, {0: 1.0, 1: 3.0, 2: 5.1})
    assert n == 3
    assert difference == pytest.approx(1.0)
    assert half_width == pytest.approx(4.3027 * 0.1 / 3**0.5, rel=1e-4)  # t of 2 degrees of freedom
    with pytest.raises(ValueError, match="no seed in common"):
        paired_difference({0: 1.0}, {1: 1.0})
    clear = {"a": {0: 0.9, 1: 0.91, 2: 0.9}, "b": {0: 0.5, 1: 0.51, 2: 0.5}}
    assert clear_winner(clear, higher=True) == "a"
    assert clear_winner(clear, higher=False) == "b"
    assert clear_winner({"a": {0: 0.9}, "b": {0: 0.1}}, higher=True) is None  # one seed says nothing
    assert clear_winner(clear | {"c": {0: 0.2, 1: 0.99, 2: 0.9}}, higher=True) is None
    assert clear_winner({"a": {0: 0.9}}, higher=True) is None
    more_seeds = {"a": {0: 0.5, 1: 0.5, 2: 0.9}, "b": {0: 0.6, 1: 0.6}}  # b is better in every seed that both have
    assert clear_winner(more_seeds, higher=True) is None


def test_the_lra_table_has_floors_published_rows_and_the_commands_of_empty_places(lra: Make) -> None:
    records = [lra("gma", seed, 0.80 + seed / 1000) for seed in range(3)]
    records += [lra("sdpa", seed, 0.60 + seed / 1000 - (seed == 2) * 0.001) for seed in range(3)]
    table = long_range_arena(Collection(records), "cpu")
    column = table.columns.index("text")
    cells = {row[0].text: row[column] for row in table.rows}
    assert cells["`gma`"] == Entry("0.8010 ± 0.0010 (3)", bold=True)
    assert cells["`sdpa`"] == Entry("0.6007 ± 0.0006 (3)")
    assert cells["`mamba`"] == Entry("missing")
    assert cells["floor: majority class"] == Entry("0.5000")
    assert cells["Transformer (published)"] == Entry("0.6427")
    assert "python -m experiments.run task=lra/text model=mamba scale=cpu" in table.missing
    assert "python -m experiments.run task=lra/text model=gma scale=cpu" not in table.missing
    assert any("`sdpa` -0.2003 ± " in note for note in table.notes)


def test_a_table_is_escaped_in_every_form() -> None:
    table = Table("name", "50 % of_all", ["model", "a & b"], values=[{"model": "x,y", "score": 1 / 3}])
    table.add("x|y", Entry("1 ± 2", bold=True))
    assert "| x\\|y | **1 ± 2** |" in table.markdown()
    latex = table.latex()
    assert r"\caption{50 \% of\_all}" in latex
    assert r"x|y & \textbf{1 $\pm$ 2} \\" in latex
    assert table.csv() == 'model,score\n"x,y",0.3333333333333333\n'
    with pytest.raises(ValueError, match="name has 2 columns, a row 1"):
        table.add("alone")


def test_the_speed_table_takes_the_causal_mixer_and_leaves_dashes(make_measurement: Callable[..., Measurement]) -> None:
    ratios = {("causal", "mixer"): 1.5, ("causal", "block"): 9.0, ("bidirectional", "mixer"): 8.0}
    rows = [
        {"form": form, "inside": inside, "length": 512, "training_speed_over_sdpa": [ratio] * 3}
        for (form, inside), ratio in ratios.items()
    ]
    rows.append({"form": "causal", "inside": "mixer", "length": 1024, "refused": "too long"})
    table = speed(Collection([make_measurement(task="memory_scaling", model="gma", rows=rows)]), "cpu")
    assert [entry.text for entry in table.rows[0]][:3] == ["`gma`", "1.50 [1.50 - 1.50]", "-"]


def page_of(found: Collection) -> str:
    return page.render(found, "cpu", judge(found.records), all_tables(found, "cpu"), figures.all_figures(found))


def test_results_are_untrusted_text(lra: Make) -> None:
    attack = "<script>alert(1)</script>"
    found = Collection([lra(attack, 0, 0.5, run_id=f"lra/{attack}")], left_out=[attack])
    text = page_of(found)
    assert attack not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


def test_the_command_of_a_run_gives_its_config_again() -> None:
    register_resolvers()
    overrides = ["task=lra/image", "model=gma", "scale=smoke", "seed=3", "model.temperature=1", "train.steps=7"]
    overrides += ["task.data.pixels=continuous", "train.betas=[0.8,0.9]", "trainer.precision=64-true"]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose("config", overrides)
    result = SimpleNamespace(task="lra/image", model="gma", scale="smoke", seed=3, config=resolved(cfg))
    words = shlex.split(page.command(result))
    assert words[:3] == ["python", "-m", "experiments.run"]
    assert len(words) == 3 + len(overrides)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        assert config_hash(compose("config", words[3:])) == config_hash(cfg)


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
@pytest.mark.parametrize("width", [390, 1440])
def test_the_page_fits_its_window_and_shows_every_figure(tmp_path: Path, width: int) -> None:
    found = collect([REFERENCE], "cpu")
    (tmp_path / "page.html").write_text(page_of(found))
    (tmp_path / "measure.html").write_text(MEASURE.format(page="page.html", width=width))
    done = subprocess.run(
        [
            str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
            "--virtual-time-budget=10000", "--enable-logging=stderr", "--dump-dom", f"file://{tmp_path}/measure.html",
        ],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert "CONSOLE" not in done.stderr
    measured = re.search(r'data-found="([^"]*)"', done.stdout)
    assert measured
    numbers = json.loads(measured[1].replace("&quot;", '"').replace("&amp;", "&"))
    assert numbers["scroll"] <= width
    assert len(numbers["images"]) == len(figures.all_figures(found))
    assert all(loaded and alt for loaded, alt in numbers["images"])


def test_the_command_writes_every_form_and_renews_a_document(tmp_path: Path) -> None:
    document = tmp_path / "document.md"
    document.write_text("before\n<!-- report: table3_wikitext -->\nold\n<!-- end of table3_wikitext -->\nafter\n")
    command = [sys.executable, "-m", "experiments.report", f"results=[{REFERENCE}]", f"output={tmp_path / 'out'}"]
    done = subprocess.run([*command, f"readme={document}"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = collect([REFERENCE], "cpu")
    names = {table.name for table in all_tables(found, "cpu")}
    written = {path.name for path in (tmp_path / "out" / "tables").iterdir()}
    assert written == {f"{name}.{ending}" for name in names for ending in ("md", "tex", "csv")}
    drawn = {f"{figure.name}.{ending}" for figure in figures.all_figures(found) for ending in ("png", "pdf")}
    assert {path.name for path in (tmp_path / "out" / "figures").iterdir()} == drawn
    text = document.read_text()
    assert text == f"before\n{readme.block('table3_wikitext', language(found, 'cpu').markdown())}\nafter\n"


@pytest.mark.parametrize(
    ("argument", "complaint"),
    [
        ("results=[nowhere]", "none of these folders is there"),
        ("results=nowhere", r"results=['nowhere']: none of these folders is there"),
        ("results=[runs", "results=[runs cannot be read"),
        ("source=hub", "source=hub is not known; allowed: files, wandb"),
        ("scales=cpu", "scales=cpu is not known; allowed: source=, results="),
        ("scale=paper", "no result of scale paper"),
        ("readme=nowhere.md", "readme=nowhere.md is no file"),
    ],
)
def test_bad_requests_are_one_line(tmp_path: Path, argument: str, complaint: str) -> None:
    command = [sys.executable, "-m", "experiments.report", f"results=[{REFERENCE}]", f"output={tmp_path}", argument]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert complaint in done.stderr
    assert len(done.stderr.splitlines()) == 1
