"""What the DAGs make that others may wait for: Airflow shows these in its asset graph and can schedule DAGs on them.

The addresses name the things, not the places where they lie: an event's `extra` says which run or release it was.
"""

from airflow.sdk import Asset

WIKI_INDEX = Asset(
    name="wiki_index", uri="toolformer://wiki-index", group="toolformer", extra={"made_by": "build_wiki_index"}
)
"""The BM25 index over Wikipedia that WikiSearch and QA search."""

DATASET_RELEASE = Asset(
    name="dataset_release", uri="toolformer://dataset-release", group="toolformer", extra={"made_by": "annotate_corpus"}
)
"""A checked release on S3."""
