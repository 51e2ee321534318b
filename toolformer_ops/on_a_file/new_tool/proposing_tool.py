"""Write the tool file of a database without examples: it proposes its own cells (`cell_proposals.py`).

1. The first rows of each table say which column names its rows, and which cells texts may say.
2. In the user's texts, if there are some, the calls are looked for. Names that are common words there are
   left out: those that many texts have, and hardly one with a cell of their row after them.
3. The first calls are run, shown, and become the examples of the prompt, which only a model needs. Without
   texts the prompt has a sentence about each column.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from toolformer_ops.call_syntax import ARROW, Call
from toolformer_ops.config import Settings
from toolformer_ops.errors import UsageError
from toolformer_ops.on_a_file.annotate.annotator import distinct_documents
from toolformer_ops.on_a_file.new_tool.examples import Example, ExampleCall
from toolformer_ops.on_a_file.new_tool.first_version import (
    NewTool,
    answers_to,
    new_files,
    write_database_files,
)
from toolformer_ops.on_a_file.new_tool.tool_file_texts import without_markup
from toolformer_ops.records import Document
from toolformer_ops.tools.base import ProposedCall, ProposedCalls
from toolformer_ops.tools.databases.cell_proposals import (
    MOST_CELL_CHARACTERS,
    CellIndex,
    key_of,
    key_words,
    quoted_text,
)
from toolformer_ops.tools.databases.database_file import (
    ENGINES,
    DatabasePart,
    DatabaseToolFile,
    ProposalsPart,
)
from toolformer_ops.tools.databases.database_tool import database_process, look_at_database
from toolformer_ops.tools.databases.requests import DescribedDatabase, Table
from toolformer_ops.tools.databases.table_rows import ROWS_A_PAGE, read_cells, rows_of_query
from toolformer_ops.tools.databases.table_texts import column_name, table_name
from toolformer_ops.tools.files.file_tool import FileTool
from toolformer_ops.tools.files.tool_process import ToolProcess

NAMING_SHARE = 0.9
"""So many rows have a name in the column that names them, and so many names are of one row."""
_NAME = re.compile(r"name|title|label", re.IGNORECASE)
_NOT_SAID = re.compile(r"(?:.*_)?id|.*(?:password|passwd|secret|token|hash|salt).*", re.IGNORECASE)
"""Columns whose cells no text says, or none should: a person can name them in the file."""
MOST_TEXTS = 10_000
"""Texts that are searched for calls."""
LEAST_TEXTS = 50
"""Fewer texts do not show which names are common words."""
COMMON_SHARE = 0.1
"""A name in a larger share of the texts may be a common word."""
LEAST_SAID_SHARE = 0.05
"""It is one if a smaller share of these texts says a cell of its row."""
NO_EXAMPLES = (
    "its prompt shows no text of yours: with such a prompt a small model writes no query that runs. Before a "
    "model is to propose calls, write the files anew with --examples."
)
SHOWN_CALLS = 10
EXAMPLES = 5
CHARACTERS_BEFORE = 160
CHARACTERS_AFTER = 60
"""How much of a text is shown around a call."""


@dataclass(frozen=True)
class FoundCall:
    """A call that the database proposes in a text."""

    text: str
    call: ProposedCall

    def example(self, tool: str) -> Example:
        """The text around the call, and the same with the call."""
        before, after = self.text[: self.call.char], self.text[self.call.char :]
        if len(before) > CHARACTERS_BEFORE:
            before = before[-CHARACTERS_BEFORE:].partition(" ")[2]
        if len(after) > CHARACTERS_AFTER:
            after = after[:CHARACTERS_AFTER].rpartition(" ")[0]
        return _example(tool, without_markup(before), self.call.input, without_markup(after))


def _example(tool: str, before: str, call_input: str, after: str) -> Example:
    """An example with a call between two parts of a text."""
    call = ExampleCall(line=0, input=call_input, expected="", following=after)
    with_call = f"{before} [{Call(tool, call_input)}] {after}"
    return Example(f"{before} {after}".strip(), with_call.strip(), (call,))


def write_proposing_tool(
    settings: Settings, database: DatabasePart, name: str, texts: str = "", *, replaces: bool = False
) -> NewTool:
    """Look at the database, and write file and prompt; `texts` is the address of a corpus.

    Raises:
        UsageError: the name is taken, no column names rows, or the texts cannot be read.
        ToolError, InfrastructureError: the database cannot be used, has no table, or does not answer.
    """
    documents = [text for _, text in distinct_documents(settings, texts, MOST_TEXTS)] if texts else []
    with new_files(settings, name, replaces=replaces) as files:
        # 1. Which column names the rows of each table.
        draft = DatabaseToolFile(name=name, purpose=name, prompt=files.prompt_path.name, database=database)
        folder = files.path.parent
        opened = look_at_database(draft, folder)
        cells = proposed_columns(draft, opened, database_process(draft, folder, reads_tables=True))
        draft = draft.model_copy(update={"proposals": ProposalsPart(cells=cells)})
        # 2. The calls in the texts, without names that are common words there.
        index = read_cells(draft, database_process(draft, folder, reads_tables=True))
        proposed = [index.proposals(document) for document in documents]
        common = common_names(index, documents, proposed)
        if common:
            draft = draft.model_copy(update={"proposals": ProposalsPart(cells=cells, common=tuple(common))})
            index.leave_out(common)
            proposed = [index.proposals(document) for document in documents]
        first_calls: list[FoundCall] = []
        for document, calls in zip(documents, proposed, strict=True):
            first_calls += [FoundCall(document.text, call) for call in calls.calls]
        # 3. The prompt's examples, and the files.
        shown = examples_of_texts(name, first_calls) or list(examples_of_columns(name, index))
        tool, warnings = write_database_files(settings, files, draft, opened, shown)
        said = [*rows_said(draft, opened, index)]
        if texts:
            said.append(calls_said(documents, proposed, common))
        if not first_calls:
            said.append(NO_EXAMPLES)
        shown_first = shown_calls(settings, tool, first_calls[:SHOWN_CALLS])
        return NewTool(tool, answers=[], warnings=(*warnings, *said), first_calls=tuple(shown_first))


def proposed_columns(
    file: DatabaseToolFile, opened: DescribedDatabase, process: ToolProcess
) -> dict[str, tuple[str, ...]]:
    """By the column that names the rows of a table, the columns whose cells a text may say.

    Raises:
        UsageError: no column names the rows of a table.
        ToolError, InfrastructureError: a table cannot be read.
    """
    process.open()
    naming: dict[str, str] = {}
    values: dict[str, list[str]] = {}
    try:
        for table in opened.tables:
            sample = _sample(file, table, process)
            names = [column for column, cells in sample.items() if names_rows(cells)]
            named = next(filter(_NAME.search, names), next(iter(names), ""))
            if named:
                naming[table.name] = named
            keys = {column for column, words in table.keys.items() if words}
            values[table.name] = [
                column
                for column, cells in sample.items()
                if column not in keys | {named} and not _NOT_SAID.fullmatch(column) and can_be_said(cells)
            ]
    finally:
        process.close()
    cells: dict[str, tuple[str, ...]] = {}
    for table in opened.tables:
        if table.name not in naming:
            continue
        columns = list(values[table.name])
        for foreign_key, (target, _) in table.foreign_keys.items():
            if target != table.name:
                far = [naming[target], *values[target]] if target in naming else values[target]
                columns += [f"{foreign_key}.{column}" for column in far]
        if columns:
            cells[f"{table.name}.{naming[table.name]}"] = tuple(columns)
    if not cells:
        raise UsageError(
            "--sql: expected a table with a column of names, another for each row, and a column besides, "
            f"found none in {', '.join(table.name for table in opened.tables)}. Make a view with such columns, "
            "or write texts with queries: --examples."
        )
    return cells


def _sample(file: DatabaseToolFile, table: Table, process: ToolProcess) -> dict[str, list[str | None]]:
    """The cells of a table's first rows, by column.

    Without truth values, which no text says as the database does. A Postgres cuts long cells, since it passes
    over a row that is longer than an answer.
    """
    engine = ENGINES[file.database.engine]
    columns = [name for name, kind in table.columns.items() if not kind.lower().startswith("bool")]
    if not columns:
        return {}
    names = [column_name(column, engine) for column in columns]
    cut = f"left(cast({{}} as text), {MOST_CELL_CHARACTERS + 1})" if engine == "Postgres" else "{}"
    written = ", ".join(map(cut.format, names))
    query = f"SELECT {written} FROM {table_name(table.name, engine)}"  # noqa: S608 - names cannot be bound
    rows = list(itertools.islice(rows_of_query(file, process, query), ROWS_A_PAGE))
    return {column: [row[number] for row in rows] for number, column in enumerate(columns)}


def names_rows(cells: Sequence[str | None]) -> bool:
    """Whether the cells of a column name their rows: texts with letters, nearly all of them distinct."""
    names = [words for cell in cells if cell and (words := key_words(cell))]
    return bool(names) and min(len(names) / len(cells), len(set(names)) / len(names)) >= NAMING_SHARE


def can_be_said(cells: Sequence[str | None]) -> bool:
    """Whether a text can say the cells of a column: half of them are short enough."""
    lengths = [len(cell) for cell in cells if cell]
    return sum(length <= MOST_CELL_CHARACTERS for length in lengths) * 2 >= max(1, len(lengths))


def common_names(
    index: CellIndex, documents: Sequence[Document], proposed: Sequence[ProposedCalls]
) -> list[str]:
    """The names that many texts have, hardly one of these with a cell of the row; the most frequent first."""
    if len(documents) < LEAST_TEXTS:
        return []
    named: Counter[str] = Counter()
    said: Counter[str] = Counter()
    for document, calls in zip(documents, proposed, strict=True):
        named.update(index.keys_in(document.text))
        said.update({" ".join(key_words(key_of(call.input)) or ()) for call in calls.calls})
    return [
        name
        for name, texts in named.most_common()
        if texts > COMMON_SHARE * len(documents) and said[name] < LEAST_SAID_SHARE * texts
    ]


def examples_of_texts(tool: str, calls: Sequence[FoundCall]) -> list[Example]:
    """The first calls in different texts, as examples of the prompt."""
    by_text: dict[str, FoundCall] = {}
    for call in calls:
        by_text.setdefault(call.text, call)
    return [call.example(tool) for call in itertools.islice(by_text.values(), EXAMPLES)]


def examples_of_columns(tool: str, index: CellIndex) -> Iterator[Example]:
    """A sentence about each column, as examples of the prompt.

    No cell is in them, since a proposer behind an endpoint gets them.
    """
    for table in index.tables:
        for column in table.columns[:EXAMPLES]:
            subject = without_markup(f"The {column.name.replace('_', ' ')} of NAME is")
            yield _example(tool, subject, f"{column.query}{quoted_text('NAME')}", "VALUE.")


def shown_calls(settings: Settings, tool: FileTool, calls: Sequence[FoundCall]) -> list[str]:
    """The calls with their results, each in the text around it; those without a result say why."""
    outputs = answers_to(settings, tool, [item.call.input for item in calls])
    lines = []
    for item, output in zip(calls, outputs, strict=True):
        example = item.example(tool.spec.name)
        result = output.results[0] if output.results else f"no result, {output.reason}"
        lines.append(example.with_calls.replace(")]", f") {ARROW} {result}]", 1))
    return lines


def rows_said(file: DatabaseToolFile, opened: DescribedDatabase, index: CellIndex) -> Iterator[str]:
    """What names the rows of each table, and how many rows have no name of their own."""
    for (key, columns), table in zip(file.proposals.cells.items(), index.tables, strict=True):
        counts = table.counts
        left_out = [
            f"{counts[reason]:,} {words}"
            for reason, words in (
                ("of_several", "share their name with another row"),
                ("without_key", "have no name of three letters"),
            )
            if counts[reason]
        ]
        but = f", of which {' and '.join(left_out)}: they are left out" if left_out else ""
        yield f"{key} names {counts['rows']:,} rows{but}. Proposed are {', '.join(columns)}."
    named = {key.rpartition(".")[0] for key in file.proposals.cells}
    if others := [table.name for table in opened.tables if table.name not in named]:
        yield f"no column names the rows of {', '.join(others)}: nothing is proposed from them by themselves."


def calls_said(
    documents: Sequence[Document], proposed: Sequence[ProposedCalls], common: Sequence[str]
) -> str:
    """How many calls were found in how many texts, and which names were left out as common words."""
    calls = sum(len(calls.calls) for calls in proposed)
    texts = sum(bool(calls.calls) for calls in proposed)
    left = f" Left out as common words: {', '.join(common)}." if common else ""
    return f"{calls:,} calls in {texts:,} of {len(documents):,} texts.{left}"
