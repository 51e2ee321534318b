"""Artifacts: models and search indices on S3, published once and fetched into a cache where they are used.

    published.py     what an address holds, by its manifest alone; publishing; the table `published_artifacts`
    downloading.py   a publication's files, in parts that a later try continues with
    cache.py         an artifact's files in a local folder: downloaded once a node, verified, kept while there is room

A local folder is never copied: whoever names one uses it where it is. What makes a folder a model or an index is known by
`language_model/models/identity.py` and `tools/retrieval/wiki_index.py`.
"""

from toolformer_ops.storage.artifacts.cache import fetch
from toolformer_ops.storage.artifacts.published import Artifact, Kind, find, newest, publish, register, require_registry

__all__ = ["Artifact", "Kind", "fetch", "find", "newest", "publish", "register", "require_registry"]
