"""The registered tools, by the name in a call; capitals do not matter when a tool is looked up.

The paper's five, those that installed packages offer as entry points in the group `toolformer_ops.tools`, and
those of the tool files in `Settings.tools_folder`. An entry point or a file that cannot be used (it does not
import, is no tool, lacks its prompt, or has another tool's name) is left out with a warning, and asking for
it by name raises its error; the other tools work. Importing this module imports no tool, and nothing that a
tool file names is started or reached here.
"""

import functools
import importlib
import logging
import os
from collections import defaultdict
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points

from toolformer_ops.call_syntax import TOOL_NAME
from toolformer_ops.config import load_settings
from toolformer_ops.errors import ToolError, UsageError, did_you_mean
from toolformer_ops.tools.base import Tool, ToolSpec
from toolformer_ops.tools.files.kinds import tool_of_file
from toolformer_ops.tools.files.tool_file import tool_files

ENTRY_POINT_GROUP = "toolformer_ops.tools"

BUILT_IN_TOOLS = ("Calculator", "Calendar", "WikiSearch", "QA", "MT")
"""The tools of this package, which are those of the paper, in its order: `_MODULES` says where they are."""
DEFAULT_TOOLS = BUILT_IN_TOOLS
"""The tools of a run that names none."""

_MODULES = ("calculator", "calendar", "wiki_search", "question_answering", "machine_translation")
"""Where each of them is defined, as `TOOL`."""

logger = logging.getLogger(__name__)


@functools.cache
def tool_names() -> tuple[str, ...]:
    """Names of all tools that can be used: the paper's five first."""
    return (*BUILT_IN_TOOLS, *(tool.spec.name for tool in _added_tools()[0].values()))


@functools.cache
def get_tool(name: str) -> Tool:
    """The tool of that name, in any capitals.

    Raises:
        ToolError: there is none, and the message lists those there are; or its entry point or file cannot be
        used, and it says why.
    """
    for built_in, module in zip(BUILT_IN_TOOLS, _MODULES, strict=True):
        if built_in.lower() == name.lower():
            tool: Tool = importlib.import_module(f"toolformer_ops.tools.{module}").TOOL
            return tool
    tools, refused = _added_tools()
    if name.lower() in refused:
        raise ToolError(refused[name.lower()])
    if name.lower() not in tools:
        similar = did_you_mean(name, tool_names())
        raise ToolError(
            f"expected one of the tools {', '.join(tool_names())}, found {name!r}"
            f"{similar and f' ({similar})'}. If it was a tool of yours, put its file back into "
            f"{load_settings().tools_folder}, or install its package again."
        )
    return tools[name.lower()]


def typed_tools(items: Sequence[str]) -> tuple[str, ...]:
    """Names of tools as a person types them, each once.

    An item may hold several, with commas or spaces between them. Returns no name for empty items, which a
    script may hand on; commands then take all tools.

    Raises:
        ToolError: there is no such tool.
    """
    names = " ".join(items).replace(",", " ").split()
    return tuple(dict.fromkeys(get_tool(name).spec.name for name in names))


def tools_on_device() -> list[str]:
    """Names of the tools whose execution needs the device, since they run a model there."""
    return [name for name in tool_names() if get_tool(name).spec.needs_device]


def forget_tools() -> None:
    """Look for packages and files again when the next tool is asked for, if this process wrote one."""
    for cached in (tool_names, get_tool, _added_tools):
        cached.cache_clear()


@functools.cache
def _added_tools() -> tuple[dict[str, Tool], dict[str, str]]:
    """The tools of packages and files, and why each other is left out; both by their names in small letters.

    A file that cannot be read is refused by the file's name.
    """
    by_name: dict[str, list[EntryPoint]] = defaultdict(list)
    for point in entry_points(group=ENTRY_POINT_GROUP):
        by_name[point.name.lower()].append(point)
    tools: dict[str, Tool] = {}
    refused: dict[str, str] = {}
    for name, points in sorted(by_name.items()):
        try:
            tools[name] = _load(points)
        except ToolError as error:
            refused[name] = str(error)
            logger.warning("a tool is left out: %s", error)
    for path in tool_files(load_settings().tools_folder):
        name = path.stem.lower()
        try:
            tool = tool_of_file(path)
            name = tool.spec.name.lower()
            if name in {built_in.lower() for built_in in BUILT_IN_TOOLS} | set(tools):
                raise ToolError(
                    f"tool file {path}: another tool is called {tool.spec.name}. Rename one of them."
                )
            tool.prompt  # noqa: B018 - read and checked here, before a run starts
            tools[name] = tool
        except UsageError as error:
            refused.setdefault(name, str(error))
            logger.warning("a tool is left out: %s", error)
    return tools, refused


def _load(points: Sequence[EntryPoint]) -> Tool:
    """The tool of the entry points with one name; a ToolError if they are several, or it cannot be used."""
    point = points[0]
    package = point.dist.name if point.dist else "an unknown package"
    where = f"tool {point.name} ({point.value}, package {package})"
    if point.name.lower() in {name.lower() for name in BUILT_IN_TOOLS}:
        raise ToolError(
            f"{where}: the name belongs to a tool of the paper. Rename the tool and its entry point."
        )
    if len(points) > 1:
        others = ", ".join(
            f"{item.value} of {item.dist.name if item.dist else 'another package'}" for item in points
        )
        raise ToolError(
            f"{where}: expected one entry point of that name, found {others}. Rename or uninstall one."
        )
    try:
        tool = point.load()
    except Exception as error:  # another package's module may raise anything when it is imported
        raise ToolError(
            f"{where}: importing it failed with {type(error).__name__}: {error}. Mend the module, or "
            f"uninstall {package}."
        ) from error
    if not isinstance(tool, Tool) or not isinstance(getattr(tool, "spec", None), ToolSpec):
        raise ToolError(
            f"{where}: expected an instance of a class derived from toolformer_ops.tools.base.Tool with a "
            f"`spec`, found {tool!r}. Let the entry point name such an object, as in `TOOL = MyTool()`."
        )
    if tool.spec.name != point.name or not TOOL_NAME.fullmatch(point.name):
        raise ToolError(
            f"{where}: expected an entry point named as the tool's spec, with letters, digits and "
            f"underscores, found the spec's name {tool.spec.name!r}. Make the two names equal."
        )
    if type(tool).run is Tool.run and type(tool).open is Tool.open:
        raise ToolError(f"{where}: expected a method `run` or `open`, found neither. Write one.")
    try:
        tool.prompt  # noqa: B018 - read and checked here, before a run starts
    except Exception as error:
        raise ToolError(
            f"{where}: {error} Ship the prompt file in the package, in the folder of the module."
        ) from error
    return tool


os.register_at_fork(after_in_child=forget_tools)  # for the reason at the end of config.py
