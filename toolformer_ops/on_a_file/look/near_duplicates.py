"""Which of some texts nearly repeat another one: `check` counts them in the first texts of a corpus.

Decides as the ingestion does (step 6 of `compare` in
sql/queries/ingestion.sql): a text is left out if it shares enough with one of the hundred texts with the
least ids that have a band of its sketch in common with it, and a lesser id.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from toolformer_ops.records import Document
from toolformer_ops.storage.corpora.text_sketches import estimated_share, sketch_of

MATES_A_BAND = 100
Named = tuple[str, Document]
"""A document with the name of its record."""


def near_duplicates(texts: Iterable[Named], share: float) -> Iterator[tuple[Named, Named]]:
    """The texts that are left out, each with the one of a lesser id that it shares so much with.

    `share` is from 0 to 1.
    """
    in_order = sorted(texts, key=lambda named: named[1].document_id)
    numbers: list[npt.NDArray[np.int32]] = []
    least_of_band: defaultdict[int, list[int]] = defaultdict(list)
    for place, (_, document) in enumerate(in_order):
        sketch = sketch_of(document.text)
        numbers.append(np.array(sketch.numbers, np.int32))
        mates = set[int]()
        for band in sketch.bands:
            mates.update(least_of_band[band])
        for mate in sorted(mates):
            if estimated_share(numbers[place], numbers[mate]) >= share:
                yield in_order[place], in_order[mate]
                break
        for band in set(sketch.bands):
            if len(least_of_band[band]) < MATES_A_BAND:
                least_of_band[band].append(place)
