"""Search passages by BM25 in a Lucene index, with Pyserini's SimpleSearcher.

Many questions go to Lucene at once, in its own threads.

k1 = 0.9 and b = 0.4 are Pyserini's defaults (Lin et al., "Pyserini", SIGIR 2021; Trotman et al., 2012). A question is
a bag of words: it goes through the English analyzer and never through a query parser, so that `"():*` mean nothing.
Passages of equal score are ordered by their id, so that answers do not depend on how the index was written.

Does not build (`index_build.py`), and does not know documents or tools.
"""

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from toolformer_ops.errors import SearchIndexError
from toolformer_ops.retrieval.index_manifest import IndexManifest, read_manifest
from toolformer_ops.retrieval.java_runtime import detach_thread, java_class
from toolformer_ops.retrieval.stored_passage import FoundPassage, read_stored

K1 = 0.9
B = 0.4
QUERY_CHARACTERS = 1000
"""Longest question. Lucene refuses more than 1,024 different words, which fit into no fewer than 2,000 characters."""
BATCH_QUERIES = 64
"""Questions that go to Lucene at once and share one time limit."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SearchAnswer:
    """Passages for one question, best first, or a reason why there are none."""

    passages: tuple[FoundPassage, ...] = ()
    reason: str | None = None
    """`empty_query`, `query_too_long`, `no_match`, `search_failed` or `time_limit`."""


class PassageSearch(Protocol):
    """What finds passages for questions."""

    def search(self, queries: Sequence[str], *, top: int, time_limit_seconds: float) -> list[SearchAnswer]:
        """One answer a question, in order."""
        ...


class Bm25Index:
    """An open index; open one a process and keep it."""

    def __init__(self, searcher: Any, manifest: IndexManifest, threads: int) -> None:
        self.manifest = manifest
        self._searcher = searcher
        self._threads = threads

    @classmethod
    def open(cls, index_dir: Path, threads: int = 1) -> "Bm25Index":
        """Open the index in `index_dir`: about 1 s, nearly all of it Java's start.

        Raises:
            SearchIndexError: there is no whole index there.
        """
        manifest = read_manifest(index_dir)
        folder = index_dir / manifest.folder
        if not folder.is_dir():  # replaced by a new build between the two looks
            manifest = read_manifest(index_dir)
            folder = index_dir / manifest.folder
        searcher_class = java_class("io.anserini.search.SimpleSearcher")
        try:
            searcher = searcher_class(str(folder))
            searcher.set_bm25(K1, B)
            found = int(searcher.get_total_num_docs())
        except Exception as error:
            raise SearchIndexError(
                f"expected a Lucene index in {folder}, found {error}. Build the index again."
            ) from error
        if found != manifest.passages:
            raise SearchIndexError(
                f"{folder}: expected {manifest.passages} passages, found {found}. Build the index again."
            )
        return cls(searcher, manifest, threads)

    def search(self, queries: Sequence[str], *, top: int, time_limit_seconds: float) -> list[SearchAnswer]:
        """The `top` passages for each question, in order of the questions; equal questions are searched once.

        A question that cannot be searched gets a reason; the others get their passages. `time_limit_seconds` holds for each
        `BATCH_QUERIES` questions together, so that no single one takes longer.
        """
        answers: dict[str, SearchAnswer] = {}
        sound: list[str] = []
        for query in dict.fromkeys(queries):
            reason = _refusal(query)
            if reason is None:
                sound.append(query)
            else:
                answers[query] = SearchAnswer(reason=reason)
        for start in range(0, len(sound), BATCH_QUERIES):
            batch = sound[start : start + BATCH_QUERIES]
            answers.update(zip(batch, self._search_batch(batch, top, time_limit_seconds), strict=True))
        return [answers[query] for query in queries]

    def _search_batch(self, batch: list[str], top: int, time_limit_seconds: float) -> list[SearchAnswer]:
        """One batch; where it fails as a whole, each question by itself, so that only the culprit goes without an answer."""
        try:
            return _within(time_limit_seconds, lambda: self._ask_lucene(batch, top))
        except TimeoutError:
            _log.warning("searching %d questions took longer than %.1f s", len(batch), time_limit_seconds)
            return [SearchAnswer(reason="time_limit") for _ in batch]
        except Exception as error:  # whatever Java throws
            if len(batch) == 1:
                _log.warning("Lucene could not search %r: %s", batch[0], str(error).splitlines()[0])
                return [SearchAnswer(reason="search_failed")]
            return [self._search_batch([query], top, time_limit_seconds)[0] for query in batch]

    def _ask_lucene(self, batch: list[str], top: int) -> list[SearchAnswer]:
        list_class = java_class("java.util.ArrayList")
        queries, ids = list_class(), list_class()
        for number, query in enumerate(batch):
            queries.add(query)
            ids.add(str(number))
        hits = self._searcher.batch_search(queries, ids, top, self._threads)
        answers = []
        for number in range(len(batch)):
            found = tuple(
                read_stored(hit.docid, float(hit.score), hit.lucene_document.get("raw"))
                for hit in hits.get(str(number))
            )
            answers.append(SearchAnswer(found) if found else SearchAnswer(reason="no_match"))
        return answers


def _refusal(query: str) -> str | None:
    """Why a question is not worth asking Lucene, or None."""
    if len(query) > QUERY_CHARACTERS:
        return "query_too_long"
    if not any(character.isalnum() for character in query):
        return "empty_query"
    if any("\ud800" <= character <= "\udfff" for character in query):  # Java strings are UTF-16: no lone halves
        return "search_failed"
    return None


def _within(seconds: float, ask: "Callable[[], list[SearchAnswer]]") -> list[SearchAnswer]:
    """Run `ask` in a thread of its own and wait for at most `seconds`; a thread that is too late is left to end by itself.

    Raises:
        TimeoutError: it was too late.
    """
    outcome: queue.SimpleQueue[list[SearchAnswer] | Exception] = queue.SimpleQueue()

    def run() -> None:
        try:
            outcome.put(ask())
        except Exception as error:
            outcome.put(error)
        finally:
            detach_thread()

    threading.Thread(target=run, name="lucene-search", daemon=True).start()
    try:
        answer = outcome.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError from None
    if isinstance(answer, Exception):
        raise answer
    return answer
