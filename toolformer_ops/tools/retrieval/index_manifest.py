"""The manifest of an index: what it was built from, with what, and which folder holds it.

An index is a folder:

    manifest.json      written last, atomically; without it there is no index
    lucene-<16 hex>/   the Lucene files that the manifest names
    building-*/        a build that is under way, or was killed; ignored by readers, removed by the next build
    build.lock         held by the process that builds

The fingerprint is a hash of the source's content (unpacked) and of all parameters that decide what a search
finds. It is part of the version of the tools that search, so that a new index asks for new execution.
"""

import dataclasses
import hashlib
import importlib.metadata
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from toolformer_ops.errors import UsageError
from toolformer_ops.storage.machine.shared_files import replace_file
from toolformer_ops.tools.retrieval.kilt_records import PASSAGE_RULES, PASSAGE_WORDS

MANIFEST = "manifest.json"
FORMAT = 1
ANALYZER = "anserini-DefaultEnglishAnalyzer-porter"


@dataclass(frozen=True)
class IndexManifest:
    """What an index holds and where it comes from."""

    fingerprint: str
    """SHA-256, in hex, of the source's hash and the parameters."""
    source_uri: str
    """Where the source was read; not part of the fingerprint."""
    source_sha256: str
    """Hash of the source's unpacked bytes, in hex."""
    parameters: Mapping[str, str | int]
    """Passage rules, analyzer, Pyserini's version: all that decides what is in the index."""
    documents: int
    """Records that were read as articles; records = documents + the sum of `rejected`."""
    passages: int
    rejected: Mapping[str, int]
    """Records without an article in them, by reason."""
    documents_without_passages: int
    """Articles with no text below their title; part of `documents`."""
    folder: str
    """Name of the folder with the Lucene files, in the manifest's folder."""
    format: int = FORMAT


def index_parameters() -> dict[str, str | int]:
    """All that decides, apart from the source, what an index built now would hold."""
    return {
        "passage_rules": PASSAGE_RULES,
        "passage_words": PASSAGE_WORDS,
        "analyzer": ANALYZER,
        "pyserini": importlib.metadata.version("pyserini"),
    }


def fingerprint_of(source_sha256: str, parameters: Mapping[str, str | int]) -> str:
    """The fingerprint of an index over a source with that hash, built with these parameters."""
    text = json.dumps({"source_sha256": source_sha256, **parameters}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def read_manifest(index_dir: Path) -> IndexManifest:
    """The manifest of the index in `index_dir`.

    Raises:
        UsageError: there is none, or it is not one of ours; the message names the folder and the setting.
    """
    path = index_dir / MANIFEST
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        manifest = IndexManifest(**fields)
    except FileNotFoundError as error:
        raise UsageError(
            f"expected a search index in {index_dir} (setting TOOLFORMER_WIKI_INDEX), found no {MANIFEST}. "
            "Build one: `toolformer-ops stage build-index --source KILT.jsonl`, or trigger the DAG "
            "build_wiki_index."
        ) from error
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(
            f"expected an index manifest in {path}, found {error}. Build the index again."
        ) from error
    if manifest.format != FORMAT:
        raise UsageError(f"{path}: expected format {FORMAT}, found {manifest.format}. Build the index again.")
    return manifest


def write_manifest(index_dir: Path, manifest: IndexManifest) -> None:
    """Make `manifest` the manifest that readers see, in one step."""
    text = json.dumps(dataclasses.asdict(manifest), indent=2, sort_keys=True)
    replace_file(index_dir / MANIFEST, f"{text}\n")
