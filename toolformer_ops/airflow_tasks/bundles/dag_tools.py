"""The tools for which a DAG has tasks and form fields: the tools registered when its version was made.

A tool file may be written or removed at any time, and a DAG is parsed again for each task that starts. So a
version of the DAGs holds its tools beside its DAG files (`versioned_bundle.py`), and a run keeps the tasks
that it started with. What a tool does is read from the registry by its stage, not from here.
"""

import json
import multiprocessing
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from toolformer_ops.errors import ConfigurationError
from toolformer_ops.tools.base import ToolSpec
from toolformer_ops.tools.registry import get_tool, tool_names

TOOLS_FILE = "tools.json"
"""Beside the DAG files of a version."""
LOOK_SECONDS = 60.0
"""How long importing all tools may take."""


@dataclass(frozen=True, kw_only=True)
class DagTool:
    """What the tasks of a tool and its field in a form follow from."""

    name: str
    purpose: str
    """One sentence for forms and help."""
    keep_threshold: float
    """The tool's own, in nats."""
    executes_apart: bool
    """Whether a shard has the tasks `sample`, `execute` and `score` instead of one."""
    needs_device: bool
    """Whether its execution loads a model."""
    needs_index: bool
    """Whether it searches the index over Wikipedia."""

    @classmethod
    def of(cls, spec: ToolSpec) -> "DagTool":
        """What the tool itself says."""
        return cls(
            name=spec.name,
            purpose=spec.purpose,
            keep_threshold=spec.keep_threshold,
            executes_apart=spec.executes_apart,
            needs_device=spec.needs_device,
            needs_index=spec.needs_index,
        )


def registered_tools() -> tuple[DagTool, ...]:
    """All tools that can be used, the paper's five first."""
    return tuple(DagTool.of(get_tool(name).spec) for name in tool_names())


def tools_beside(dag_file: str) -> tuple[DagTool, ...]:
    """The tools of the version that a DAG file is of.

    They are the registered ones if it is of none, as in `dags/` itself.
    """
    path = Path(dag_file).with_name(TOOLS_FILE)
    return from_json(path.read_bytes()) if path.exists() else registered_tools()


def to_json(tools: Sequence[DagTool]) -> bytes:
    """The content of a `tools.json`."""
    return json.dumps([asdict(tool) for tool in tools], indent=1).encode()


def from_json(content: bytes) -> tuple[DagTool, ...]:
    """The tools in a `tools.json`."""
    return tuple(DagTool(**tool) for tool in json.loads(content))


def look_for_tools() -> tuple[DagTool, ...]:
    """The tools that are registered now, found by a child process.

    The DAG processor asks again and again and lives for months: it would keep the first version of a
    package's module that it imported, and a module that never returns would stop it.

    Raises:
        ConfigurationError: the child did not answer within `LOOK_SECONDS`, or died.
    """
    context = multiprocessing.get_context("fork")
    answer, question = context.Pipe(duplex=False)
    child = context.Process(target=_send_tools, args=(question,), name="look-for-tools")
    child.start()
    question.close()
    try:
        content = answer.recv_bytes() if answer.poll(LOOK_SECONDS) else b""
    except EOFError:  # it died
        content = b""
    finally:
        answer.close()
        child.kill()
        child.join()
    if not content:
        raise ConfigurationError(
            f"expected the tools within {LOOK_SECONDS:.0f} s, found none. A package of a tool cannot be "
            "imported: the log of the DAG processor says more. Mend or uninstall it."
        )
    return from_json(content)


def _send_tools(question: Connection) -> None:
    """In the child, whose registry is empty (`registry.py`, its end)."""
    question.send_bytes(to_json(registered_tools()))
    question.close()
