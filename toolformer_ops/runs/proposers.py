"""Who proposes the calls of a run's tools: the language model, a server, or the tools themselves.

The choice `proposer` says it for the run. With `tool` each tool has to be able to propose. With `tool+model`
or `tool-or-model` the calls of a tool that cannot are sampled, so that its recipe is that of a run without the
choice. With `tool-or-model` no model is asked for the calls of the others.
"""

from toolformer_ops.config import Settings
from toolformer_ops.errors import UsageError
from toolformer_ops.language_model.endpoint.endpoint_file import read_endpoint
from toolformer_ops.runs.choices import TOOL_OR_MODEL_PROPOSES, TOOL_PROPOSES, RunChoices
from toolformer_ops.tools.base import Tool
from toolformer_ops.tools.registry import get_tool, tool_names


def require_proposing_tools(choices: RunChoices) -> None:
    """Refuse a run whose tools are to propose all calls, if one of them cannot.

    Raises:
        UsageError: names the tools that cannot, and those that can.
    """
    if choices.model_proposes:
        return
    unable = [name for name in choices.tools if not get_tool(name).can_propose]
    if unable:
        able = [name for name in tool_names() if get_tool(name).can_propose]
        raise UsageError(
            f"proposer: expected tools that can propose calls ({', '.join(able)}), found "
            f"{', '.join(unable)}. Leave them out, or choose the proposer {TOOL_OR_MODEL_PROPOSES}, which "
            "samples their calls."
        )


def tool_proposes(choices: RunChoices, tool: Tool) -> bool:
    """Whether the tool itself proposes calls in a run with these choices."""
    return choices.tool_proposes and tool.can_propose


def model_proposes(choices: RunChoices, tool: Tool) -> bool:
    """Whether a model is asked for the places and calls of the tool in a run with these choices."""
    return not (choices.tool_proposes_alone and tool.can_propose)


def proposer_identity(settings: Settings, choices: RunChoices, tool: Tool) -> str | None:
    """The identity of who proposes a tool's calls, for recipes; None if the language model alone does.

    Raises:
        ConfigurationError: the file of an endpoint cannot be read.
        ToolError: what the tool makes its proposals from is not there.
    """
    if tool_proposes(choices, tool):
        proposer = TOOL_PROPOSES if choices.tool_proposes_alone else choices.proposer
        return f"{proposer}:{tool.proposer_version(settings)}"
    return None if choices.endpoint is None else read_endpoint(settings, choices.endpoint).identity
