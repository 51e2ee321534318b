"""Write the first version of the tool file and the prompt of a server's tools.

The server is asked for each tool's description and input schema, and for the terms that calls are proposed
with, if one of its tools lists them. The rest is as for other tools (`first_version.py`).
"""

import contextlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolformer_ops.config import Settings
from toolformer_ops.errors import ToolError, UsageError
from toolformer_ops.on_a_file.new_tool.examples import ExampleCall, read_examples
from toolformer_ops.on_a_file.new_tool.first_version import (
    NewFiles,
    NewTool,
    answers_to,
    calls_of,
    copy_file,
    inputs_of,
    new_files,
    part_of_options,
    run_examples,
)
from toolformer_ops.on_a_file.new_tool.result_proposal import proposed_result
from toolformer_ops.on_a_file.new_tool.tool_file_texts import NO_RESULT, prompt_text, server_file_text
from toolformer_ops.tools.files.file_tool import FileTool
from toolformer_ops.tools.files.kinds import tool_of_file
from toolformer_ops.tools.files.tool_file import toml_value
from toolformer_ops.tools.servers.connection import ask_server
from toolformer_ops.tools.servers.listed_terms import write_listed_terms
from toolformer_ops.tools.servers.served_tool import ServedTool
from toolformer_ops.tools.servers.server_file import ProposalsPart, ServerPart, ServerToolFile
from toolformer_ops.tools.servers.term_proposals import read_terms

SILENT = "the server does not say whether the tool only reads. Be sure that it does."


def server_part(mcp: str, openapi: str, url: str, header: Sequence[str], secret: Sequence[str]) -> ServerPart:
    """The table `[server]` that the options of `new-tool` ask for, one of `mcp` and `openapi`.

    Raises:
        UsageError: a header has no colon.
        ConfigurationError: the options do not fit together.
    """
    for item in header:
        if ":" not in item:
            raise UsageError(f"--header: expected a name, a colon and a value, found {item!r:.80}.")
    headers = dict(item.partition(":")[::2] for item in header)
    keys: dict[str, Any] = (
        {"url": url, "openapi": openapi}
        if openapi
        else {"url": mcp}
        if "://" in mcp
        else {"command": shlex.split(mcp)}
    )
    keys |= {"headers": {key.strip(): value.strip() for key, value in headers.items()}, "secrets": secret}
    return part_of_options(ServerPart, keys, "--mcp, --openapi, --url, --secret, --header")


def fixed_arguments(items: Sequence[str]) -> dict[str, Any]:
    """Arguments of every call, of texts such as `repo_path=/srv/repo`; a value is read as JSON if it is some.

    Raises:
        UsageError: one has no name or no equals sign.
    """
    arguments: dict[str, Any] = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not name.strip() or not equals:
            raise UsageError(f"--fixed: expected name=value, found {item!r:.80}.")
        arguments[name.strip()] = value
        with contextlib.suppress(ValueError):
            arguments[name.strip()] = json.loads(value)
    return arguments


@dataclass(frozen=True)
class ServerToolChoice:
    """Which tool of a server becomes one of ours, and how."""

    tool: str
    """What the server calls it."""
    name: str
    """In calls."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of every call."""
    allow_writes: bool = False
    terms: str = ""
    """A file with the terms that calls are proposed with, in each line one."""
    listed_by: str = ""
    """Instead of the file, a tool of the server that lists them; `TOOL:FIELD` names a field of its answer."""


def write_server_tools(
    settings: Settings,
    server: ServerPart,
    choices: Sequence[ServerToolChoice],
    examples: Path,
    *,
    replaces: bool = False,
) -> list[NewTool]:
    """Ask the server, and write file and prompt of each of its tools into the tools' folder, or of none.

    Each has the examples that hold its calls.

    Raises:
        UsageError: a name is taken, an example holds no call of a tool, or one has no result.
        ToolError, InfrastructureError: the server does not answer, has no such tool, or it writes without
        leave.
    """
    names = [choice.name for choice in choices]
    written = []
    with contextlib.ExitStack() as stack:
        all_files = [stack.enter_context(new_files(settings, name, replaces=replaces)) for name in names]
        for choice, files in zip(choices, all_files, strict=True):
            others = [name for name in names if name != choice.name]
            written.append(_write_server_tool(settings, server, choice, files, examples, others))
    return written


def _write_server_tool(
    settings: Settings,
    server: ServerPart,
    choice: ServerToolChoice,
    files: NewFiles,
    examples: Path,
    others: Sequence[str],
) -> NewTool:
    """The files of one tool; `others` are the names of tools of the same server and examples."""
    # 1. What the server says.
    name = choice.name
    if server.openapi:
        document = files.add(f".openapi{Path(server.openapi).suffix or '.json'}")
        copy_file(server.openapi, document, "--openapi: expected a JSON or YAML file")
        server = server.model_copy(update={"openapi": document.name})
    proposals = ProposalsPart()
    if choice.terms:
        terms = files.add(".terms")
        copy_file(choice.terms, terms, "--terms: expected a file with a term in each line")
        proposals = ProposalsPart(terms=terms.name)
    elif choice.listed_by:
        listing, _, field_of_answer = choice.listed_by.partition(":")
        terms = files.add(".terms")
        proposals = ProposalsPart(terms=terms.name, listed_by=listing, field=field_of_answer)
    draft = ServerToolFile(
        name=name,
        purpose=name,
        prompt=files.prompt_path.name,
        tool=choice.tool,
        server=server,
        allow_writes=choice.allow_writes,
        fixed=dict(choice.fixed),
        proposals=proposals,
    )
    described = ask_server(draft, files.path.parent)
    if described.recorded.read_only is False and not choice.allow_writes:
        raise ToolError(
            f"tool {name}: expected a tool that only reads, found that the server marks {choice.tool} as "
            "a writing one. If texts of a language model may decide what it writes, say so: "
            "--allow-writes."
        )
    # 2. The file, with its terms, and what of its answers the examples continue with.
    tool = files.write_tool(server_file_text(draft, described))
    warnings = [SILENT] if described.recorded.read_only is None else []
    if proposals.terms:
        write_listed_terms(files.path)
        warnings.append(f"calls are proposed with {len(read_terms(draft, files.path.parent)):,} terms.")
    shown = read_examples(tool, examples, others)
    proposal = propose_result(settings, tool, calls_of(shown))
    tool = tool_of_file(files.path)
    # 3. The prompt.
    answers = run_examples(settings, tool, calls_of(shown))
    files.write_prompt(tool, prompt_text(tool, described.description, shown))
    return NewTool(tool, answers, proposal, tuple(warnings))


def propose_result(
    settings: Settings, tool: FileTool, calls: Sequence[ExampleCall]
) -> tuple[str, int] | None:
    """What of a server's answers the examples continue with, and in how many calls.

    It is written into the file as `result`. None if there is none that at least half of the calls agree with, and for
    what is no tool of a server.

    Raises:
        ToolError, InfrastructureError: the server does not answer, or says other things than a moment ago.
    """
    text = tool.path.read_text(encoding="utf-8")
    if not isinstance(tool, ServedTool) or NO_RESULT not in text:
        return None
    outputs = answers_to(settings, tool.with_whole_answers(), inputs_of(calls))
    answers = [output.results[0] if output.results else "" for output in outputs]
    proposal = proposed_result(calls, answers)
    if proposal is not None:
        tool.path.write_text(text.replace(NO_RESULT, f"result = {toml_value(proposal[0])}"), encoding="utf-8")
    return proposal
