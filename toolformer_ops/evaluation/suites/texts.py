"""Texts whose perplexity is measured (section 4.3): WikiText by its articles, and documents as JSON Lines with a field `text`.

WikiText is taken as it is published: its tokens with spaces between them, `@-@` and `<unk>` included. An article begins at a
heading of the first level (` = Title = `), and what precedes the first belongs to none.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from toolformer_ops.errors import EvaluationDataError, WrongFormatError
from toolformer_ops.evaluation.data_files import DataFile, DataFolder, json_lines, text_lines
from toolformer_ops.evaluation.suites.base import DataSet, Item, files_sha256, read_files, wrong_format

_TITLE = re.compile(r"\s*= [^=].*[^=] = *\s*\Z|\s*= [^=\s] = *\s*\Z")


@dataclass(frozen=True)
class LoadedTexts:
    """The texts of a data set."""

    data_set: DataSet
    texts: tuple[str, ...]
    sha256: str
    """Of the names and stored contents of the files that were read, 64 hex digits."""


def articles(lines: Sequence[str]) -> Iterator[str]:
    """The articles of a WikiText file, headings included."""
    article: list[str] = []
    for line in lines:
        if _TITLE.match(line):
            if article:
                yield "".join(article)
            article = [line]
        elif article:
            article.append(line)
    if article:
        yield "".join(article)


def _wikitext(files: Sequence[DataFile]) -> Iterator[Item]:
    for file in files:
        for article in articles(text_lines(file)):
            yield Item({"text": article.strip()}, ())


def _documents(files: Sequence[DataFile]) -> Iterator[Item]:
    for file in files:
        for row in json_lines(file):
            yield Item({"text": row.text("text")}, ())


TEXTS = (
    DataSet(
        "wikitext", ("wikitext", "wikitext2", "wikitext-103", "wikitext-103-raw", "wikitext-2", "wikitext-2-raw"),
        ("wiki.test.tokens", "wiki.test.raw", "test.txt", "wiki.valid.tokens", "wiki.valid.raw", "valid.txt"), "",
        "WikiText's token file, with headings such as ' = Title = '",
        "https://github.com/pytorch/examples, word_language_model/data/wikitext-2 (CC BY-SA 3.0; test and validation articles are "
        "those of WikiText-103)",
        _wikitext, first_only=True,
    ),
    DataSet(
        "documents", ("documents",), ("*.jsonl", "*.json"), "", "JSON Lines with a field text",
        "the documents that were kept from training", _documents,
    ),
)  # fmt: skip


def load_texts(folder: DataFolder, data_set: DataSet, limit: int | None = None) -> LoadedTexts:
    """The (first `limit`) texts of a data set.

    Raises:
        EvaluationDataError: its files are not there, or hold something else, or no text.
    """
    files = read_files(folder, data_set)
    try:
        texts = tuple(item.slots["text"] for item in data_set.read(files))[:limit]
    except WrongFormatError as error:
        raise EvaluationDataError(wrong_format(folder, data_set, files, str(error))) from error
    if not texts:
        raise EvaluationDataError(wrong_format(folder, data_set, files, "no text"))
    return LoadedTexts(data_set, texts, files_sha256(files))
