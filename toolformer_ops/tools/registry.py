"""Which tools there are, by the name that stands in a call.

The paper's five, and any that an installed package offers as an entry point in the group `toolformer_ops.tools` (an object that
fulfils `tools.base.Tool`). Cheap to import: a tool's index and models are loaded when it is opened.
"""

import functools
import importlib
from importlib.metadata import entry_points

from toolformer_ops.errors import ToolError
from toolformer_ops.tools.base import Tool

ENTRY_POINT_GROUP = "toolformer_ops.tools"

_OWN_TOOLS = {
    "Calculator": "toolformer_ops.tools.calculator:TOOL",
    "Calendar": "toolformer_ops.tools.calendar:TOOL",
    "WikiSearch": "toolformer_ops.tools.wiki_search:TOOL",
    "QA": "toolformer_ops.tools.question_answering:TOOL",
    "MT": "toolformer_ops.tools.machine_translation:TOOL",
}


@functools.cache
def tool_names() -> tuple[str, ...]:
    """Names of all registered tools: the paper's five first."""
    others = sorted(point.name for point in entry_points(group=ENTRY_POINT_GROUP) if point.name not in _OWN_TOOLS)
    return (*_OWN_TOOLS, *others)


@functools.cache
def get_tool(name: str) -> Tool:
    """The tool of that name.

    Raises:
        ToolError: there is none; the message lists those there are.
    """
    if name in _OWN_TOOLS:
        module, _, attribute = _OWN_TOOLS[name].partition(":")
        tool: Tool = getattr(importlib.import_module(module), attribute)
        return tool
    for point in entry_points(group=ENTRY_POINT_GROUP):
        if point.name == name:
            loaded: Tool = point.load()
            return loaded
    raise ToolError(f"expected one of the tools {', '.join(tool_names())}, found {name!r}.")
