"""Every command that a page shows is one that there is, with the options and arguments that it has."""

import ast
import importlib
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.documentation import PAGES, blocks, commands
from toolformer_ops.cli.command_line import app
from toolformer_ops.config import REPOSITORY

CHECKED = (
    "toolformer-ops",
    "make",
    "kubectl",
    ".venv/bin/python",
    "python",
    "docker/ops",
    "docker/make-env",
    "tests/kubernetes/real",
    "#",
)
"""First words of lines that a test of this file checks: by the program that reads them, or by the files that
they name."""
NOT_CHECKED = {
    "docker": "needs dockerd and its plugin compose; tests/docker",
    "helm": "is not installed; tests/unit/test_deploy.py renders the values",
    "grep": "reads a file that docker/make-env writes",
    "sed": "tests/kubernetes/test_deployment.py follows it",
    "for": "a loop of the shell around kubectl, which is checked",
    "deploy/kubernetes/trial/make-secrets": "tests/kubernetes/test_deployment.py follows it",
    "cp": "a copy of the pod templates",
    "pip": "needs a package registry; tests/integration/test_wheel.py installs the wheel",
    ".venv/bin/pip": "needs a package registry; tests/system/test_one_run.py installs the example",
    "git": "needs an address",
    "python3": "needs a package registry",
    "python3.11": "makes an environment; tests/integration/test_wheel.py does",
    "printf": "needs SeaweedFS' shell",
    "mkdir": "makes a folder",
    "sudo": "needs root",
    "export": "a variable",
    "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST='[": "a variable; tests/system starts Airflow with it",
    "select": "SQL in a block of commands; tests/integration/test_sql_examples.py",
}
"""By the first word of a line, why nothing here checks more of it than its files."""


def _refused(words: Sequence[str]) -> str | None:
    """Why the command line refuses these words; None if it takes them.

    Values are not looked at: `RUN` stands for a run.
    """
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
            if name and re.fullmatch(r"(.*-- |.*; do |.*\| |bash -c '|\S+=\S+ |\.venv/bin/)*", before):
                try:
                    split = shlex.split(re.split(r" [|;<>] |; ", words)[0], comments=True)
                except ValueError:  # a quote that the line does not end, as in a table of words
                    continue
                found.append([word for word in split if word not in ("...", "…")])
    return found


def test_each_command_that_a_page_names_takes_what_the_page_hands_it():
    typed = [(page.name, words) for page in PAGES for words in _typed(page, "toolformer-ops") if words]
    assert len(typed) > 100
    assert {words[0] for _, words in typed} >= {"run", "call", "stage", "audit", "forget", "push", "evaluate"}
    wrong = [(page, " ".join(words), why) for page, words in typed if (why := _refused(words))]
    assert wrong == []


@pytest.mark.parametrize(
    "words", [["rum"], ["call", "--modle", "x"], ["runs", "a", "b"], ["stage", "no-such-stage"]]
)
def test_a_command_that_there_is_not_is_found(words):
    assert _refused(words) is not None


def _answer(*words: str) -> str:
    """What a program says; the empty text if it refuses the words."""
    ended = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    return ended.stdout if ended.returncode == 0 else ""


def test_make_has_each_documented_target_which_reads_its_variables():
    used = {tuple(words) for page in PAGES for words in _typed(page, "make") if words and words[0].islower()}
    assert len(used) > 20
    wrong = []
    for target, *words in used:
        variables = [word for word in words if re.match(r"[A-Z_]+=", word)]
        recipe = _answer("make", "--dry-run", "STAMP=", "LOCK_TOOLS=", target, *variables)
        if not recipe or not all(re.search(rf"\b{word.partition('=')[0]}\b", recipe) for word in variables):
            wrong.append((target, variables))
    assert wrong == []


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
def test_kubectl_takes_each_of_its_commands():
    used = {tuple(words) for page in PAGES for words in _typed(page, "kubectl") if words}
    assert len(used) > 15
    # With --help nothing is asked of a cluster; the word before it is the value of an option that a page
    # leaves open.
    typed = [words[: words.index("--")] if "--" in words else words for words in used]
    assert [words for words in typed if not _answer("kubectl", *words, "x", "--help")] == []


def test_airflow_takes_each_of_its_commands():
    used = sorted({shlex.join(words) for page in PAGES for words in _typed(page, "airflow") if words[2:]})
    assert len(used) >= 3
    parse = "import shlex, sys; from airflow.cli.cli_parser import get_parser; parser = get_parser()\n"
    parse += "for line in sys.argv[1:]: parser.parse_args(shlex.split(line))\nprint('taken')"
    assert _answer(sys.executable, "-c", parse, *used).endswith("taken\n")


def test_each_file_of_the_checkout_that_a_command_names_is_there():
    words = {
        word for page in PAGES for command in commands(page) for word in re.split(r"[\s=,\"']+", command)
    }
    named = {
        word
        for word in words
        if re.fullmatch(r"(\./)?(deploy|docker|requirements|sql|tests|\.venv/bin)/[\w./-]+", word)
    }
    assert len(named) > 40
    assert [
        name
        for name in named - {"deploy/kubernetes/mine/kustomization.yaml"}
        if not (REPOSITORY / name).exists()
    ] == []


def test_each_other_line_of_a_block_of_commands_says_why_it_is_not_checked():
    unknown = []
    for page in PAGES:
        for body in blocks(page, "bash", "console"):
            for line in body.replace("\\\n", " ").splitlines():
                first = line.strip().removeprefix("$ ").split(" ")[0]
                if first and first not in CHECKED and first not in NOT_CHECKED:
                    unknown.append((page.name, line))
    assert unknown == []


def test_each_example_of_python_imports_what_exists():
    seen = 0
    for page in PAGES:
        for body in blocks(page, "python"):
            for node in ast.walk(ast.parse(body)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("toolformer_ops"):
                    module = importlib.import_module(str(node.module))
                    assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == [], (
                        page.name
                    )
                    seen += 1
    assert seen > 5


def test_each_example_of_toml_is_toml():
    examples = [body for page in PAGES for body in blocks(page, "toml")]
    assert len(examples) >= 3
    for body in examples:
        tomllib.loads("\n".join(line.removeprefix("   ") for line in body.splitlines()))


def test_each_module_that_a_page_starts_is_there():
    named = {
        name for page in PAGES for line in commands(page) for name in re.findall(r"python -m ([\w.]+)", line)
    }
    assert len(named) >= 2
    missing = [name for name in named - {"pytest"} if not _is_module(name)]
    assert missing == []


def _is_module(name: str) -> bool:
    path = REPOSITORY / name.replace(".", "/")
    return path.with_suffix(".py").exists() or (path / "__main__.py").exists()
