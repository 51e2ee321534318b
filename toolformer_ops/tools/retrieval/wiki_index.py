"""Which index WikiSearch and QA search, and where it is: a folder of this machine, or published on S3.

    TOOLFORMER_WIKI_INDEX    searched
    a folder                 that folder
    s3://bucket/indices/X    that published index
    empty                    the folder `wiki_index` in the state folder; in pods, which share no disk, the
                             index that was published last

What a search finds is decided by the fingerprint (`index_manifest.py`), which is the identity of a published
index: to know it, nothing but a manifest is read.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from toolformer_ops.config import Settings
from toolformer_ops.errors import ObjectNotFoundError, UsageError
from toolformer_ops.tools.retrieval.index_manifest import read_manifest

if TYPE_CHECKING:
    from toolformer_ops.storage.objects.artifacts import Artifact

PREFIX = "indices/wiki-"
"""Published indices are at this prefix of the bucket, each with the beginning of its fingerprint."""
SHOWN = 16
"""Digits of a fingerprint in addresses and in the versions of tools."""

_IN_VERSION = re.compile(rf"\bindex=([0-9a-f]{{{SHOWN}}})\b")


def index_version(settings: Settings) -> str:
    """`index=` and the beginning of the fingerprint, for the versions of the tools that search.

    Raises:
        UsageError: there is no index; the message names the setting.
        CorruptObjectError: the manifest on S3 was changed after it was published.
    """
    published = _published(settings)
    fingerprint = published.manifest.identity if published else read_manifest(settings.index_dir).fingerprint
    return f"index={fingerprint[:SHOWN]}"


def index_folder(settings: Settings) -> Path:
    """The folder of the index that is searched; a published one is fetched into the cache.

    Raises:
        UsageError, CorruptObjectError: as `index_version`.
        ObjectStoreError, InfrastructureError: it cannot be fetched.
    """
    from toolformer_ops.storage.objects import artifacts

    published = _published(settings)
    return artifacts.fetch(settings, published) if published else settings.index_dir


def with_index_of(settings: Settings, tool_version: str) -> Settings:
    """Settings that name the published index of a tool's version, if they leave open which index is searched.

    So an index that is published while a run works is not taken in the middle of it.
    """
    publication = _IN_VERSION.search(tool_version)
    if settings.wiki_index or settings.runner == "local" or not publication:
        return settings
    return settings.model_copy(update={"wiki_index": f"s3://{settings.s3_bucket}/{PREFIX}{publication[1]}"})


def _published(settings: Settings) -> "Artifact | None":
    """The published index that is searched; None if a folder is."""
    from toolformer_ops.storage.objects import (
        artifacts,  # tools are imported where DAGs are parsed, without boto3
    )

    address: str | None = settings.wiki_index
    if not address and settings.runner == "kubernetes":
        address = artifacts.newest(settings, "index")
        if address is None:
            raise UsageError(
                "expected a published search index, found none. Trigger the DAG build_wiki_index, or set "
                "TOOLFORMER_WIKI_INDEX to the address of one, or to a folder that all pods see."
            )
    if not address or not address.startswith("s3://"):
        return None
    try:
        published = artifacts.find(settings, address, "index")
    except ObjectNotFoundError as error:
        raise UsageError(
            f"expected a published search index at {address} (setting TOOLFORMER_WIKI_INDEX, or the newest), "
            f"found none: {error}. Trigger the DAG build_wiki_index."
        ) from error
    if not published.manifest.identity:
        raise UsageError(
            f"{address}: expected a search index, found a publication of another kind. Give an address below "
            "indices/."
        )
    return published
