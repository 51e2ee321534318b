"""What an annotation in one process counts: how far it is while it works, and what came of it at its end.

`runs/shown_progress.py` shows it meanwhile.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from toolformer_ops.language_model.throughput import WORK, NetworkWork
from toolformer_ops.on_a_file.annotate.pooled_placebos import PlaceboCounts
from toolformer_ops.on_a_file.annotate.shown_calls import call_in_its_text, most_gain, verdict
from toolformer_ops.runs.progress import Progress, StageProgress, ToolProgress
from toolformer_ops.runs.reasons import title

if TYPE_CHECKING:
    from toolformer_ops.on_a_file.annotate.text_annotator import AnnotatedText, TextToAnnotate

COLUMNS_OF_TEXTS = {
    "texts asked": "items", "samples": "samples", "proposed": "proposals", "scored": "scored",
    "kept calls": "kept", "in texts": "kept_texts",
}  # fmt: skip
COLUMNS_OF_CALLS = {"calls": "items", "with a result": "calls", "scored": "scored", "kept": "kept"}
"""The columns of what came of it, each with the count in it."""
MOST_REASONS = 4
"""So many reasons are named, the most frequent ones; the others are counted."""


@dataclass
class ToolCounts:
    """What one tool has done so far."""

    items: int = 0
    """Texts of which its filter keeps something; calls that others proposed."""
    filtered_out: Counter[str] = field(default_factory=Counter)
    """The other texts, by the filter's reason."""
    done: int = 0
    """Texts that are annotated."""
    samples: int = 0
    proposals: int = 0
    """Calls that the tool itself proposed."""
    calls: int = 0
    """Distinct calls with a result."""
    scored: int = 0
    """Calls whose losses are known, or proved to save too little."""
    kept: int = 0
    """Calls; until placebos are scored those that gain enough."""
    kept_texts: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    """Calls without a result, by what the tool said of them."""
    nothing: Counter[str] = field(default_factory=Counter)
    """Texts that were asked and have no kept call, by the reason."""
    placebos: PlaceboCounts = field(default_factory=PlaceboCounts)
    sample_share: float | None = None
    """The share of the pool's calls that is sampled for the false-discovery rate; None without placebos."""

    @property
    def rate(self) -> str | None:
        """The share of the kept calls that is kept by chance, in words; None without placebos."""
        return None if self.sample_share is None else str(self.placebos.rate(self.sample_share))

    def add(self, text: "AnnotatedText") -> None:
        """Count a text that is annotated."""
        self.done += 1
        self.samples += text.counts["sample"]["samples"]
        self.proposals += text.counts["sample"]["proposals"]
        self.calls += len(text.rows)
        self.scored += sum(row["reason"] in (None, "pruned_below") for row in text.rows)
        for failed, calls in text.without_result.items():
            self.failures[failed.why] += calls
        self.kept += sum(row["kept"] for row in text.rows)
        if (reason := text.why_nothing) is not None:
            self.nothing[reason] += 1
        else:
            self.kept_texts += 1

    def add_counts(self, other: "ToolCounts") -> None:
        """Add what was counted of other texts with the same pool of placebos."""
        for name, count in vars(other).items():
            if name != "sample_share":
                setattr(self, name, getattr(self, name) + count)
        self.sample_share = other.sample_share

    def as_json(self) -> dict[str, Any]:
        """The counts as a ledger has them."""
        documents = [[*kept, number] for kept, number in sorted(self.placebos.documents.items())]
        return {**vars(self), "placebos": {**vars(self.placebos), "documents": documents}}

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> "ToolCounts":
        """The counts that `as_json` wrote."""
        stored = value["placebos"]["documents"]
        documents = Counter({(by_chance, kept): number for by_chance, kept, number in stored})
        placebos = PlaceboCounts(**{**value["placebos"], "documents": documents})
        counters = {name: Counter(value[name]) for name in ("filtered_out", "failures", "nothing")}
        return cls(**{**value, **counters, "placebos": placebos})


@dataclass
class AnnotationCounts:
    """What an annotation has counted so far; changed by it, and read by what shows it."""

    tools: dict[str, ToolCounts] = field(default_factory=dict)
    texts: int = 0
    """Documents that were read."""
    phase: str = "starting"
    newest: dict[str, Any] | None = None
    """The newest call that gains enough."""
    clock: Callable[[], float] = time.monotonic
    noun: str = "texts"
    """What is asked about: texts, or calls that others proposed."""

    def __post_init__(self) -> None:
        self._began = self.clock()
        self._annotating_since: float | None = None
        self._new = 0
        self._before = replace(WORK)
        self._counting_since: float | None = None

    @classmethod
    def of(cls, tools: Sequence[str]) -> "AnnotationCounts":
        """The counts of these tools before anything is done."""
        return cls({tool: ToolCounts() for tool in tools})

    # What the annotation tells it

    def begins(self, phase: str) -> None:
        """The next thing that is done."""
        self.phase = phase
        if not phase.startswith(("annotating", "judging", "scoring")):
            return
        if self._annotating_since is None:
            self._annotating_since = self.clock()
            self._before = replace(WORK)
        if self._counting_since is None:
            self._counting_since = self.clock()

    def read(self, text: "TextToAnnotate") -> None:
        """The tools' filters have judged a document."""
        self.texts += 1
        for tool, decisions in text.decisions.items():
            if any(decision.kept for decision in decisions):
                self.tools[tool].items += 1
            else:
                reasons = Counter(decision.reason for decision in decisions)
                refused = reasons.most_common(1)[0][0] if reasons else "empty_text"
                self.tools[tool].filtered_out[refused] += 1

    def finished(self, text: "AnnotatedText", *, is_new: bool, in_pool: bool = False) -> None:
        """A text is annotated by a tool, now or by an earlier try; those `in_pool` decide the rate."""
        self.tools[text.tool].add(text)
        if in_pool:
            self.tools[text.tool].placebos.add(text.rows)
        self._new += is_new
        kept = [row for row in text.rows if row["kept"]]
        if kept:
            self.newest = max(kept, key=most_gain)

    def begins_anew(self, sample_shares: Mapping[str, float]) -> None:
        """Texts are counted anew, as they are final.

        `sample_shares` are the shares of sampled calls of the pools that are drawn.
        """
        for name, tool in self.tools.items():
            share = sample_shares.get(name, tool.sample_share)
            self.tools[name] = ToolCounts(
                items=tool.items, filtered_out=tool.filtered_out, sample_share=share
            )
        self._counting_since, self._new = None, 0

    def ended(self) -> None:
        """All is done."""
        self.begins("done")

    # What it says

    @property
    def seconds(self) -> float:
        """Since it began."""
        return self.clock() - self._began

    @property
    def done(self) -> int:
        """Texts that are annotated, or calls that are judged, over all tools."""
        return sum(tool.done for tool in self.tools.values())

    @property
    def work(self) -> NetworkWork:
        """What the network has computed since the first text."""
        return WORK.since(self._before)

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens that the network reads in a second; None before the first text."""
        if self._annotating_since is None or not self.work.tokens:
            return None
        return self.work.tokens / max(self.clock() - self._annotating_since, 1e-9)

    @property
    def seconds_left(self) -> float | None:
        """Seconds that the work at hand still takes at the mean speed so far.

        None if nothing of it is done yet.
        """
        left = sum(tool.items for tool in self.tools.values()) - self.done
        if self._counting_since is None or not self._new or left <= 0:
            return None
        return (self.clock() - self._counting_since) / self._new * left

    def progress(self) -> Progress:
        """How far it is now."""
        phase = self.phase
        if phase.startswith("reading"):
            phase += f": {self.texts:,}"
        counts = list(self.tools.values())
        kept_word = "kept" if self.phase == "done" else "gain enough"
        scored, kept = sum(tool.scored for tool in counts), sum(tool.kept for tool in counts)
        newest = None
        if self.newest is not None:
            newest = Text.assemble((f"{verdict(self.newest)}: ", "dim"), call_in_its_text(self.newest))
        return Progress(
            tools=tuple(
                ToolProgress(name, (StageProgress(self.noun, tool.done, tool.items),))
                for name, tool in self.tools.items()
            ),
            phase=phase,
            counts=f"{scored:,} calls scored, {kept:,} {kept_word}",
            tokens_per_second=self.tokens_per_second,
            seconds_left=self.seconds_left,
            newest=newest,
        )

    def summary(self) -> Group:
        """What came of it: a row a tool, and the reasons why texts gave nothing."""
        is_of_texts = self.noun == "texts"
        columns = dict(COLUMNS_OF_TEXTS if is_of_texts else COLUMNS_OF_CALLS)
        if not any(tool.proposals for tool in self.tools.values()):
            columns.pop("proposed", None)
        table = Table("tool")
        for column in columns:
            table.add_column(column, justify="right")
        for name, tool in self.tools.items():
            table.add_row(name, *(f"{getattr(tool, counted):,}" for counted in columns.values()))
        lines = []
        for name, tool in self.tools.items():
            if tool.rate is not None:
                lines.append(Text(f"{name}, kept by chance: {tool.rate}"))
        for name, tool in self.tools.items():
            if tool.filtered_out:
                lines.append(Text(f"{name}, not asked: {reasons_in_words(tool.filtered_out)}"))
            if tool.failures and is_of_texts:
                lines.append(Text(f"{name}, calls without a result: {most_frequent(tool.failures)}"))
            if tool.nothing:
                what = "nothing kept" if is_of_texts else "not kept"
                lines.append(Text(f"{name}, {what}: {reasons_in_words(tool.nothing)}"))
        return Group(table, *lines)


def reasons_in_words(counts: Counter[str]) -> str:
    """The most frequent reasons in words, each with its number."""
    return most_frequent(Counter({title(reason): count for reason, count in counts.items()}))


def most_frequent(counts: Counter[str]) -> str:
    """The most frequent of some words, each with its number."""
    words = [f"{count:,} {what}" for what, count in counts.most_common(MOST_REASONS)]
    if others := counts.total() - sum(count for _, count in counts.most_common(MOST_REASONS)):
        words.append(f"{others:,} for other reasons")
    return "; ".join(words)
