"""Search passages by BM25 in a Lucene index, with Pyserini's SimpleSearcher.

Many questions go to Lucene at once, in threads of Lucene.

k1 = 0.9 and b = 0.4 are Pyserini's defaults (Lin et al., "Pyserini", SIGIR 2021; Trotman et al., 2012). A
question is a bag of words: it goes through the English analyzer and never through a query parser, so that
`"():*` mean nothing. Passages of equal score are ordered by their id, so that answers do not depend on how
the index was written.

Does not build (`index_build.py`), and does not know documents or tools.
"""

import functools
import json
import logging
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolformer_ops.errors import UsageError
from toolformer_ops.tools.retrieval.index_manifest import read_manifest
from toolformer_ops.tools.retrieval.java_runtime import java_class, java_thread, start_java
from toolformer_ops.tools.retrieval.kilt_records import Passage

K1 = 0.9
B = 0.4
QUERY_CHARACTERS = 1000
"""Longest question. Lucene refuses more than 1,024 different words, which fit into no fewer than 2,000
characters."""
BATCH_QUERIES = 64
"""Questions that go to Lucene at once."""

_REMEMBERED_TERMS = 50_000
_SURROGATE = re.compile("[\ud800-\udfff]")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FoundPassage:
    """A passage as a search finds it."""

    heading: str
    """`Title`, or `Title > Section`."""
    text: str
    score: float
    """BM25, at least 0; comparable within one question only."""


def stored_form(passage: Passage) -> str:
    """The JSON that is indexed and stored for a passage.

    Heading and text are searched alike, as by Pyserini's KILT baseline.
    """
    return json.dumps(
        {
            "id": passage.passage_id,
            "contents": f"{passage.heading}\n{passage.text}",
            "wikipedia_id": passage.wikipedia_id,
            "paragraphs": list(passage.paragraphs),
        },
        ensure_ascii=False,
    )


@dataclass(frozen=True)
class SearchAnswer:
    """Passages for one question, best first, or a reason why there are none."""

    passages: tuple[FoundPassage, ...] = ()
    reason: str | None = None
    """`empty_query`, `query_too_long`, `no_match` or `search_failed`."""


class Bm25Index:
    """An open index; open one a process and keep it."""

    def __init__(self, index_dir: Path, threads: int = 1) -> None:
        """Open the index in `index_dir`: about 1 s, nearly all of it Java's start.

        Raises:
            UsageError: there is no whole index there.
        """
        # 1. Is it whole?
        manifest = read_manifest(index_dir)
        if not (index_dir / manifest.folder).is_dir():  # replaced by a new build between the two looks
            manifest = read_manifest(index_dir)
        folder = index_dir / manifest.folder
        start_java(threads)
        searcher_class = java_class("io.anserini.search.SimpleSearcher")
        try:
            searcher = searcher_class(str(folder))
            searcher.set_bm25(K1, B)
            passages = int(searcher.get_total_num_docs())
        except Exception as error:
            raise UsageError(
                f"expected a Lucene index in {folder}, found {error}. Build the index again."
            ) from error
        if passages != manifest.passages:
            raise UsageError(
                f"{folder}: expected {manifest.passages} passages, found {passages}. Build the index again."
            )
        self.manifest = manifest
        self._searcher: Any = searcher
        self._threads = threads
        # 2. Its words, and how many passages hold each.
        self._analyzer = searcher.get_analyzer()
        self._analyze = java_class("io.anserini.analysis.AnalyzerUtils").analyze
        directory = java_class("org.apache.lucene.store.FSDirectory").open(
            java_class("java.nio.file.Paths").get(str(folder))
        )
        reader = java_class("org.apache.lucene.index.DirectoryReader").open(directory)
        term_class = java_class("org.apache.lucene.index.Term")

        @functools.lru_cache(maxsize=_REMEMBERED_TERMS)
        def passages_holding(term: str) -> int:
            return int(reader.docFreq(term_class("contents", term)))

        self._passages_holding = passages_holding

    def search(self, queries: Sequence[str], top: int) -> list[SearchAnswer]:
        """The `top` passages for each question, in order of the questions; equal questions are searched once.

        A question that cannot be searched gets a reason; the others get their passages.
        """
        answers: dict[str, SearchAnswer] = {}
        sound: list[str] = []
        for query in dict.fromkeys(queries):
            if len(query) > QUERY_CHARACTERS:
                answers[query] = SearchAnswer(reason="query_too_long")
            elif not any(map(str.isalnum, query)):
                answers[query] = SearchAnswer(reason="empty_query")
            elif _SURROGATE.search(query):  # Java strings are UTF-16: no lone halves
                answers[query] = SearchAnswer(reason="search_failed")
            else:
                sound.append(query)
        with java_thread():
            for start in range(0, len(sound), BATCH_QUERIES):
                batch = sound[start : start + BATCH_QUERIES]
                answers.update(zip(batch, self._search_batch(batch, top), strict=True))
        return [answers[query] for query in queries]

    def terms(self, text: str) -> tuple[str, ...]:
        """The words of `text` as they are searched: lower case, stemmed, without stop words.

        They are in order, with repetitions.
        """
        return tuple(self._analyze(self._analyzer, text).toArray())

    def inverse_document_frequency(self, term: str) -> float:
        """Lucene's BM25 weight of a term by the number of passages that hold it, at least 0.

        It is ln(1 + (N - n + 0.5) / (n + 0.5)).
        """
        holding = self._passages_holding(term)
        return math.log(1 + (self.manifest.passages - holding + 0.5) / (holding + 0.5))

    def _search_batch(self, batch: list[str], top: int) -> list[SearchAnswer]:
        """One batch.

        If it fails as a whole, each question is searched by itself, so that only the culprit goes without an
        answer.
        """
        list_class = java_class("java.util.ArrayList")
        queries, ids = list_class(), list_class()
        try:
            for number, query in enumerate(batch):
                queries.add(query)
                ids.add(str(number))
            hits = self._searcher.batch_search(queries, ids, top, self._threads)
            answers = []
            for number in range(len(batch)):
                passages = []
                for hit in hits.get(str(number)):
                    contents = str(json.loads(hit.lucene_document.get("raw"))["contents"])
                    heading, _, text = contents.partition("\n")
                    passages.append(FoundPassage(heading, text, float(hit.score)))
                answers.append(SearchAnswer(tuple(passages)) if passages else SearchAnswer(reason="no_match"))
        except Exception as error:  # Java may throw anything
            if len(batch) == 1:
                _log.warning("Lucene could not search %r: %s", batch[0], str(error).splitlines()[0])
                return [SearchAnswer(reason="search_failed")]
            return [self._search_batch([query], top)[0] for query in batch]
        return answers
