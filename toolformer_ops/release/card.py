"""The README.md of a release (`card.md.jinja`): what it holds, by which recipes, and how to read it.

Made from the release's content, and the false-discovery rates of the run that made it first: another run with
the same release leaves its card as it is.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from toolformer_ops.language_model.losses import PROBABILITY_TOKENS
from toolformer_ops.release.format import COLUMN_MEANINGS, ReleasedText
from toolformer_ops.runs.placebo_rates import FEWEST_PLACEBOS, kept_by_chance
from toolformer_ops.shown_text import visible


@dataclass
class ReleaseCounts:
    """What a release holds, in numbers, and its first text."""

    texts: int = 0
    calls: int = 0
    texts_by_tool: Counter[str] = field(default_factory=Counter)
    calls_by_tool: Counter[str] = field(default_factory=Counter)
    calls_by_following: Counter[tuple[str, str | None]] = field(default_factory=Counter)
    """By tool and `result_follows`."""
    overlapping_texts: int = 0
    """Texts that share words with evaluation data, in the release or left out of it."""
    first_text: str = ""
    """With its calls."""

    def add(self, text: ReleasedText) -> None:
        """Count one more text."""
        self.texts += 1
        self.first_text = self.first_text or text.text
        self.calls += len(text.calls)
        self.texts_by_tool.update(text.tools)
        self.calls_by_tool.update(call.tool for call in text.calls)
        self.calls_by_following.update((call.tool, call.result_follows) for call in text.calls)


def dataset_card(
    release_id: str,
    definition: Mapping[str, Any],
    counts: ReleaseCounts,
    rates: Mapping[str, Mapping[str, Any]],
) -> str:
    """Markdown with the YAML header that dataset hubs read.

    `definition` is what `stages/release.py` hashes into the release's id, `rates` are by tool, if they are
    known.
    """
    return markdown(
        Path(__file__).parent / "card.md.jinja",
        release_id=release_id,
        definition=definition,
        counts=counts,
        by_chance={tool: kept_by_chance(SimpleNamespace(**rate)) for tool, rate in rates.items()},
        fewest_placebos=FEWEST_PLACEBOS,
        probability_tokens=PROBABILITY_TOKENS,
        columns=COLUMN_MEANINGS,
    )


def markdown(template: Path, **values: Any) -> str:
    """The text of a template; a value that it misses is an error."""
    environment = Environment(  # noqa: S701 - Markdown, not HTML
        loader=FileSystemLoader(template.parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["visible"] = visible
    return environment.get_template(template.name).render(values)
