"""`python -m benchmarks.foreign_passages FILE...`: which paragraphs MT's filter keeps, and in what time.

It is compared with the paper's rule, where a token is a word. A file has a JSON object a line, packed by gzip
or not: a text, and `foreign`, a list of objects with a `text`, if a person marked its foreign phrases; or it
is `.txt`, a paragraph a line. Of a file with marks the precision and the recall of a rule are computed:

- Precision: the share of the kept paragraphs that hold a marked phrase of at least three words, and of five.
- Recall: the share of the paragraphs with a marked phrase of at least five words (or eight), five words that
  are not marked before it and five behind it, that are kept.

Of a file without marks the kept paragraphs are printed, for a person to judge. `--seconds` measures the CPU
seconds of one paragraph of 10,000 characters, 100,000 and 1,000,000.
"""

import gzip
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.report import table
from toolformer_ops.tools.foreign_passages import FOREIGN_BETWEEN_ENGLISH, judge_paragraph
from toolformer_ops.tools.languages import ENGLISH, identify, is_english
from toolformer_ops.tools.paragraphs import paragraphs

CHUNK_WORDS = 10
CONFIDENCE = 0.8
WORDS_AROUND = 5
FRENCH = "Il faut que nous allions tout de suite chercher le docteur avant la nuit et sans faire de bruit. "
LINES = {
    "English": "The old man walked slowly along the river and looked at the boats that came down from the hills. ",
    "French": FRENCH,
    "Chinese": "南京高淳县住房和城乡建设局城市新区设计",
    "ones": "1 ",
}
_WORD = re.compile(r"\S+")

Rule = Callable[[str], bool]
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True)
class MarkedParagraph:
    """A paragraph, and the words of its marked phrases."""

    text: str
    phrases: tuple[int, ...] | None
    """How many words each marked phrase has; None if no person marked the text."""
    phrases_between: tuple[int, ...] = ()
    """Of these, the phrases between five words that are not marked on each side."""


def kept_by_the_filter(text: str) -> bool:
    """Whether `tools/foreign_passages.py` keeps a paragraph."""
    return judge_paragraph(text) == FOREIGN_BETWEEN_ENGLISH


def kept_by_papers_rule(text: str) -> bool:
    """Whether ten words in another language, with a confidence above 0.8, are between English text as ours defines it."""
    words = [match.span() for match in _WORD.finditer(text)]

    def judged(first: int, end: int) -> tuple[bool, bool]:
        """Whether words are foreign, and whether they are English."""
        language = identify(text[words[first][0] : words[end - 1][1]])
        is_foreign = language is not None and language.label != ENGLISH and language.confidence > CONFIDENCE
        return is_foreign, is_english(language)

    def is_english_rest(first: int, end: int) -> bool:
        return WORDS_AROUND <= end - first < CHUNK_WORDS and judged(first, end)[1]

    chunks = [judged(first, first + CHUNK_WORDS) for first in range(len(words) - CHUNK_WORDS + 1)]
    english = [number for number, (_, chunk_is_english) in enumerate(chunks) if chunk_is_english]
    for first, (is_foreign, _) in enumerate(chunks):
        end = first + CHUNK_WORDS
        if not is_foreign:
            continue
        before = bool(english) and english[0] + CHUNK_WORDS <= first
        after = bool(english) and english[-1] >= end
        if (before or is_english_rest(0, first)) and (after or is_english_rest(end, len(words))):
            return True
    return False


RULES: dict[str, Rule] = {"the paper's rule": kept_by_papers_rule, "the filter": kept_by_the_filter}


@app.command()
def main(
    files: Annotated[list[Path] | None, typer.Argument(help="JSON lines, packed by gzip or not.")] = None,
    field: Annotated[str, typer.Option(help="The field of a record that is its text.")] = "text",
    seconds: Annotated[bool, typer.Option(help="Measure the time of long paragraphs.")] = False,
) -> None:
    """Print precision and recall of each file with marks, and what is kept of the others."""
    for file in files or []:
        read = list(read_paragraphs(file, field))
        for name, rule in RULES.items():
            kept = [paragraph for paragraph in read if rule(paragraph.text)]
            typer.echo(f"{file.name}, {name}: {len(kept)} of {len(read)} paragraphs kept")
            if any(paragraph.phrases is not None for paragraph in read):
                typer.echo(table([precision_and_recall(read, kept)]))
            else:
                for paragraph in kept:
                    typer.echo(f"    {paragraph.text}")
    if seconds:
        typer.echo(table(times()))


def read_paragraphs(file: Path, field: str) -> Iterator[MarkedParagraph]:
    """The paragraphs of a file; a text with marks is one paragraph."""
    packed = file.read_bytes()
    content = (gzip.decompress(packed) if file.suffix == ".gz" else packed).decode("utf-8")
    for line in content.split("\n"):
        if ".txt" in file.suffixes:
            record: dict[str, Any] = {field: line}
        elif line.strip():
            record = json.loads(line)
        else:
            continue
        text = record[field]
        if "foreign" in record:
            yield marked(text, [phrase["text"] for phrase in record["foreign"]])
        else:
            yield from (MarkedParagraph(text[start:end], None) for start, end in paragraphs(text))


def marked(text: str, phrases: Sequence[str]) -> MarkedParagraph:
    """A paragraph with its marked phrases, which stand in it in this order."""
    is_marked = [False] * len(text)
    searched = 0
    for phrase in phrases:
        start = text.find(phrase, searched)
        if start < 0:
            continue
        searched = start + len(phrase)
        is_marked[start:searched] = [True] * len(phrase)
    # 1. Words that are marked for the most part.
    foreign = [
        2 * sum(is_marked[slice(*match.span())]) >= match.end() - match.start()
        for match in _WORD.finditer(text)
    ]
    # 2. Runs of such words, and what stands around each.
    all_phrases: list[int] = []
    between: list[int] = []
    first = 0
    while first < len(foreign):
        end = first
        while end < len(foreign) and foreign[end]:
            end += 1
        if end > first:
            all_phrases.append(end - first)
            around = min(foreign[:first].count(False), foreign[end:].count(False))
            if around >= WORDS_AROUND:
                between.append(end - first)
        first = end + 1
    return MarkedParagraph(text, tuple(all_phrases), tuple(between))


def precision_and_recall(
    read: Sequence[MarkedParagraph], kept: Sequence[MarkedParagraph]
) -> dict[str, object]:
    """A row of the table; shares as counts."""
    row: dict[str, object] = {}
    for least in (3, 5):
        right = sum(max(paragraph.phrases or (0,)) >= least for paragraph in kept)
        row[f"kept with a phrase of {least} words"] = f"{right} of {len(kept)}"
    for least in (5, 8):
        wanted = [paragraph for paragraph in read if max(paragraph.phrases_between, default=0) >= least]
        row[f"kept of those with a phrase of {least} words"] = (
            f"{sum(paragraph in kept for paragraph in wanted)} of {len(wanted)}"
        )
    return row


def times() -> list[dict[str, object]]:
    """CPU seconds of the filter on one paragraph, a row for what it is made of."""
    rows: list[dict[str, object]] = []
    for name, line in LINES.items():
        row: dict[str, object] = {"a paragraph of": name}
        for characters in (10_000, 100_000, 1_000_000):
            text = (line * (characters // len(line) + 1))[:characters]
            started = time.process_time()
            judge_paragraph(text)
            row[f"{characters:,} characters"] = round(time.process_time() - started, 2)
        rows.append(row)
    return rows


if __name__ == "__main__":
    app()
