"""Keeps what a document says of results equal to the results: blocks between two comments are replaced."""

import re
from collections.abc import Mapping
from pathlib import Path

from experiments.errors import RefusedError


def block(name: str, text: str) -> str:
    """``text`` between the comments that mark it."""
    return f"<!-- report: {name} -->\n{text}<!-- end of {name} -->"


def update(document: Path, texts: Mapping[str, str]) -> None:
    """Replace every block of ``document`` whose name is in ``texts``.

    Raises:
        RefusedError: if the document has a block of another name.
    """
    content = document.read_text()
    for name in re.findall(r"<!-- report: (\w+) -->", content):
        if name not in texts:
            raise RefusedError(f"{document} asks for {name}; there are {', '.join(texts)}")
        pattern = rf"<!-- report: {name} -->.*?<!-- end of {name} -->"
        if not re.search(pattern, content, flags=re.DOTALL):
            raise RefusedError(f"{document}: the block {name} has no end; write <!-- end of {name} --> behind it")
        content = re.sub(pattern, lambda _, name=name: block(name, texts[name]), content, flags=re.DOTALL)
    document.write_text(content)
