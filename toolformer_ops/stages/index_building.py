"""Build the BM25 index that WikiSearch and QA search, from a KILT knowledge source.

The source is JSON Lines, plain, gzip or Zstandard (told by its first bytes), given as a path, `file://` or
`s3://`. The index's own `manifest.json` says what it holds; `tools/retrieval/index_build.py` how a build
stays invisible until it is whole. A published index outlives the disk of the pod that built it;
`tools/retrieval/wiki_index.py` says who searches it.
"""

import functools
import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from toolformer_ops.config import Settings
from toolformer_ops.errors import AlreadyPublishedError, CorpusError, CorruptObjectError
from toolformer_ops.storage.corpora.local_paths import local_path, open_local
from toolformer_ops.storage.corpora.unpacking import UnpackingLimits, unpacked
from toolformer_ops.storage.objects import artifacts
from toolformer_ops.storage.objects.publication import ObjectStore
from toolformer_ops.tools.retrieval.index_build import IndexReport, build, source_fingerprint
from toolformer_ops.tools.retrieval.index_manifest import MANIFEST, IndexManifest
from toolformer_ops.tools.retrieval.java_runtime import SEARCH_THREADS
from toolformer_ops.tools.retrieval.wiki_index import PREFIX, SHOWN

logger = logging.getLogger(__name__)


def build_index(settings: Settings, source_uri: str, *, publish: bool = False) -> IndexReport | None:
    """Make the index of `source_uri` in the settings' `index_dir`, unless it is already there.

    `publish`: also publish it on S3, as the newest. Then nothing is built, and None returned, if this very
    index is published already and not in that folder.

    Raises:
        UsageError: this deployment allows no reading there, the source holds no article, or Lucene did not
        take all passages.
        CorpusError: the source is not there (nothing was touched), or its packed data is damaged (nothing is
        visible).
        ObjectStoreError: the same for S3.
    """

    @contextmanager
    def open_source() -> Iterator[BinaryIO]:
        with ExitStack() as stack:
            if source_uri.startswith("s3://"):
                packed = ObjectStore(settings).open_uri(source_uri)
            else:
                path = local_path(settings, source_uri, "source")
                try:
                    packed = open_local(path)
                except OSError as error:
                    raise CorpusError(
                        f"expected a file with KILT records at {path}, found: {error.strerror or error}."
                    ) from error
            stack.enter_context(packed)
            yield stack.enter_context(unpacked(packed, source_uri, UnpackingLimits()))

    if publish:
        artifacts.require_registry(settings)
    with open_source() as source:  # before any folder is made or Java is started
        if not source.read(1):
            raise CorpusError(f"{source_uri}: expected KILT records, found an empty file.")
    folder = settings.index_dir
    # To read the source takes minutes, to build its index an hour: a pod, whose disk is empty, first looks
    # for a published one.
    if (
        publish
        and not (folder / MANIFEST).exists()
        and artifacts.newest(settings, "index", source_uri)
        and find_published(settings, source_fingerprint(open_source), source_uri)
    ):
        return None
    report = build(open_source, source_uri, folder, SEARCH_THREADS)
    if publish:
        publish_index(settings, folder, report.manifest)
    return report


def publish_index(settings: Settings, folder: Path, manifest: IndexManifest) -> artifacts.Artifact:
    """Publish the index in a folder, and make it the newest.

    An index of the same fingerprint that exists is not written again.

    Raises:
        ObjectStoreError, DatabaseError: S3 or Postgres refuse.
    """
    published = find_published(settings, manifest.fingerprint, manifest.source_uri)
    if published:
        return published
    prefix = f"{PREFIX}{manifest.fingerprint[:SHOWN]}"
    lucene = (path for path in (folder / manifest.folder).rglob("*") if path.is_file())
    files = {path.relative_to(folder).as_posix(): path for path in (folder / MANIFEST, *lucene)}
    publish = functools.partial(
        artifacts.publish, settings, "index", manifest.fingerprint, prefix, files, source=manifest.source_uri
    )
    try:
        return publish()
    except (AlreadyPublishedError, CorruptObjectError):
        # Lucene does not write the same bytes twice: another build was faster, or what was published is not
        # whole any more.
        if published := find_published(settings, manifest.fingerprint, manifest.source_uri):
            return published
        store = ObjectStore(settings)
        store.remove(store.list(f"{prefix}/"))
        logger.warning("the index at %s had lost files: it is published anew", store.uri(prefix))
        return publish()


def find_published(settings: Settings, fingerprint: str, source_uri: str) -> artifacts.Artifact | None:
    """The whole published index of a fingerprint, which becomes the newest; None if there is none."""
    store = ObjectStore(settings)
    prefix = f"{PREFIX}{fingerprint[:SHOWN]}"
    try:
        manifest = store.read_manifest(prefix)
    except CorruptObjectError as error:
        logger.warning("%s", error)
        return None
    if manifest is None or manifest.identity != fingerprint or store.lacking(manifest):
        return None
    artifact = artifacts.Artifact(store.uri(prefix), "index", manifest)
    artifacts.register(settings, artifact, source_uri)
    logger.info("the index of %s is published already: %s", source_uri, artifact.address)
    return artifact
