"""A table and its forms: Markdown, LaTeX, CSV."""

import csv
import io
from dataclasses import dataclass, field
from typing import Any

LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "<": r"$<$", ">": r"$>$",
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One place of a table: ``text``, bold where it is best beyond the noise."""

    text: str
    bold: bool = False


@dataclass
class Table:
    """Rows of entries under ``columns``; the first column names the row.

    Attributes:
        name: of its files. title: above it. notes: below it, one sentence a line.
        values: the numbers behind it, one row a number or a measurement, for the CSV.
        missing: commands that fill its empty places.
    """

    name: str
    title: str
    columns: list[str]
    rows: list[list[Entry]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    values: list[dict[str, Any]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def add(self, *entries: str | Entry) -> None:
        """Append a row; a text is an entry that is not bold."""
        row = [Entry(entry) if isinstance(entry, str) else entry for entry in entries]
        if len(row) != len(self.columns):
            raise ValueError(f"{self.name} has {len(self.columns)} columns, a row {len(row)}")
        self.rows.append(row)

    def markdown(self) -> str:
        """With title and notes, without the commands."""
        lines = [f"**{self.title}**", "", _row(self.columns), _row(["---"] * len(self.columns))]
        lines += [_row([f"**{_cell(e.text)}**" if e.bold else _cell(e.text) for e in row]) for row in self.rows]
        if self.notes:
            lines += ["", " ".join(self.notes)]
        return "\n".join(lines) + "\n"

    def latex(self) -> str:
        """A ``tabular`` with its caption, for ``booktabs``."""
        lines = [r"\begin{table}", r"\centering", rf"\caption{{{_escaped(self.title)}}}"]
        lines += [rf"\begin{{tabular}}{{l{'r' * (len(self.columns) - 1)}}}", r"\toprule"]
        lines += [" & ".join(map(_escaped, self.columns)) + r" \\", r"\midrule"]
        for row in self.rows:
            cells = [rf"\textbf{{{_escaped(e.text)}}}" if e.bold else _escaped(e.text) for e in row]
            lines.append(" & ".join(cells) + r" \\")
        lines += [r"\bottomrule", r"\end{tabular}", *(rf"\par {_escaped(note)}" for note in self.notes), r"\end{table}"]
        return "\n".join(lines) + "\n"

    def csv(self) -> str:
        """The numbers behind the table, unrounded."""
        columns = list(dict.fromkeys(key for row in self.values for key in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.values)
        return text.getvalue()


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _escaped(text: str) -> str:
    return "".join(LATEX.get(character, character) for character in text)
