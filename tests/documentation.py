"""The commands and queries that the pages of the documentation show, taken out of their blocks and of their text."""

import re
from collections.abc import Iterator
from pathlib import Path

from toolformer_ops.config import REPOSITORY

PAGES = [
    *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "sql/README.md")),
    *sorted((REPOSITORY / "docs").glob("*.md")),
]
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, *languages: str) -> Iterator[str]:
    """What stands between fences, of these languages; `""` is a block without one."""
    for language, body in BLOCK.findall(page.read_text(encoding="utf-8")):
        if language in languages:
            yield body


def commands(page: Path) -> Iterator[str]:
    """The lines of blocks, without a prompt, and the code in the text: commands, and other code."""
    for body in blocks(page, "", "bash", "console"):
        for line in body.replace("\\\n", " ").splitlines():
            yield line.strip().removeprefix("$ ")
    prose = BLOCK.sub("", page.read_text(encoding="utf-8"))
    for code in re.findall(r"`([^`]+)`", prose):
        yield " ".join(code.split())


def queries(page: Path) -> list[str]:
    """Statements of blocks of SQL, and those that a command hands to `make sql`."""
    statements = [
        statement for body in blocks(page, "sql") for statement in re.sub(r"--.*", "", body).split(";")
    ]
    statements += re.findall(r'Q="(select .*?)"', page.read_text(encoding="utf-8"))
    return [statement.strip() for statement in statements if statement.strip() and "..." not in statement]
