"""Texts whose perplexity is measured (section 4.3).

They are WikiText by its articles, and documents as JSON Lines with a field `text`. WikiText is taken as it is
published: its tokens with spaces between them, `@-@` and `<unk>` included. An article begins at a heading of
the first level (` = Title = `) with an empty line before and after it: a line of a formula may have the same
form. What precedes the first heading belongs to no article.
"""

import re
from collections.abc import Iterator, Sequence

from toolformer_ops.evaluation.data_files import DataFile, json_lines, text_lines
from toolformer_ops.evaluation.suites.base import DataSet, Item

_TITLE = re.compile(r"\s*= [^=].*[^=] = *\s*\Z|\s*= [^=\s] = *\s*\Z")


def articles(lines: Sequence[str]) -> Iterator[str]:
    """The articles of a WikiText file, headings included."""
    around = ["", *lines, ""]  # the ends of the file count as empty lines
    starts = []
    for number, line in enumerate(lines):
        before, behind = around[number], around[number + 2]
        if _TITLE.match(line) and not before.strip() and not behind.strip():
            starts.append(number)
    for first, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        yield "".join(lines[first:end])


def read_wikitext(files: Sequence[DataFile]) -> Iterator[Item]:
    """The articles of WikiText."""
    for file in files:
        for article in articles(text_lines(file)):
            yield Item({"text": article.strip()})


def read_documents(files: Sequence[DataFile]) -> Iterator[Item]:
    """A document a line."""
    for record in json_lines(*files):
        yield Item({"text": record.text("text")})


TEXTS = (
    DataSet(
        name="wikitext",
        folders=("wikitext", "wikitext2", "wikitext-103", "wikitext-103-raw", "wikitext-2", "wikitext-2-raw"),
        files=(
            "wiki.test.tokens",
            "wiki.test.raw",
            "test.txt",
            "wiki.valid.tokens",
            "wiki.valid.raw",
            "valid.txt",
        ),
        prompt="",
        format="WikiText's token file, with headings such as ' = Title = '",
        source="https://github.com/pytorch/examples, word_language_model/data/wikitext-2 (CC BY-SA 3.0; test and validation "
        "articles are those of WikiText-103)",
        read=read_wikitext,
        first_only=True,
    ),
    DataSet(
        name="documents",
        files=("*.jsonl", "*.json"),
        prompt="",
        format="JSON Lines with a field text",
        source="the documents that were kept from training",
        read=read_documents,
    ),
)
