"""The figure of a scaling measurement: time and memory against the length, with the fitted exponents."""

from pathlib import Path

from matplotlib.figure import Figure

from experiments.report.figures import PANELS
from experiments.results import Measurement

FILE_NAME = "scaling.png"


def plot(result: Measurement, folder: Path) -> Path:
    """Write ``scaling.png`` into ``folder``; both axes logarithmic."""
    figure = Figure(figsize=(4 * len(PANELS), 3.6), layout="constrained")
    for axis, (column, title) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
        for form, inside in sorted({(row["form"], row["inside"]) for row in result.rows if row.get(column)}):
            rows = [row for row in result.rows if (row["form"], row["inside"]) == (form, inside) and row.get(column)]
            values = [row[column][0] if isinstance(row[column], list) else row[column] for row in rows]
            exponent = result.exponents.get(f"{form}/{inside}/{column}")
            label = f"{form} {inside}" + ("" if exponent is None else f", N^{exponent:.2f}")
            axis.plot([row["length"] for row in rows], values, marker="o", markersize=3, label=label)
        axis.set(title=title, xlabel="tokens", xscale="log", yscale="log")
        if axis.lines:
            axis.legend(fontsize="small")
    figure.suptitle(result.run_id)
    path = folder / FILE_NAME
    figure.savefig(path, dpi=150)
    return path
