"""The choices of a run from what a person types: the same options for `check`, `preview`, `annotate` and `run`."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from toolformer_ops.errors import UsageError
from toolformer_ops.runs.choices import THRESHOLD_OF, RunChoices, typed_values
from toolformer_ops.tools.registry import get_tool, typed_tools


@dataclass(frozen=True)
class TypedOptions:
    """What was typed; an option that is empty leaves the default.

    An item of `tools`, or of `thresholds` (TOOL=NUMBER, in nats), may hold several with commas or spaces
    between them. `parameters`, a JSON object, overrides the preset `small_model`.
    """

    tools: Sequence[str] | None = None
    limit: int | None = None
    until_kept: int | None = None
    thresholds: Sequence[str] | None = None
    fields: Sequence[str] | None = None
    proposer: str = ""
    parameters: str = ""
    further: dict[str, object] = field(default_factory=dict)
    """Choices that the command itself makes."""

    def choices(self, corpus: str, model: str) -> RunChoices:
        """Validated choices; raises `UsageError` with the option or the choice that is wrong."""
        values = typed_values(self.parameters.strip() or "{}")
        for name in ("corpus", "model"):
            if name in values:
                raise UsageError(f"--parameters: {name} is given elsewhere on the command line.")
        typed = {
            "tools": typed_tools(self.tools or ()),
            "fields": tuple(self.fields or ()),
            "document_limit": self.limit,
            "until_kept": self.until_kept,
            "proposer": self.proposer,
        }
        values |= {name: value for name, value in typed.items() if value}
        for item in ",".join(self.thresholds or ()).replace(",", " ").split():
            tool, _, nats = item.partition("=")
            try:
                values[f"{THRESHOLD_OF}{get_tool(tool).spec.name}"] = float(nats)
            except ValueError as error:
                raise UsageError(
                    f"--threshold: expected TOOL=NUMBER, such as Calculator=0.3, found {item!r}."
                ) from error
        chosen = RunChoices.parse({**values, **self.further, "corpus": corpus, "model": model})
        chosen.kept_from()
        return chosen
