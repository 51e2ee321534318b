"""Mathematical reasoning (section 4.2.2): worded problems whose answer is a number. ASDiv, SVAMP and MAWPS; GSM8K beside them.

ASDiv is XML and is read by a parser that expands no entities. Problems whose answer is not exactly one number (with its unit in
brackets, in ASDiv) are left out: yes or no, a ratio, two unknowns. GSM8K is not among the paper's; its problems take several steps.
"""

import re
from collections.abc import Iterator, Sequence

from toolformer_ops.errors import WrongFormatError
from toolformer_ops.evaluation.data_files import DataFile, Row, json_document, json_lines, rows
from toolformer_ops.evaluation.suites.base import MATH_WORDS, DataSet, Item, Metric, Suite

_ONE_NUMBER = re.compile(r"\s*(-?\$?[\d,]*\.?\d+(?:/\d+)?)\s*%?\s*(?:\([^()]*\))?\s*")
_GSM8K_ANSWER = re.compile(r"####\s*(\S.*?)\s*\Z")


def one_number(answer: str) -> str | None:
    """The number that is the whole answer, as written; None where the answer is another."""
    match = _ONE_NUMBER.fullmatch(answer)
    return match.group(1) if match else None


def _asdiv(files: Sequence[DataFile]) -> Iterator[Item]:
    from defusedxml.common import DefusedXmlException
    from defusedxml.ElementTree import ParseError, fromstring

    for file in files:
        try:
            root = fromstring(file.content)
        except (ParseError, DefusedXmlException, ValueError) as error:
            raise WrongFormatError(f"no XML that may be read: {error}") from error
        for problem in root.iter("Problem"):
            body, question, answer = (problem.findtext(name) or "" for name in ("Body", "Question", "Answer"))
            if not question.strip() or not answer.strip():
                raise WrongFormatError(f"a Problem without Question or Answer (ID {problem.get('ID')!r})")
            yield from _problem(body, question, one_number(answer))


def _svamp(files: Sequence[DataFile]) -> Iterator[Item]:
    for file in files:
        for row in rows(json_document(file)):
            yield from _problem(row.text("Body"), row.text("Question"), _number(row, "Answer"))


def _mawps(files: Sequence[DataFile]) -> Iterator[Item]:
    for file in files:
        for row in rows(json_document(file)):
            solutions = row.values.get("lSolutions")
            if not isinstance(solutions, list):
                raise WrongFormatError(f"no list lSolutions in {row.where} of {file.name}")
            if len(solutions) == 1:
                yield from _problem("", row.text("sQuestion"), one_number(str(solutions[0])))


def _gsm8k(files: Sequence[DataFile]) -> Iterator[Item]:
    for file in files:
        for row in json_lines(file):
            answer = _GSM8K_ANSWER.search(row.text("answer"))
            if answer is None:
                raise WrongFormatError(f"in {row.where} an answer without '#### number'")
            yield from _problem("", row.text("question"), one_number(answer.group(1)))


def _number(row: Row, field: str) -> str | None:
    value = row.values.get(field)
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise WrongFormatError(f"in {row.where} no number as field {field!r}")
    return one_number(str(value))


def _problem(context: str, question: str, answer: str | None) -> Iterator[Item]:
    if answer is not None:
        yield Item({"context": context.strip(), "question": question.strip()}, (answer,))


SUITE = Suite(
    name="math",
    data_sets=(
        DataSet(
            "asdiv", ("asdiv",), ("ASDiv.xml",), "word_problem",
            "XML with Problem elements that hold Body, Question and Answer, such as 9 (apples)",
            "https://github.com/chaochun/nlu-asdiv-dataset, dataset/ASDiv.xml (CC BY-NC 4.0)", _asdiv,
        ),
        DataSet(
            "svamp", ("svamp",), ("SVAMP.json",), "word_problem", "a JSON list with Body, Question and Answer (a number)",
            "https://github.com/arkilpatel/SVAMP, SVAMP.json (MIT)", _svamp,
        ),
        DataSet(
            "mawps", ("mawps",), ("*.json",), "word_problem", "JSON lists with sQuestion and lSolutions",
            "https://github.com/sroy9/mawps (its data sets, such as AddSub.json, SingleOp.json, MultiArith.json)", _mawps,
        ),
        DataSet(
            "gsm8k", ("gsm8k",), ("test.jsonl", "train.jsonl"), "word_problem",
            "JSON Lines with question and answer, which ends in '#### number'",
            "https://github.com/openai/grade-school-math, grade_school_math/data (MIT)", _gsm8k, first_only=True,
        ),
    ),
    metric=Metric("first number predicted, after = where an equation is written", words=MATH_WORDS, number=True),
    answer_tokens=64,
    call_tokens=64,
)  # fmt: skip
