"""Which of some texts nearly repeat another one: `check` counts them in the first texts of a corpus.

Decides as the ingestion does (step 6 of `compare` in
sql/queries/ingestion.sql): a text is left out if it shares enough with one of the hundred texts with the
least ids that have a band of its sketch in common with it, and a lesser id.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

import numpy as np
import numpy.typing as npt

from toolformer_ops.records import Document
from toolformer_ops.storage.corpora.text_sketches import estimated_share, sketch_of

MATES_A_BAND = 100


@dataclass(frozen=True)
class SketchedText:
    """A text of the corpus, known by its sketch."""

    document_id: UUID
    name: str
    """The id of its first record, or file and line."""
    numbers: npt.NDArray[np.int32]
    bands: tuple[int, ...]


@dataclass(frozen=True)
class NearDuplicate:
    """A text that is left out, and the text that stays instead of it."""

    repeats: SketchedText
    original: SketchedText
    share: float
    """What the two share, 0 to 1, as their sketches estimate it."""


def sketched_text(name: str, document: Document) -> SketchedText:
    """A text with its sketch."""
    sketch = sketch_of(document.text)
    return SketchedText(
        document_id=document.document_id,
        name=name,
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
