"""Which texts of a corpus nearly repeat another one: a look before a corpus is ingested with `near_duplicates`.

`check` counts them in the first texts.
Reads the files alone, and stores nothing. Decides as the ingestion does (step 6 of `compare` in
sql/queries/ingestion.sql): a text is left out if it shares enough with one of the hundred texts with the
least ids that have a band of its sketch in common with it, and a lesser id.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import numpy as np
import numpy.typing as npt

from toolformer_ops.config import Settings
from toolformer_ops.on_a_file.annotate.annotator import read_corpus
from toolformer_ops.records import Document
from toolformer_ops.storage.corpora.record_rules import Record
from toolformer_ops.storage.corpora.text_sketches import estimated_share, sketch_of

BEGINNING_CHARACTERS = 100
MATES_A_BAND = 100


@dataclass(frozen=True)
class SketchedText:
    """A text of the corpus, of which only the beginning is held in memory."""

    document_id: UUID
    name: str
    """The id of its first record, or file and line."""
    beginning: str
    numbers: npt.NDArray[np.int32]
    bands: tuple[int, ...]


@dataclass(frozen=True)
class NearDuplicate:
    """A text that is left out, and the text that stays instead of it."""

    repeats: SketchedText
    original: SketchedText
    share: float
    """What the two share, 0 to 1, as their sketches estimate it."""


def sketched_texts(settings: Settings, corpus: Path | str) -> list[SketchedText]:
    """The different texts of a corpus in the order of their ids, each with its sketch: about 2 kB a text.

    Raises:
        CorpusError: no record can be read.
    """
    texts: dict[UUID, SketchedText] = {}
    for name, record in read_corpus(settings, corpus):
        if isinstance(record, Record) and record.document_id not in texts:
            texts[record.document_id] = sketched_text(name, record.document())
    return [texts[document_id] for document_id in sorted(texts)]


def sketched_text(name: str, document: Document) -> SketchedText:
    """A text with its sketch."""
    sketch = sketch_of(document.text)
    return SketchedText(
        document_id=document.document_id,
        name=name,
        beginning=document.text[:BEGINNING_CHARACTERS],
        numbers=np.array(sketch.numbers, np.int32),
        bands=tuple({*sketch.bands}),
    )


def near_duplicates(texts: list[SketchedText], share: float) -> Iterator[NearDuplicate]:
    """The texts that are left out if those are, which share so much with one of a lesser id.

    Args:
        texts: in the order of their ids.
        share: 0 to 1.
    """
    least_of_band: defaultdict[int, list[int]] = defaultdict(list)
    for place, text in enumerate(texts):
        mates = set()
        for band in text.bands:
            mates.update(least_of_band[band])
        for mate in sorted(mates):
            estimate = estimated_share(text.numbers, texts[mate].numbers)
            if estimate >= share:
                yield NearDuplicate(repeats=text, original=texts[mate], share=estimate)
                break
        for band in text.bands:
            if len(least_of_band[band]) < MATES_A_BAND:
                least_of_band[band].append(place)
