"""Ask the server of a tool file for its terms, and write them into the file of terms (`term_proposals.py`).

`refresh-tool` and `new-tool` do so, and no run. The tool of the server that lists them is called once, without
arguments; an answer of several pages gives the terms of the first.
"""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from toolformer_ops.errors import InfrastructureError, NoAnswerError, RejectedInputError, ToolError
from toolformer_ops.storage.machine.shared_files import replace_file
from toolformer_ops.tools.databases.cell_proposals import key_words
from toolformer_ops.tools.files.tool_file import read_tool_file
from toolformer_ops.tools.servers.call_texts import texts_of
from toolformer_ops.tools.servers.connection import Connection
from toolformer_ops.tools.servers.server_file import ServerToolFile

SHOWN_CHARACTERS = 200
"""How much of an answer without terms a message shows."""
BY_HAND = "or write the terms into the file yourself"


def write_listed_terms(path: Path) -> tuple[Path, int] | None:
    """Write the terms that the server of the tool file at `path` lists.

    Returns the file of terms and how many it has; None if the tool file names nothing that lists them.

    Raises:
        ToolError: the server has no such tool, answers with an error, or with no terms.
        InfrastructureError: it does not answer now.
    """
    file = read_tool_file(path, ServerToolFile)
    if not file.proposals.listed_by:
        return None
    terms = dict.fromkeys(asyncio.run(_ask(file, path.parent)))
    written = path.parent / file.proposals.terms
    replace_file(written, "".join(f"{term}\n" for term in terms))
    return written, len(terms)


async def _ask(file: ServerToolFile, folder: Path) -> list[str]:
    """The terms that the server lists."""
    listing = file.proposals.listed_by
    connection = Connection(file.model_copy(update={"tool": listing}), folder)
    try:
        # 1. A tool that only reads.
        described = await connection.open()
        if described.recorded.read_only is False and not file.allow_writes:
            what = f"expected a tool that only reads, found that the server marks {listing} as a writing one"
            raise _refusal(connection, what)
        # 2. Its answer.
        result = await connection.call({}, file.limits.seconds)
    except NoAnswerError as error:
        what = f"expected a list of terms from {listing}, found: {error}"
        raise InfrastructureError(connection.told(what, "Look at its log")) from error
    except RejectedInputError as error:
        what = (
            f"expected a list of terms from {listing}, found the error {error.message!r:.{SHOWN_CHARACTERS}}"
        )
        raise _refusal(connection, what) from error
    finally:
        await connection.close()
    # 3. The terms in it.
    said = texts_of(result) or json.dumps(result.structured_content)
    if result.is_error:
        what = f"expected a list of terms from {listing}, called without arguments, found the error"
        raise _refusal(connection, f"{what} {said!r:.{SHOWN_CHARACTERS}}")
    terms = list(terms_in(result, file.proposals.field))
    if not any(key_words(term) for term in terms):
        what = f"expected terms of three letters or more from {listing}, found {said!r:.{SHOWN_CHARACTERS}}"
        remedy = f"Name the field that holds each term, `field` in [proposals], {BY_HAND}"
        raise ToolError(connection.told(what, remedy))
    return terms


def _refusal(connection: Connection, what: str) -> ToolError:
    """The error of a tool that does not list terms."""
    return ToolError(connection.told(what, f"Name another tool in `listed_by` of [proposals], {BY_HAND}"))


def terms_in(result: Any, field: str) -> Iterator[str]:
    """The terms in an mcp_types.CallToolResult, each on one line.

    They are the texts under the name `field`, wherever it is; without a field the texts in lists. An answer
    that is no JSON has a term in each line.
    """
    parts: list[Any] = [result.structured_content]
    if result.structured_content is None:
        parts = [_json_or_lines(block.text) for block in result.content if block.type == "text"]
    # The parts that are still to be looked at, the next one last: a hostile answer may be of any depth.
    waiting = parts[::-1]
    while waiting:
        part = waiting.pop()
        inner: list[Any] = []
        if isinstance(part, list):
            inner = part
            if not field:
                yield from (" ".join(item.split()) for item in part if isinstance(item, str))
        elif isinstance(part, dict):
            inner = list(part.values())
            if field and isinstance(part.get(field), str):
                yield " ".join(part[field].split())
        waiting += [item for item in reversed(inner) if isinstance(item, list | dict)]


def _json_or_lines(text: str) -> Any:
    """A text as JSON; if it is none, the list of its lines."""
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return text.splitlines()
    return parsed if isinstance(parsed, list | dict) else [text]
