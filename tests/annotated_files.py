"""Files annotated in one process, for tests."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from toolformer_ops.config import Settings
from toolformer_ops.on_a_file.annotate.annotation import Annotation, Row
from toolformer_ops.on_a_file.annotate.partial_file import PartialFile


def annotate_file(
    settings: Settings, corpus: Path | str, tool: str, model: str, values: dict[str, Any]
) -> Iterator[Row]:
    """Every call with a result of a file's documents."""
    annotation = Annotation.of_corpus(settings, corpus, [tool], model, None, values)
    yield from annotation.rows(PartialFile(None, {}))
