"""Temporal knowledge (section 4.2.5): TempLAMA (Dhingra et al., 2022) and DATESET (appendix D).

TempLAMA asks for facts of a year, whose middle (July 1) is the current date that the Calendar tells; only
statements with the blank at their end are asked, as in LAMA. DATESET is read from its file (`toolformer-ops
dateset`), or made with seed 0.
"""

import datetime
from collections.abc import Iterator, Sequence

from toolformer_ops.errors import WrongFormatError
from toolformer_ops.evaluation.data_files import DataFile, Record, json_lines
from toolformer_ops.evaluation.dateset import dateset_lines
from toolformer_ops.evaluation.suites.base import DataSet, Item, LeftOut, Suite, with_question_mark
from toolformer_ops.evaluation.suites.lama import AMONG_FIRST_FIVE, text_before_mask

BLANK = "_X_"


def read_templama(files: Sequence[DataFile]) -> Iterator[Item | LeftOut]:
    """Statements with a blank, of a year.

    An answer is one name, or a list of names in the version with aliases.
    """
    for record in json_lines(*files):
        before = text_before_mask(record.text("query"), BLANK)
        date = _date(record, f"{record.text('date').strip()}-07-01")
        answers: list[str] = []
        for answer in record.records("answer"):
            several = isinstance(answer.values.get("name"), list)
            answers += answer.texts("name") if several else (answer.text("name"),)
        if before is None:
            yield LeftOut("mask_not_last")
        elif not answers:
            yield LeftOut("no_answer")
        else:
            yield Item({"text": before}, tuple(answers), date, part=str(record.values.get("relation", "")))


def read_dateset(files: Sequence[DataFile]) -> Iterator[Item]:
    """Questions about dates."""
    for record in json_lines(*files):
        slots = {"question": with_question_mark(record.text("question"))}
        template = str(record.values.get("template", ""))
        yield Item(slots, record.texts("answer"), _date(record, record.text("date")), part=template)


def _date(record: Record, text: str) -> datetime.date:
    try:
        return datetime.date.fromisoformat(text)
    except ValueError as error:
        raise WrongFormatError(f"in {record.where} no date: {record.values.get('date')!r}") from error


SUITE = Suite(
    name="temporal",
    data_sets=(
        DataSet(
            name="templama",
            files=("test.json", "test.jsonl", "test_with_aliases.json"),
            prompt="complete_text",
            format="JSON Lines with query (holds _X_), answer (a list with name) and date (a year)",
            source="https://storage.googleapis.com/gresearch/templama/test.json (github.com/google-research/language, templama)",
            read=read_templama,
            first_only=True,
        ),
        DataSet(
            name="dateset",
            files=("dateset.jsonl",),
            prompt="question",
            format="JSON Lines with question, answer (a list) and date",
            source="made with seed 0 if the file is not there",
            read=read_dateset,
            generate=dateset_lines,
        ),
    ),
    metric=AMONG_FIRST_FIVE,
    answer_tokens=24,
    call_tokens=64,
)
