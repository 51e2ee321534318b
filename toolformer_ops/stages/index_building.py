"""Build the BM25 index that WikiSearch and QA search, from a KILT knowledge source.

The source is JSON Lines, plain, gzip or Zstandard (told by its first bytes), given as a path, `file://` or `s3://`.
Writes no table: the index's own `manifest.json` says what it holds. See `retrieval/index_build.py` for how a build
stays invisible until it is whole.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from toolformer_ops.config import Settings
from toolformer_ops.corpus.files import unpacked
from toolformer_ops.errors import CorpusError
from toolformer_ops.retrieval.index_build import IndexReport, build
from toolformer_ops.storage.object_store import ObjectStore


def build_index(settings: Settings, source_uri: str, index_dir: Path | None = None) -> IndexReport:
    """Make the index of `source_uri` in `index_dir` (the settings' own where None), unless it is already there.

    Raises:
        CorpusError: the source is not there (nothing was touched), or its packed data is damaged (nothing is visible).
        ObjectStoreError: the same for S3.
        SearchIndexError: it holds no article, or Lucene did not take all passages.
    """

    @contextmanager
    def open_source() -> Iterator[BinaryIO]:
        with ExitStack() as stack:
            packed = stack.enter_context(ObjectStore(settings).open_uri(source_uri))
            yield stack.enter_context(unpacked(packed, source_uri))

    with open_source() as source:  # before any folder is made or Java is started
        if not source.read(1):
            raise CorpusError(f"{source_uri}: expected KILT records, found an empty file.")
    return build(open_source, source_uri, index_dir or settings.index_dir, settings.search_threads)
