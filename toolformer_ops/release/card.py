"""The README.md that lies beside a release: what it holds, by which recipes, and how to read it.

Made from nothing but the release's own content, so that equal releases have equal cards.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from toolformer_ops.release.format import COLUMN_MEANINGS, ReleasedText


@dataclass
class ReleaseCounts:
    """What a release holds, in numbers."""

    texts: int = 0
    calls: int = 0
    texts_by_tool: Counter[str] = field(default_factory=Counter)
    calls_by_tool: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, texts: Iterable[ReleasedText]) -> "ReleaseCounts":
        """Count texts."""
        counts = cls()
        for text in texts:
            counts.add(text)
        return counts

    def add(self, text: ReleasedText) -> None:
        """Count one more text."""
        self.texts += 1
        self.calls += len(text.calls)
        self.texts_by_tool.update(text.tools)
        self.calls_by_tool.update(call.tool for call in text.calls)


def dataset_card(release_id: str, definition: Mapping[str, Any], counts: ReleaseCounts) -> str:
    """Markdown with the YAML header that dataset hubs read.

    `definition` is what `stages/release.py` hashes into the release's id.
    """
    lacking = ", ".join(definition["lacking_tools"]) or "none"
    rows = [
        f"| {tool['tool']} | {counts.texts_by_tool[tool['tool']]} | {counts.calls_by_tool[tool['tool']]} "
        f"| {tool['keep_threshold']} | `{tool['sampling_recipe_id']}` | `{tool['execution_recipe_id']}` "
        f"| `{tool['scoring_recipe_id']}` |"
        for tool in definition["tools"]
    ]
    columns = [f"| `{name}` | {meaning} |" for name, meaning in COLUMN_MEANINGS.items()]
    return "\n".join(
        [
            "---",
            "configs:",
            "- config_name: default",
            '  data_files: "*.parquet"',
            "tags: [toolformer, tool-use]",
            "---",
            "",
            f"# Texts with tool calls: release {release_id}",
            "",
            f"{counts.texts} texts with {counts.calls} calls, annotated by the language model `{definition['model']}` after the",
            "method of Toolformer (Schick et al., 2023). A call is in here because its result lowered the model's weighted loss of",
            "the five tokens that follow it by at least the threshold of its tool, against both no call and the call without",
            "its result.",
            "",
            "| tool | texts | calls | threshold (nats) | sampling | execution | scoring |",
            "|---|---:|---:|---:|---|---|---|",
            *rows,
            "",
            f"Tools that the run asked for and that are not in here because they did not come through: {lacking}.",
            f"At most {definition['max_examples_per_tool']} texts a tool, taken in the order of the texts' hashes.",
            "At most one call at a position: the one that lowers the loss most. Calls whose input stands only after them",
            "(machine translation) are left out.",
            "",
            "Call markup: `[Tool(input) -> result]`, with one space beside it.",
            "",
            "| column | meaning |",
            "|---|---|",
            *columns,
            "",
            "```python",
            "import pyarrow.dataset",
            "",
            'table = pyarrow.dataset.dataset("FOLDER", format="parquet", exclude_invalid_files=True).to_table()',
            "```",
            "",
        ]
    )
