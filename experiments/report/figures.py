"""Figures from results alone: growth with the length, accuracies, perplexities, components."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure  # without pyplot: no window, no state

from experiments.report.collect import Collection
from experiments.results import Measurement, Result
from experiments.token_categories import CATEGORIES

PANELS = {
    "training_seconds": "forward and backward, s",
    "saved_bytes": "kept for backward, bytes",
    "peak_bytes": "peak, bytes",
}
MEASURE = "normalised_mutual_information"  # by which a layer's head is chosen for a figure of one head


@dataclass(frozen=True)
class Drawn:
    """A figure, the name of its files, and in words what it shows, for who cannot see it."""

    name: str
    caption: str
    figure: Figure

    @cached_property
    def png(self) -> bytes:
        """The picture, drawn once for its file and for the page."""
        picture = io.BytesIO()
        self.figure.savefig(picture, format="png", dpi=120)
        return picture.getvalue()

    def write(self, folder: Path) -> None:
        """As PNG and PDF."""
        (folder / f"{self.name}.png").write_bytes(self.png)
        self.figure.savefig(folder / f"{self.name}.pdf")


def all_figures(found: Collection) -> list[Drawn]:
    """Every figure that there are results for."""
    drawn = []
    if scaling := found.of("memory_scaling"):
        caption = "Figure 1: time and memory of the causal mixers against the length, with the fitted exponents."
        drawn.append(Drawn("figure1_scaling", caption, growth(scaling)))
    if lra := found.of("lra/"):
        caption = (
            "Test accuracies on Long Range Arena, a dot a seed; dashed, what rules reach that do not solve the task."
        )
        drawn.append(Drawn("lra", caption, accuracies(lra)))
    if language := found.of("wikitext103"):
        caption = "Validation perplexity a token of the causal language models, a dot a seed; lower is better."
        drawn.append(Drawn("wikitext", caption, perplexities(language)))
    for result in found.of("interpretability"):
        best = most_telling(result)
        caption = "Figure 2: which categories of tokens each component takes, against how common they are in the text."
        drawn.append(Drawn("figure2_categories", caption, categories(best)))
        caption = "Figure 3: usage of the components of every head, sorted, trained and untrained."
        drawn.append(Drawn("figure3_usage", caption, usage(result.rows)))
    return drawn


def growth(results: Sequence[Measurement]) -> Figure:
    """Table 1 drawn: one line a mixer, causal and alone, both axes logarithmic."""
    figure = Figure(figsize=(4 * len(PANELS), 3.6), layout="constrained")
    for axis, (column, title) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
        for result in results:
            rows = [
                row for row in result.rows if (row["form"], row["inside"]) == ("causal", "mixer") and row.get(column)
            ]
            values = [row[column][0] if isinstance(row[column], list) else row[column] for row in rows]
            exponent = result.exponents.get(f"causal/mixer/{column}")
            if values:
                label = result.model + ("" if exponent is None else f", N^{exponent:.2f}")
                axis.plot([row["length"] for row in rows], values, marker="o", markersize=3, label=label)
        axis.set(title=title, xlabel="tokens", xscale="log", yscale="log")
        if axis.lines:
            axis.legend(fontsize="small")
    return figure


def accuracies(results: Sequence[Result]) -> Figure:
    """One panel a task."""
    tasks = sorted({result.task for result in results})
    figure = Figure(figsize=(2.4 + 2.2 * len(tasks), 3.6), layout="constrained")
    for axis, task in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
        here = [result for result in results if result.task == task]
        _dots(axis, here, "test/accuracy")
        for name, value in here[0].floors.items():
            axis.axhline(value, color="0.5", linestyle="--", linewidth=0.8)
            axis.annotate(name.replace("_", " "), (0, value), xytext=(0, 2), textcoords="offset points", fontsize=6)
        axis.set(title=task.split("/")[-1])
    figure.supylabel("test accuracy")
    return figure


def perplexities(results: Sequence[Result]) -> Figure:
    """One panel."""
    figure = Figure(figsize=(5, 3.6), layout="constrained")
    axis = figure.subplots()
    _dots(axis, results, "val/perplexity")
    axis.set(ylabel="validation perplexity a token")
    return figure


def _dots(axis: Any, results: Sequence[Result], metric: str) -> None:
    models = sorted({result.model for result in results}, key=lambda m: mean(
        result.metrics[metric] for result in results if result.model == m))  # fmt: skip
    for place, model in enumerate(models):
        values = [result.metrics[metric] for result in results if result.model == model]
        axis.plot([place] * len(values), values, "o", markersize=5)
    axis.set_xticks(range(len(models)), models, rotation=30, ha="right", fontsize=7)


def most_telling(result: Measurement) -> list[dict[str, Any]]:
    """Of each layer of the trained model, the head whose queries agree most with the categories."""
    trained = [row for row in result.rows if row["state"] == "trained" and row["side"] == "queries"]
    return [
        max((row for row in trained if row["layer"] == layer), key=lambda row: row[MEASURE]["value"])
        for layer in sorted({row["layer"] for row in trained})
    ]


def categories(rows: Sequence[dict[str, Any]]) -> Figure:
    """Which categories the tokens of each component have, against how common these are: above 1 is more than chance."""
    figure = Figure(figsize=(7, 3.2 * len(rows)), layout="constrained")
    for axis, row in zip(figure.subplots(len(rows), 1, squeeze=False)[:, 0], rows, strict=True):
        counts = np.array(row["table"], dtype=float)
        shares = counts / counts.sum(0).clip(min=1)
        lift = shares / (counts.sum(1, keepdims=True) / counts.sum()).clip(min=1e-12)
        image = axis.imshow(lift.clip(min=0.1), cmap="RdBu_r", norm=LogNorm(0.1, 10), aspect="auto")
        axis.set(title=f"layer {row['layer']}, head {row['head']}, queries", xlabel="component")
        axis.set_yticks(range(len(CATEGORIES)), CATEGORIES)
        figure.colorbar(image, ax=axis, label="share over share in the text")
    return figure


def usage(rows: Sequence[dict[str, Any]]) -> Figure:
    """Usage of the components of every head, sorted."""
    layers = sorted({row["layer"] for row in rows})
    figure = Figure(figsize=(4 * len(layers), 3.2), layout="constrained")
    for axis, layer in zip(figure.subplots(1, len(layers), squeeze=False, sharey=True)[0], layers, strict=True):
        for row in (row for row in rows if row["layer"] == layer and row["side"] == "queries"):
            colour, label = ("C0", "trained") if row["state"] == "trained" else ("0.6", "untrained")
            axis.plot(sorted(row["usage"], reverse=True), color=colour, label=label if row["head"] == 0 else None)
        axis.set(title=f"layer {layer}", xlabel="component, by usage", yscale="log")
        axis.legend()
    figure.supylabel("mean responsibility")
    return figure
