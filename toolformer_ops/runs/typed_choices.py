"""The choices of a run from what a person types: the same options for `check`, `preview`, `annotate` and `run`."""

from collections.abc import Sequence
from typing import Any

from toolformer_ops.errors import UsageError
from toolformer_ops.runs.choices import THRESHOLD_OF, RunChoices, typed_values
from toolformer_ops.tools.registry import get_tool, typed_tools


def typed_choices(
    corpus: str,
    model: str,
    *,
    tools: Sequence[str] | None = None,
    limit: int | None = None,
    until_kept: int | None = None,
    thresholds: Sequence[str] | None = None,
    fields: Sequence[str] | None = None,
    proposer: str = "",
    parameters: str = "",
    **further: Any,
) -> RunChoices:
    """Validated choices; an option that is empty leaves the default.

    An item of `tools`, or of `thresholds` (TOOL=NUMBER, in nats), may hold several with commas or spaces
    between them. `parameters`, a JSON object, overrides the preset `small_model`; `further` are choices that
    the command itself makes, and override both.

    Raises:
        UsageError: an option or a choice is wrong; the message names it.
    """
    values = typed_values(parameters.strip() or "{}")
    for name in ("corpus", "model"):
        if name in values:
            raise UsageError(f"--parameters: {name} is given elsewhere on the command line.")
    typed = {
        "tools": typed_tools(tools or ()),
        "fields": tuple(fields or ()),
        "document_limit": limit,
        "until_kept": until_kept,
        "proposer": proposer,
    }
    values |= {name: value for name, value in typed.items() if value}
    for item in ",".join(thresholds or ()).replace(",", " ").split():
        tool, _, nats = item.partition("=")
        try:
            values[f"{THRESHOLD_OF}{get_tool(tool).spec.name}"] = float(nats)
        except ValueError as error:
            raise UsageError(
                f"--threshold: expected TOOL=NUMBER, such as Calculator=0.3, found {item!r}."
            ) from error
    chosen = RunChoices.parse({**values, **further, "corpus": corpus, "model": model})
    chosen.kept_from()
    return chosen
