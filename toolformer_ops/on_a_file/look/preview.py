"""A few texts of a corpus with the calls that a run would find in them: read in a minute, without services and placebos.

Takes the first texts that a tool is asked about, and counts those that it passes over. Writes nothing. There
are no placebos, so that a call is kept here by what it gains before its placebo.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rich.text import Text

from toolformer_ops.config import Settings
from toolformer_ops.on_a_file.annotate.shown_calls import FailedCall, call_in_its_text, most_gain, verdict
from toolformer_ops.on_a_file.annotate.text_annotator import (
    AnnotatedText,
    Row,
    TextAnnotator,
    TextToAnnotate,
)
from toolformer_ops.on_a_file.look import calls_page
from toolformer_ops.on_a_file.look.checking import CorpusLook
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.runs.reasons import title
from toolformer_ops.shown_text import count_of, visible

MOST_CALLS = 3
"""Calls of a tool in a text that are shown, those that gain most; the others are counted."""
SHOWN_CHARACTERS = 200
"""So many characters of a text without calls are shown."""


@dataclass(frozen=True)
class PreviewedText:
    """A text with what each tool found in it, or why a tool was not asked."""

    name: str
    text: str
    annotated: Sequence[AnnotatedText]
    """By each tool that was asked."""
    refusals: Sequence[tuple[str, str]]
    """The other tools, each with its filter's reason."""

    @property
    def rows(self) -> list[Row]:
        """All calls with a result."""
        rows: list[Row] = []
        for text in self.annotated:
            rows += text.rows
        return rows

    @property
    def article(self) -> str:
        """The text with its calls as HTML."""
        without_call = filter(has_no_call, self.annotated)
        nothing = [(text.tool, text.why_nothing or "") for text in without_call]
        failed: list[FailedCall] = []
        for text in self.annotated:
            failed += [call for call, _ in text.without_result.most_common(MOST_CALLS)]
        return calls_page.article(self.name, self.text, self.rows, failed, [*nothing, *self.refusals])


@dataclass
class Preview:
    """The texts to look at, chosen from the first records of a corpus."""

    annotator: TextAnnotator
    items: list[TextToAnnotate] = field(default_factory=list)
    passed_over: Counter[str] = field(default_factory=Counter)
    """Texts before the last of them that no tool was asked about, by the first tool's reason."""
    shown: list[PreviewedText] = field(default_factory=list)

    @classmethod
    def of(cls, settings: Settings, choices: RunChoices, look: CorpusLook, texts: int) -> "Preview":
        """The first texts that a tool is asked about."""
        preview = cls(TextAnnotator.of(settings, choices))
        for name, document in look.documents:
            item = preview.annotator.to_annotate(name, document)
            if any(item.paragraphs.values()):
                preview.items.append(item)
            else:
                preview.passed_over[why_not_asked(item, choices.tools[0])] += 1
            if len(preview.items) == texts:
                break
        return preview

    @property
    def summary(self) -> str:
        """In a sentence: how many texts were looked at, what is kept in them, and which others were passed over."""
        rows = itertools.chain.from_iterable(text.rows for text in self.shown)
        kept = sum(row["kept"] for row in rows)
        calls = sum(len(text.rows) for text in self.shown)
        passed = self.passed_over.total()
        others = ", ".join(f"{count:,} {title(reason)}" for reason, count in self.passed_over.most_common(3))
        left = (
            f" {passed:,} texts before them were passed over, as no tool is asked there: {others}."
            if passed
            else ""
        )
        return (
            f"{count_of(len(self.shown), 'text')}, {count_of(calls, 'call')} with a result, "
            f"{kept:,} kept before placebos.{left} "
            "A run may release fewer: by placebos, one call a place, no input that comes only after the call, "
            "no number of the other sign."
        )

    def texts(self) -> Iterator[PreviewedText]:
        """Each text as soon as it is annotated."""
        for item in self.items:
            annotated: list[AnnotatedText] = []
            refusals = []
            for tool in self.annotator.tools:
                if item.asks(tool.name):
                    annotated += tool.annotated([item])
                else:
                    refusals.append((tool.name, why_not_asked(item, tool.name)))
            self.shown.append(PreviewedText(item.name, item.document.text, annotated, refusals))
            yield self.shown[-1]


def why_not_asked(item: TextToAnnotate, tool: str) -> str:
    """The reason of the filter of a tool that is not asked about a text."""
    decisions = item.decisions[tool]
    return decisions[0].reason if decisions else "filter_says_nothing"


def has_no_call(text: AnnotatedText) -> bool:
    """Whether the tool found no call in the text, with or without a result."""
    return not text.rows and not text.without_result


def best_calls(text: AnnotatedText) -> list[Row]:
    """The calls of a text to show: the kept ones, then those that gain most."""
    ranked = sorted(text.rows, key=lambda row: (not row["kept"], -most_gain(row)))
    return ranked[:MOST_CALLS]


def shown_text(previewed: PreviewedText) -> list[Text]:
    """A text as lines of a terminal: each call in its place, kept or not and why, or why there is none."""
    lines = [Text(visible(previewed.name), style="bold")]
    for text in previewed.annotated:
        for row in best_calls(text):
            lines.append(Text(f"  {'+' if row['kept'] else '-'} {text.tool} {verdict(row)}"))
            lines.append(Text("    ").append_text(call_in_its_text(row)))
        if has_no_call(text):
            lines.append(Text(f"  - {text.tool}: no call; {title(text.why_nothing or '')}"))
        if not text.rows:
            lines.append(Text(f"    {beginning(previewed.text)}", style="dim"))
        if (others := len(text.rows) - MOST_CALLS) > 0:
            lines.append(Text(f"    and {others} more of {text.tool} that save less"))
        for failed, calls in text.without_result.most_common(MOST_CALLS):
            times = f" ({calls} times)" if calls > 1 else ""
            lines.append(Text(f"  - {text.tool} no result; {failed.why}{times}"))
            lines.append(Text(f"    [{visible(failed.call)}]", style="yellow"))
    lines += [
        Text(f"  - {tool}: not asked; {title(reason)}", style="dim") for tool, reason in previewed.refusals
    ]
    return lines


def beginning(text: str) -> str:
    """The first characters of a text, on one line."""
    shown = visible(text[:SHOWN_CHARACTERS]).replace("\n", " ")
    return shown if len(text) <= SHOWN_CHARACTERS else f"{shown}..."
