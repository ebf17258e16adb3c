"""Tables 1-4 of the paper, from results."""

from collections.abc import Iterable, Sequence
from statistics import mean
from typing import Any

from experiments.report.collect import Collection
from experiments.report.published import LRA, LRA_COLUMNS
from experiments.report.statistics import Scores, clear_winner, paired_difference, spread
from experiments.report.table import Entry, Table
from experiments.results import Measurement, Result

REFERENCE = "gma"  # the model that others are paired with
MODELS = ("gma", "sdpa", "linear_transformer", "performer", "mamba")  # whose cells the paper's tables have
LRA_TASKS = ("lra/listops", "lra/text", "lra/image", "lra/pathfinder")
SPEED_LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
LANGUAGE_COLUMNS = {
    "val/perplexity": ("validation: perplexity a token", 2),
    "val/word_perplexity": ("a word", 1),
    "val/bits_per_byte": ("bits a byte", 3),
    "test/perplexity": ("test: perplexity a token", 2),
    "test/word_perplexity": ("a word", 1),
    "test/bits_per_byte": ("bits a byte", 3),
}
SPREAD = (
    "Mean ± standard deviation over seeds (their number). Bold: best by more than the seeds' noise (95 % t interval of"
    " the paired difference to every other model)."
)
MEASURES = ("normalised_mutual_information", "adjusted_rand_index", "purity", "cramers_v")


def all_tables(found: Collection, scale: str) -> list[Table]:
    """Every table, in the paper's order; one without results has the commands that fill it."""
    return [
        growth(found, scale),
        speed(found, scale),
        decoding(found, scale),
        long_range_arena(found, scale),
        cost(found, scale),
        language(found, scale),
        components(found, scale),
    ]


def growth(found: Collection, scale: str) -> Table:
    """Table 1: exponents of growth in the length."""
    columns = [("causal", "saved_bytes"), ("causal", "peak_bytes"), ("causal", "training_seconds")]
    columns += [("bidirectional", column) for _, column in columns]
    titles = {"saved_bytes": "kept for backward", "peak_bytes": "peak memory", "training_seconds": "time"}
    table = Table(
        "table1_growth",
        f"Table 1: growth with the length N, as the exponent of N (scale {scale})",
        ["model", *(f"{form}: {titles[column]}" for form, column in columns)],
        notes=[
            "Slope of the logarithms over the longer half of the lengths, of the mixer alone, forward and backward."
        ],
    )
    measured = found.of("memory_scaling")
    table.missing = [
        _command("memory_scaling", model, scale) for model in MODELS if model not in {r.model for r in measured}
    ]
    for result in _ordered(measured):
        exponents = [result.exponents.get(f"{form}/mixer/{column}") for form, column in columns]
        table.add(f"`{result.model}`", *("-" if value is None else f"{value:.2f}" for value in exponents))
        table.values += [{"model": result.model, "of": name, "exponent": e} for name, e in result.exponents.items()]
    return table


def speed(found: Collection, scale: str) -> Table:
    """Table 1, second part: training speed of the causal mixer over softmax attention's, length by length."""
    table = Table(
        "table1_speed",
        f"Table 1, speed: training speed of the causal mixer over softmax attention's (scale {scale})",
        ["model", *(f"N = {length:,}" for length in SPEED_LENGTHS)],
        notes=[
            "Time of softmax attention over this mixer's, forward and backward with projections, in turns in one"
            " process: median [quartiles]. Dash: one of the two took too long or too much memory, or was not asked."
        ],
    )
    for result in _ordered(found.of("memory_scaling")):
        rows = {r["length"]: r for r in result.rows if (r["form"], r["inside"]) == ("causal", "mixer")}
        ratios = [rows.get(length, {}).get("training_speed_over_sdpa") for length in SPEED_LENGTHS]
        if any(ratios):
            cells = ["-" if r is None else "{:.2f} [{:.2f} - {:.2f}]".format(*r) for r in ratios]
            table.add(f"`{result.model}`", *cells)
        table.values += [{"model": result.model} | row for row in result.flat_rows()]
    return table


def decoding(found: Collection, scale: str) -> Table:
    """Table 1, third part: a token more after many."""
    contexts = sorted(
        {row["length"] for r in found.of("memory_scaling") for row in r.rows if row["form"] == "decoding"}
    )
    table = Table(
        "table1_decoding",
        f"Table 1, decoding: milliseconds a token, and bytes carried, after a context (scale {scale})",
        ["model", *(f"{context:,} tokens" for context in contexts)],
    )
    batches = sorted({result.config["task"]["batch_size"] for result in found.of("memory_scaling")})
    table.notes = [f"One layer alone, batch {', '.join(map(str, batches))}, median of turns."] if batches else []
    for result in _ordered(found.of("memory_scaling")):
        rows = {row["length"]: row for row in result.rows if row["form"] == "decoding"}
        cells = []
        for context in contexts:
            row = rows.get(context, {"refused": "-"})
            if "refused" in row:
                cells.append("-")
            else:
                cells.append(f"{1e3 * row['step_seconds'][0]:.3g} ({row['state_bytes']:,})")
        if set(cells) != {"-"}:
            table.add(f"`{result.model}`", *cells)
        table.values += [{"model": result.model} | row for row in result.flat_rows() if row["form"] == "decoding"]
    return table


def long_range_arena(found: Collection, scale: str) -> Table:
    """Table 2: test accuracy of the checkpoint that validated best."""
    results: list[Result] = found.of("lra/")
    tasks = list(dict.fromkeys((*LRA_TASKS, *sorted({result.task for result in results}))))
    table = Table(
        "table2_lra",
        f"Table 2: Long Range Arena, test accuracy (scale {scale})",
        [
            "model",
            *(task.split("/")[1] for task in tasks),
            f"mean of {', '.join(t.split('/')[1] for t in LRA_TASKS[:2])}",
        ],
        notes=[f"{SPREAD} The checkpoint is the one that validated best."],
    )
    scores: dict[str, dict[str, Scores]] = {task: _by_model(results, task, "test/accuracy") for task in tasks}
    winners = {task: clear_winner(scores[task], higher=True) for task in tasks}
    for model in _models(results):
        cells: list[str | Entry] = [
            Entry(spread(scores[task][model], 4), winners[task] == model) if model in scores[task] else "missing"
            for task in tasks
        ]
        both = [scores[task].get(model) for task in LRA_TASKS[:2]]
        average = "missing" if None in both else f"{mean(mean(s.values()) for s in both if s):.4f}"
        table.add(f"`{model}`", *cells, average)
        if model in MODELS:
            table.missing += [_command(task, model, scale) for task in LRA_TASKS if model not in scores[task]]
    floors: dict[str, dict[str, float]] = {}
    for result in results:
        for name, value in result.floors.items():
            floors.setdefault(name, {})[result.task] = value
    for name, by_task in floors.items():
        cells = [f"{by_task[task]:.4f}" if task in by_task else "" for task in tasks]
        table.add(f"floor: {name.replace('_', ' ')}", *cells, "")
    for model, (percents, _) in LRA.items():
        by_name = dict(zip(LRA_COLUMNS, percents, strict=True))
        shown = [f"{by_name[task] / 100:.4f}" if by_name.get(task) else "" for task in tasks]
        table.add(f"{model} (published)", *shown, "")
    sources = dict.fromkeys(source for _, source in LRA.values())
    by_source = (f"{', '.join(m for m, (_, s) in LRA.items() if s == source)} by {source}" for source in sources)
    table.notes.append(f"Published rows are of full-scale training, as reported: {'; '.join(by_source)}.")
    for task in tasks:
        table.notes += _differences(scores[task], task, 4)
    table.values = [_value(result, result.metrics | _prefixed("last/", result.metrics_last)) for result in results]
    return table


def cost(found: Collection, scale: str) -> Table:
    """What the cells of Table 2 took."""
    results: list[Result] = found.of("lra/")
    table = Table(
        "table2_cost",
        f"Table 2, cost of a run (scale {scale})",
        [
            "task",
            "model",
            "parameters",
            "steps",
            "tokens/s",
            "peak memory, GB",
            "minutes in all",
            "learning rate",
            "read out by",
            "best / last checkpoint",
        ],
        notes=[
            "Means over seeds. Speeds hold for the machine in the result files and whatever else it was doing. Read out"
            " by a token in front (cls), or by the mean over tokens."
        ],
    )
    for task in sorted({result.task for result in results}):
        for model in _models(results):
            runs = [r for r in results if (r.task, r.model) == (task, model)]
            if runs:
                table.add(
                    task.split("/")[1],
                    f"`{model}`",
                    f"{runs[0].parameters:,}",
                    f"{runs[0].steps:,}",
                    f"{mean(r.tokens_per_second for r in runs):,.0f}",
                    f"{mean(r.peak_memory_bytes for r in runs) / 1e9:.1f}",
                    f"{mean(r.wall_seconds for r in runs) / 60:.1f}",
                    ", ".join(sorted({f"{r.config['train']['learning_rate']:g}" for r in runs})),
                    ", ".join(sorted({r.config["task"]["head"] for r in runs})),
                    " / ".join(
                        f"{mean(metrics['test/accuracy'] for metrics in which):.4f}"
                        for which in ([r.metrics for r in runs], [r.metrics_last for r in runs])
                    ),
                )
    table.values = [
        _value(r, {k: getattr(r, k) for k in ("parameters", "tokens_per_second", "peak_memory_bytes", "wall_seconds")})
        for r in results
    ]
    return table


def language(found: Collection, scale: str) -> Table:
    """Table 3: perplexities of the checkpoint that validated best."""
    results: list[Result] = found.of("wikitext103")
    table = Table(
        "table3_wikitext",
        f"Table 3: causal language modelling, perplexity (scale {scale})",
        ["model", *(title for title, _ in LANGUAGE_COLUMNS.values()), "parameters", "learning rate"],
        notes=[f"Lower is better. {SPREAD}"],
    )
    if results:
        data = results[0].dataset
        table.notes.append(
            f"Data: {data['name']}, {data['tokenizer']} of {data['vocab_size']:,}, windows of {data['window']}, stride"
            f" {data['stride']}; {results[0].tokens_seen:,} tokens trained on."
        )
    scores = {metric: _by_model(results, "wikitext103", metric) for metric in LANGUAGE_COLUMNS}
    winners = {metric: clear_winner(scores[metric], higher=False) for metric in LANGUAGE_COLUMNS}
    for model in _models(results):
        runs = [result for result in results if result.model == model]
        if not runs:
            table.add(f"`{model}`", *["missing"] * (len(table.columns) - 1))
            table.missing.append(_command("wikitext103", model, scale))
            continue
        cells = [
            Entry(spread(scores[metric][model], digits), winners[metric] == model)
            for metric, (_, digits) in LANGUAGE_COLUMNS.items()
        ]
        rates = sorted({result.config["train"]["learning_rate"] for result in runs})
        table.add(f"`{model}`", *cells, f"{runs[0].parameters:,}", ", ".join(f"{rate:g}" for rate in rates))
    for name, value in results[0].floors.items() if results else ():
        table.add(f"floor: {name.replace('_', ' ')}", "", "", "", f"{value:.2f}", "", "", "", "")
    table.notes += _differences(scores["val/perplexity"], "validation perplexity a token", 2)
    table.values = [_value(result, result.metrics | _prefixed("last/", result.metrics_last)) for result in results]
    return table


def components(found: Collection, scale: str) -> Table:
    """Table 4: what components do, and how far they agree with surface-form categories."""
    table = Table(
        "table4_components",
        f"Table 4: components of a trained causal GMA, and of an untrained one (scale {scale})",
        [
            "",
            "effective number",
            "dead",
            "entropy, nats",
            *(name.replace("_", " ") for name in MEASURES),
            "steepest change (bound)",
        ],
        notes=[
            "Means over heads; in brackets what shuffled categories give. Effective number: exp of the entropy of"
            " usage. Dead: usage below a tenth of 1/K. Last, the largest norm of the Jacobian of the responsibilities"
            " at queries or keys of the first window, and the local Lipschitz bound among all of them."
        ],
    )
    results: list[Measurement] = found.of("interpretability")
    for result in results:
        table.notes.append(f"{result.execution['tokens']:,} tokens of the validation split.")
        for key in sorted({(row["state"], row["layer"], row["side"]) for row in result.rows}):
            rows = [row for row in result.rows if (row["state"], row["layer"], row["side"]) == key]
            used = f"{mean(row['effective_components'] for row in rows):.1f} of {len(rows[0]['usage'])}"
            table.add(
                f"{key[0]}, layer {key[1]}, {key[2]}",
                used,
                f"{mean(row['dead_share'] for row in rows):.0%}",
                f"{mean(row['entropy'] for row in rows):.2f}",
                *(" ".join(_beside_chance(rows, name)) for name in MEASURES),
                "{:.2f} ({:.2f})".format(*(max(row[k] for row in rows) for k in ("lipschitz", "lipschitz_bound"))),
            )
        table.values += [{"model": result.model, "seed": result.seed} | row for row in result.flat_rows()]
    if not results:
        checkpoint = "checkpoint=runs/wikitext103/gma/RUN/checkpoints/best.ckpt"
        table.missing.append(f"python -m experiments.run task=interpretability {checkpoint} scale={scale}")
    return table


def _ordered(results: Sequence[Measurement]) -> list[Measurement]:
    """One a model, the paper's first."""
    models = {result.model: result for result in results}
    return [models[model] for model in _models(results) if model in models]


def _models(results: Iterable[Any]) -> list[str]:
    """The paper's models, then others that were run."""
    return list(dict.fromkeys((*MODELS, *sorted({result.model for result in results}))))


def _by_model(results: Sequence[Result], task: str, metric: str) -> dict[str, Scores]:
    scores: dict[str, dict[int, float]] = {}
    for result in results:
        if result.task == task:
            scores.setdefault(result.model, {})[result.seed] = result.metrics[metric]
    return dict(scores)


def _differences(scores: dict[str, Scores], of: str, digits: int) -> list[str]:
    """Paired differences with the reference model, where there are seeds to pair."""
    found = []
    for model, others in scores.items():
        if model != REFERENCE and len(others.keys() & scores.get(REFERENCE, {}).keys()) > 1:
            difference, half_width, n = paired_difference(others, scores[REFERENCE])
            found.append(f"`{model}` {difference:+.{digits}f} ± {half_width:.{digits}f} (n = {n})")
    return [f"Paired difference to `{REFERENCE}` in {of}, with 95 % interval: {'; '.join(found)}."] if found else []


def _beside_chance(rows: Sequence[dict[str, Any]], measure: str) -> tuple[str, str]:
    value, chance = (mean(row[measure][part] for row in rows) for part in ("value", "chance"))
    return f"{value:.3f}", f"({chance:.3f})"


def _command(task: str, model: str, scale: str) -> str:
    return f"python -m experiments.run task={task} model={model} scale={scale}"


def _value(result: Result, numbers: dict[str, Any]) -> dict[str, Any]:
    return {"task": result.task, "model": result.model, "seed": result.seed, "run": result.run_id} | numbers


def _prefixed(prefix: str, metrics: dict[str, float]) -> dict[str, float]:
    return {f"{prefix}{name}": value for name, value in metrics.items()}
