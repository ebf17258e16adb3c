"""One self-contained HTML file: claims, tables, figures, and of every run what it was. Results are untrusted text."""

import base64
import io
import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from experiments.claims import Verdict
from experiments.report.collect import Collection
from experiments.report.figures import Drawn
from experiments.report.table import Table
from experiments.results import Record


def render(
    found: Collection, scale: str, verdicts: Sequence[Verdict], tables: Sequence[Table], figures: Sequence[Drawn]
) -> str:
    """The page, as text."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined
    )
    environment.filters["code"] = _code
    return environment.get_template("page.html.jinja").render(
        scale=scale,
        verdicts=verdicts,
        tables=tables,
        figures=[{"caption": figure.caption, "png": _png(figure)} for figure in figures],
        left_out=found.left_out,
        runs=[asdict(record) | {"command": command(record)} for record in found.records],
    )


def command(record: Record) -> str:
    """What runs ``record`` again: its choices, and every number of its training, whatever the scale's budget says."""
    words = [f"task={record.task}", f"model={record.model}", f"scale={record.scale}", f"seed={record.seed}"]
    for group in ("train", "backbone"):
        values = record.config.get(group, {})
        words += [f"{group}.{key}={_plain(value)}" for key, value in values.items()]
    if record.task == "interpretability":
        checkpoint = record.execution["checkpoint"].replace("/", "/checkpoints/")
        words.append(f"checkpoint=runs/wikitext103/{record.model}/{checkpoint}")
    return shlex.join(["python", "-m", "experiments.run", *words])


def _plain(value: Any) -> str:
    return (
        json.dumps(value, separators=(",", ":")) if isinstance(value, list | dict | bool | type(None)) else str(value)
    )


def _png(drawn: Drawn) -> str:
    picture = io.BytesIO()
    drawn.figure.savefig(picture, format="png", dpi=150)
    return base64.b64encode(picture.getvalue()).decode()


def _code(text: str) -> Markup:
    """``text`` escaped, what stands in backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))
