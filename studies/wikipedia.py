"""The demo's Wikipedia in a study: what is searched and asked for, and the plain text in which no arm is trained.

    plain_texts         32 summaries, on which a model is measured (Toolformer, section 4.3)
    searched_records    all other articles: the index of WikiSearch, and what its sentences state

A result of WikiSearch is a passage of its index and stands in the texts of an arm, so what is measured is not in the index.
"""

import functools
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from toolformer_ops.local.demo.corpus import WIKIPEDIA_DOCUMENTS, wikipedia_documents, write_kilt_records


@functools.cache
def plain_texts() -> list[str]:
    """The summaries on which a model is measured."""
    with TemporaryDirectory() as folder:
        records = Path(folder) / "kilt.jsonl"
        write_kilt_records(records)
        return [document.text for document in wikipedia_documents(records, WIKIPEDIA_DOCUMENTS)]


@functools.cache
def searched_records() -> list[dict[str, Any]]:
    """The KILT records of all articles but those of `plain_texts`, in the order of the wheel."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "kilt.jsonl"
        write_kilt_records(file)
        records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    plain = set(plain_texts())
    return [record for record in records if plain.isdisjoint(part.strip() for part in record["text"])]


def write_searched_records(file: Path) -> None:
    """Write the records that are searched as JSON Lines."""
    file.write_text("".join(json.dumps(record) + "\n" for record in searched_records()), encoding="utf-8")
