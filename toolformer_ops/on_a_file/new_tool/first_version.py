"""Write the first version of a tool file and of its prompt, from what answers and from examples of the user.

1. What answers is asked what it is: a server for its tool's description and input schema, a database for its
   tables.
2. The calls in the examples are checked as far as the file tells, and run. If one has no result, or of a
   database another than its text says, nothing is written.
3. File and prompt are written (`tool_file_texts.py`); another tool's are replaced only on request.

Does not choose a filter: every text is asked, until a person writes one.
"""

import contextlib
import itertools
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from toolformer_ops.call_syntax import TOOL_NAME
from toolformer_ops.config import Settings
from toolformer_ops.errors import ConfigurationError, ToolError, UsageError, file_problem
from toolformer_ops.on_a_file.annotate.shown_calls import why_no_result
from toolformer_ops.on_a_file.new_tool.examples import Example, ExampleCall, read_examples
from toolformer_ops.on_a_file.new_tool.tool_file_texts import (
    TABLES_CHARACTERS,
    database_file_text,
    function_file_text,
    prompt_text,
    rows_shown,
    without_markup,
)
from toolformer_ops.runs.models import load_model
from toolformer_ops.tools.base import ToolOutput, run_tool
from toolformer_ops.tools.databases.database_file import DatabasePart, DatabaseToolFile
from toolformer_ops.tools.databases.database_tool import (
    ROWS_SLOT,
    look_at_database,
    query_described,
    recorded_tables,
)
from toolformer_ops.tools.databases.requests import DescribedDatabase
from toolformer_ops.tools.databases.table_texts import first_row_query, tables_in, tables_text
from toolformer_ops.tools.files.file_tool import FileTool
from toolformer_ops.tools.files.kinds import tool_of_file
from toolformer_ops.tools.functions.function_file import FunctionPart, FunctionToolFile
from toolformer_ops.tools.functions.function_tool import look_at_function
from toolformer_ops.tools.registry import forget_tools, tool_names

ROWS_STAY = (
    "the prompt shows a row of each table to a model of this machine. A proposer behind an endpoint gets "
    "names of tables and columns and your examples, and no row."
)


Part = TypeVar("Part", bound=BaseModel)


@dataclass(frozen=True)
class NewTool:
    """What was written."""

    tool: FileTool
    answers: list[tuple[ExampleCall, str]]
    """The calls of the examples, in order, each with its result."""
    proposal: tuple[str, int] | None = None
    """What of a server's answers became `result` of the tool file, and in how many calls that is what the text
    continues with."""
    warnings: tuple[str, ...] = ()
    """What its user should know, a sentence each."""
    first_calls: tuple[str, ...] = ()
    """What a database without examples proposes first in the user's texts, each call in its text."""

    @property
    def path(self) -> Path:
        """The tool file."""
        return self.tool.path

    @property
    def prompt_path(self) -> Path:
        """The prompt beside it."""
        return self.path.with_suffix(".txt")


def database_part(url: str, connection: str, tables: Sequence[str], secrets: Sequence[str]) -> DatabasePart:
    """The table `[database]` that the options of `new-tool` ask for.

    A relative path is one of the current folder.

    Raises:
        UsageError: it is no address, but a path for example.
        ConfigurationError: the options do not fit together, or the address holds a password.
    """
    if url and "://" not in url:
        raise UsageError(f"--sql: expected an address, found {url}. A file of SQLite is sqlite:///{url}")
    if url.startswith("sqlite://") and not url.startswith("sqlite:///"):
        path = url.removeprefix("sqlite://")
        raise UsageError(
            f"--sql: expected three strokes before the path, found {url}. Write sqlite:///{path}"
        )
    if url.startswith("sqlite:///"):
        url = f"sqlite:///{Path(url.removeprefix('sqlite:///')).expanduser().resolve()}"
    keys = {"url": url, "connection": connection, "tables": tuple(tables), "secrets": tuple(secrets)}
    return part_of_options(DatabasePart, keys, "--sql, --connection, --table, --secret")


def part_of_options(part: type[Part], keys: Mapping[str, Any], options: str) -> Part:
    """A table of a tool file with the keys that have a value.

    Raises:
        ConfigurationError: the `options` that gave them do not fit together.
    """
    try:
        return part.model_validate({key: value for key, value in keys.items() if value})
    except ValidationError as error:
        said = "; ".join(item["msg"].removeprefix("Value error, ") for item in error.errors())
        raise ConfigurationError(f"{options}: {said}.") from error


def write_database_tool(
    settings: Settings, database: DatabasePart, name: str, examples: Path, *, replaces: bool = False
) -> NewTool:
    """Look at the database, and write file and prompt into the folder of the tool files.

    Raises:
        UsageError: the name is taken, an example holds no call of the tool, or one has no result or another
        than its text says.
        ToolError, InfrastructureError: the database cannot be used, has no table, or does not answer.
    """
    with new_files(settings, name, replaces=replaces) as files:
        # 1. Its tables.
        draft = DatabaseToolFile(name=name, purpose=name, prompt=files.prompt_path.name, database=database)
        opened = look_at_database(draft, files.path.parent)
        recorded = recorded_tables(draft, opened)
        tool = files.write_tool(database_file_text(draft, recorded))
        # 2. The examples, which say which tables matter most.
        shown = read_examples(tool, examples)
        answers = run_examples(settings, tool, calls_of(shown), must_be_said=True)
        # 3. The file again, with rows of these tables, and the prompt.
        tool, warnings = write_database_files(settings, files, draft, opened, shown)
        return NewTool(tool, answers, warnings=tuple(warnings))


def write_database_files(
    settings: Settings,
    files: "NewFiles",
    draft: DatabaseToolFile,
    opened: DescribedDatabase,
    shown: Sequence[Example],
) -> tuple[FileTool, list[str]]:
    """Write the tool file of a database with a row of each table that the prompt names, and the prompt.

    Returns the tool, and what its user should know, a sentence each.
    """
    # 1. The tables of the prompt, those of the examples first.
    recorded = recorded_tables(draft, opened)
    tool = files.write_tool(database_file_text(draft, recorded))
    keys = {table.name: table.keys for table in opened.tables}
    first = tables_in(recorded, inputs_of(calls_of(shown)))
    tables, names = tables_text(recorded, keys, first, TABLES_CHARACTERS)
    # 2. The file with a row of each, and the prompt.
    first_rows = answers_to(settings, tool, [first_row_query(recorded, name) for name in names])
    rows = {name: row.results[0] for name, row in zip(names, first_rows, strict=True) if row.results}
    database = draft.database.model_copy(update={"shown_rows": rows_shown(rows)})
    tool = files.write_tool(database_file_text(draft.model_copy(update={"database": database}), recorded))
    meaning = without_markup(query_described(recorded, tables))
    files.write_prompt(tool, prompt_text(tool, ROWS_SLOT if rows else "", shown, meaning))
    # 3. What its user should know.
    warnings = [*opened.warnings]
    if rows:
        warnings.append(ROWS_STAY)
    if lacking := len(recorded.columns) - len(names):
        warnings.append(
            f"the prompt has room for {TABLES_CHARACTERS:,} characters of tables and columns: it names "
            f"{len(names)}, and {lacking} more it does not. Name those that texts need: --table."
        )
    return tool, warnings


def answers_to(settings: Settings, tool: FileTool, inputs: Sequence[str]) -> list[ToolOutput]:
    """What the tool answers to each input; it is opened for them.

    Raises:
        ToolError, InfrastructureError: what answers does not, or says other things than are recorded.
    """
    runner = tool.open(settings, lambda: load_model(settings, ""))
    outputs = run_tool(runner, inputs, settings.tool_time_limit_seconds)
    runner.close()
    return outputs


def write_function_tool(
    settings: Settings,
    source: Path,
    function: str,
    name: str,
    examples: Path,
    secrets: Sequence[str] = (),
    *,
    replaces: bool = False,
) -> NewTool:
    """Copy the function's file beside the tool files, and write file and prompt.

    Raises:
        UsageError: the name is taken, an example holds no call of the tool, or one has no result.
        ToolError: the file cannot be read, or its function not be a tool.
    """
    with new_files(settings, name, replaces=replaces) as files:
        copied = files.add(".py")
        copy_file(source, copied, "--python: expected a file of Python")
        part = FunctionPart(file=copied.name, name=function, secrets=tuple(secrets))
        draft = FunctionToolFile(name=name, purpose=name, prompt=files.prompt_path.name, function=part)
        described = look_at_function(draft, files.path.parent)
        tool = files.write_tool(function_file_text(draft, described))
        shown = read_examples(tool, examples)
        answers = run_examples(settings, tool, calls_of(shown))
        files.write_prompt(tool, prompt_text(tool, described.description, shown))
        return NewTool(tool, answers)


def copy_file(source: Path | str, copied: Path, expected: str) -> None:
    """Copy a file of the user; a ToolError begins with what was `expected`."""
    try:
        shutil.copyfile(source, copied)
    except OSError as error:
        raise ToolError(f"{expected} at {source}, found: {file_problem(error)}.") from error


@dataclass(frozen=True)
class NewFiles:
    """The files of a new tool, which are as before if one of them cannot be written."""

    path: Path
    """The tool file."""
    prompt_path: Path
    before: dict[Path, bytes | None]
    """What was in each of them; None where there was no file."""

    @classmethod
    def of(cls, path: Path) -> "NewFiles":
        """The tool file at this path, and its prompt."""
        files = cls(path, path.with_suffix(".txt"), {})
        files.add(".toml")
        files.add(".txt")
        return files

    def add(self, ending: str) -> Path:
        """Another file beside them, by the end of its name."""
        file = self.path.with_name(self.path.stem + ending)
        self.before[file] = file.read_bytes() if file.is_file() else None
        return file

    def restore(self) -> None:
        """Leave all of them as they were."""
        for file, content in self.before.items():
            if content is None:
                file.unlink(missing_ok=True)
            else:
                file.write_bytes(content)

    def write_tool(self, file_text: str) -> FileTool:
        """Write the tool file; a ToolError says that it cannot be used."""
        self.path.write_text(file_text, encoding="utf-8")
        return tool_of_file(self.path)

    def write_prompt(self, tool: FileTool, text: str) -> None:
        """Write the prompt; a UsageError says that it is none."""
        self.prompt_path.write_text(text, encoding="utf-8")
        tool.prompt  # noqa: B018 - read and checked here


@contextlib.contextmanager
def new_files(settings: Settings, name: str, *, replaces: bool = False) -> Iterator[NewFiles]:
    """The files of a new tool of that name, in the folder of the tool files.

    Raises:
        UsageError: it is no name for calls, or taken.
    """
    if not TOOL_NAME.fullmatch(name):
        likely = re.sub(r"[^A-Za-z0-9_]|^[^A-Za-z]+", "", name) or "Shop"
        raise UsageError(
            f"--name: expected letters, digits and underscores with a letter first, found {name!r:.80}. Give "
            f"the tool a name for its calls, such as --name {likely}."
        )
    stem = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    files = NewFiles.of(settings.tools_folder / f"{stem}.toml")
    there = list(filter(Path.is_file, files.before))
    if there and not replaces:
        raise UsageError(
            f"--name: expected a new name, found {name}, which has files: {' and '.join(map(str, there))}. Write them "
            "anew with --replace, or choose another name."
        )
    if not there and name.lower() in {tool.lower() for tool in tool_names()}:
        raise UsageError(
            f"--name: expected a new name, found {name}, which is a tool already. Choose another."
        )
    settings.tools_folder.mkdir(parents=True, exist_ok=True)
    try:
        yield files
    except BaseException:
        files.restore()
        raise
    finally:
        forget_tools()


def calls_of(examples: Sequence[Example]) -> list[ExampleCall]:
    """The calls of examples, in order."""
    return list(itertools.chain.from_iterable(example.calls for example in examples))


def inputs_of(calls: Sequence[ExampleCall]) -> list[str]:
    """What is asked by calls, in order."""
    return [call.input for call in calls]


def run_examples(
    settings: Settings, tool: FileTool, calls: Sequence[ExampleCall], *, must_be_said: bool = False
) -> list[tuple[ExampleCall, str]]:
    """The calls of the examples, in order, each with its result; its text holds this if it `must_be_said`.

    Raises:
        UsageError: one has none; the message names each.
        ToolError, InfrastructureError: what answers does not, or says other things than a moment ago.
    """
    answers: list[tuple[ExampleCall, str]] = []
    wrong: list[str] = []
    for call, output in zip(calls, answers_to(settings, tool, inputs_of(calls)), strict=True):
        where = f"line {call.line}, [{tool.spec.name}({call.input})]"
        if output.reason is not None:
            wrong.append(f"{where} has no result, {why_no_result(output.reason, output.message)}")
        elif must_be_said and not call.is_said(output.results[0]):
            goes_on = call.expected or call.following
            wrong.append(
                f"{where} has the result {output.results[0]!r:.80}, and the text says {goes_on!r:.80}"
            )
        else:
            answers.append((call, output.results[0]))
    if wrong:
        lines = "\n  ".join(wrong)
        raise UsageError(
            f"--examples: expected of each call the result that its text says, found {len(wrong)} of "
            f"{len(calls)} otherwise:\n  {lines}\nNothing was written: mend these calls or texts, or leave them out."
        )
    return answers
