"""One self-contained HTML file: claims, tables, figures, and of every run what it was. Results are untrusted text."""

import base64
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from omegaconf.errors import OmegaConfBaseException

from experiments.claims import Verdict
from experiments.config import CONF, IDENTITY, register_resolvers, resolved
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
        figures=[{"caption": figure.caption, "png": base64.b64encode(figure.png).decode()} for figure in figures],
        left_out=found.left_out,
        runs=[asdict(record) | {"command": command(record)} for record in found.records],
    )


def command(record: Record) -> str:
    """What runs ``record`` again: its choices, and whatever in its config is not what they give today."""
    words = [f"task={record.task}", f"model={record.model}", f"scale={record.scale}", f"seed={record.seed}"]
    today = _today(record.task, record.model, record.scale)
    for key, value in _leaves(record.config):
        if key.startswith(IDENTITY) and key != "seed" and today.get(key, value) != value:
            words.append(f"{key}={_plain(value)}")
    if record.task == "interpretability":
        checkpoint = record.execution["checkpoint"].replace("/", "/checkpoints/")
        words.append(f"checkpoint=runs/wikitext103/{record.model}/{checkpoint}")
    return shlex.join(["python", "-m", "experiments.run", *words])


@cache
def _today(task: str, model: str, scale: str) -> dict[str, Any]:
    """The config of these choices, key by key; nothing if there are no such choices any more."""
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException

    register_resolvers()
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            return dict(_leaves(resolved(compose("config", [f"task={task}", f"model={model}", f"scale={scale}"]))))
    except (HydraException, OmegaConfBaseException):
        return {}


def _leaves(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _plain(value: Any) -> str:
    """As the command line takes it."""
    return str(value) if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _code(text: str) -> Markup:
    """``text`` escaped, what stands in backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))
