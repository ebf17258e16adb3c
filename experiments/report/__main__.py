"""``python -m experiments.report``: tables, figures, claims and a page from result files."""

import sys
import tempfile
from pathlib import Path

from omegaconf import DictConfig

from experiments.arguments import run_command
from experiments.claims import as_markdown, judge
from experiments.errors import RefusedError

HELP = """Make the paper's tables (Markdown, LaTeX, CSV), figures (PNG, PDF), claims and one HTML page from results.

  python -m experiments.report
  python -m experiments.report results=[runs] scale=smoke output=report
  python -m experiments.report source=wandb wandb=my-team/gma

Keys, and what each is unless set:
"""


def write(arguments: DictConfig) -> None:
    """Write everything into ``arguments.output`` and print the claims and what was left out."""
    document = None if arguments.readme is None else Path(arguments.readme)
    if document is not None and not document.is_file():
        raise RefusedError(f"readme={document} is no file")
    with tempfile.TemporaryDirectory() as downloads:
        folders = _folders(arguments, Path(downloads))
        from experiments.report import figures, page, readme, tables
        from experiments.report.collect import collect

        found = collect(folders, arguments.scale)
    if not found.records:
        reasons = "; ".join(found.left_out) or "run python -m experiments.run first"
        raise RefusedError(f"no result of scale {arguments.scale} in {', '.join(map(str, folders))}: {reasons}")
    verdicts = judge(found.records)
    claims = as_markdown(verdicts)
    made, drawn = tables.all_tables(found, arguments.scale), figures.all_figures(found)
    output = Path(arguments.output).expanduser()
    for kind in ("tables", "figures"):
        (output / kind).mkdir(parents=True, exist_ok=True)
    for table in made:
        for ending, text in (("md", table.markdown()), ("tex", table.latex()), ("csv", table.csv())):
            (output / "tables" / f"{table.name}.{ending}").write_text(text)
    for figure in drawn:
        figure.write(output / "figures")
    (output / "claims.md").write_text(claims)
    (output / "index.html").write_text(page.render(found, arguments.scale, verdicts, made, drawn))
    if document is not None:
        readme.update(document, {table.name: table.markdown() for table in made} | {"claims": claims})
    print(claims)
    for reason in found.left_out:
        print(f"left out: {reason}", file=sys.stderr)
    missing = [command for table in made for command in table.missing]
    if missing:
        print(f"{len(missing)} places are empty; {output / 'index.html'} says which commands fill them")
    print(f"{len(found.records)} results in {output / 'index.html'}")


def _folders(arguments: DictConfig, downloads: Path) -> list[Path]:
    if arguments.source == "wandb":
        from experiments.report.wandb_source import download

        return [download(arguments.wandb, downloads)]
    if arguments.source != "files":
        raise RefusedError(f"source={arguments.source} is not known; allowed: files, wandb")
    folders = [Path(folder).expanduser() for folder in arguments.results]
    existing = [folder for folder in folders if folder.is_dir()]
    if not existing:
        raise RefusedError(f"results={list(arguments.results)}: none of these folders is there")
    for folder in set(folders) - set(existing):
        print(f"{folder} is not there: nothing is read from it", file=sys.stderr)
    return existing


if __name__ == "__main__":
    run_command("report", HELP, write)
