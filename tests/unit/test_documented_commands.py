"""Every command that a page shows is one that there is, with the options and arguments that it has."""

import ast
import importlib
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from tests.documentation import PAGES, blocks, commands
from toolformer_ops.cli.command_line import app


def _refused(words: Sequence[str]) -> str | None:
    """Why the command line refuses these words; None if it takes them. Values are not looked at: `RUN` stands for a run."""
    command: Any = typer.main.get_command(app)
    context = command.context_class(command, info_name="toolformer-ops")
    rest = list(words)
    while rest and hasattr(command, "commands"):
        name = rest.pop(0)
        if name in ("--help", "-h", "--version", "--install-completion"):
            return None
        if name not in command.commands:
            return f"no command {name}"
        command = command.commands[name]
        context = command.context_class(command, info_name=name, parent=context)
    try:
        _, left, _ = command.make_parser(context).parse_args(rest)
    except Exception as error:  # what Click says of it
        return str(error)
    return f"found {left} besides" if left else None


def _typed(page: Path, program: str) -> list[list[str]]:
    """The words behind the program's name in each command of the page, up to a pipe or a comment."""
    found = []
    for command in commands(page):
        for part in re.split(r" && | \|\| ", command):
            _, name, words = part.rpartition(f"{program} ")
            before = part[: -len(name + words)] if name else ""
            if name and re.fullmatch(r"(.*-- |\S+=\S+ |\.venv/bin/)*", before):
                try:
                    split = shlex.split(re.split(r" [|;>] ", words)[0], comments=True)
                except ValueError:  # a quote that the line does not end, as in a table of words
                    continue
                found.append([word for word in split if word not in ("...", "…")])
    return found


def test_each_command_that_a_page_names_takes_what_the_page_hands_it() -> None:
    typed = [(page.name, words) for page in PAGES for words in _typed(page, "toolformer-ops") if words]
    assert len(typed) > 100
    wrong = [(page, " ".join(words), why) for page, words in typed if (why := _refused(words))]
    assert wrong == []
    for words in (["rum"], ["call", "--modle", "x"], ["runs", "a", "b"], ["stage", "no-such-stage"]):
        assert _refused(words)


def test_each_example_of_python_compiles_and_imports_what_there_is() -> None:
    seen = 0
    for page in PAGES:
        for body in blocks(page, "python"):
            for node in ast.walk(ast.parse(body)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("toolformer_ops"):
                    module = importlib.import_module(str(node.module))
                    assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == [], page.name
                    seen += 1
    assert seen > 5
