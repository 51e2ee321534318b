"""Files annotated in one process, for tests."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from toolformer_ops.config import Settings
from toolformer_ops.on_a_file.annotate.annotation import Annotation
from toolformer_ops.on_a_file.annotate.text_annotator import Row
from toolformer_ops.runs.choices import RunChoices


def annotate_file(
    settings: Settings, corpus: Path | str, tool: str, model: str, values: dict[str, Any]
) -> Iterator[Row]:
    """Every call with a result of a file's documents."""
    choices = RunChoices.parse({**values, "tools": [tool], "corpus": str(corpus), "model": model})
    annotation = Annotation.of(settings, choices)
    yield from annotation.rows()
