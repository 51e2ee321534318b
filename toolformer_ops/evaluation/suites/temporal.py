"""Temporal knowledge (section 4.2.5): TempLAMA (Dhingra et al., 2022) and DATESET (appendix D).

TempLAMA asks for facts of a year, whose middle (July 1) is the current date that the Calendar tells; only statements with the blank
at their end are asked, as in LAMA. DATESET is read from its file (`toolformer-ops dateset`), or made with seed 0.
"""

import datetime
from collections.abc import Iterator, Sequence

from toolformer_ops.errors import WrongFormatError
from toolformer_ops.evaluation.data_files import DataFile, Row, json_lines
from toolformer_ops.evaluation.dateset import dateset_lines
from toolformer_ops.evaluation.suites.base import DataSet, Item, Suite
from toolformer_ops.evaluation.suites.lama import AMONG_FIRST_FIVE, text_before_mask
from toolformer_ops.evaluation.zero_shot import with_question_mark

BLANK = "_X_"


def _templama(files: Sequence[DataFile]) -> Iterator[Item]:
    for file in files:
        for row in json_lines(file):
            before = text_before_mask(row.text("query"), BLANK)
            date = _date(row, f"{row.text('date').strip()}-07-01")
            answers = tuple(name for answer in row.rows("answer") for name in _names(answer))
            if before is not None and answers:
                yield Item({"text": before}, answers, date)


def _names(answer: Row) -> tuple[str, ...]:
    """One name, or the names of the version with aliases."""
    return answer.texts("name") if isinstance(answer.values.get("name"), list) else (answer.text("name"),)


def _dateset(files: Sequence[DataFile]) -> Iterator[Item]:
    for file in files:
        for row in json_lines(file):
            slots = {"question": with_question_mark(row.text("question"))}
            yield Item(slots, row.texts("answer"), _date(row, row.text("date")))


def _date(row: Row, text: str) -> datetime.date:
    try:
        return datetime.date.fromisoformat(text)
    except ValueError as error:
        raise WrongFormatError(f"in {row.where} no date: {row.values.get('date')!r}") from error


SUITE = Suite(
    name="temporal",
    data_sets=(
        DataSet(
            "templama", ("templama",), ("test.json", "test.jsonl", "test_with_aliases.json"), "complete_text",
            "JSON Lines with query (holds _X_), answer (a list with name) and date (a year)",
            "https://storage.googleapis.com/gresearch/templama/test.json (github.com/google-research/language, templama)",
            _templama, first_only=True,
        ),
        DataSet(
            "dateset", ("dateset",), ("dateset.jsonl",), "question", "JSON Lines with question, answer (a list) and date",
            "`toolformer-ops dateset --out dateset.jsonl`", _dateset, generate=dateset_lines,
        ),
    ),
    metric=AMONG_FIRST_FIVE,
    answer_tokens=24,
    call_tokens=64,
)  # fmt: skip
