"""How a passage lies in the index: as one JSON document with its heading on the first line of `contents`.

Heading and text are searched alike (so does Pyserini's own KILT baseline); the JSON is stored raw and read back with
each hit.
"""

import json
from dataclasses import dataclass

from toolformer_ops.retrieval.kilt_records import Passage


@dataclass(frozen=True)
class FoundPassage:
    """A passage as a search finds it."""

    passage_id: str
    heading: str
    """`Title`, or `Title > Section`."""
    text: str
    score: float
    """BM25, at least 0; comparable within one question only."""


def stored_form(passage: Passage) -> str:
    """The JSON that is indexed and stored for a passage."""
    return json.dumps(
        {
            "id": passage.passage_id,
            "contents": f"{passage.heading}\n{passage.text}",
            "wikipedia_id": passage.wikipedia_id,
            "paragraphs": list(passage.paragraphs),
        },
        ensure_ascii=False,
    )


def read_stored(passage_id: str, score: float, raw: str) -> FoundPassage:
    """A hit as a record."""
    heading, _, text = str(json.loads(raw)["contents"]).partition("\n")
    return FoundPassage(passage_id, heading, text, score)
