"""Mathematical reasoning (section 4.2.2): worded problems whose answer is a number.

ASDiv, SVAMP and MAWPS; also GSM8K.

ASDiv is XML and is read by a parser that expands no entities. Problems whose answer is not exactly one number
(with its unit in brackets, in ASDiv) are left out: yes or no, a ratio, two unknowns. GSM8K is not among the
paper's; its problems take several steps.

MAWPS has two forms. The original files (AddSub, MultiArith, ...) have `sQuestion` and a list `lSolutions`;
their server is gone. MWPToolkit's files have `original_text` and `ans`. A problem that several files hold is
asked once.
"""

import re
from collections.abc import Iterator, Sequence

from toolformer_ops.errors import WrongFormatError
from toolformer_ops.evaluation.answers import Metric
from toolformer_ops.evaluation.data_files import DataFile, Record, json_document, json_lines, records
from toolformer_ops.evaluation.suites.base import MATH_WORDS, DataSet, Item, LeftOut, Suite

_ONE_NUMBER = re.compile(r"\s*(-?\$?[\d,]*\.?\d+(?:/\d+)?)\s*%?\s*(?:\([^()]*\))?\s*")
_GSM8K_ANSWER = re.compile(r"####\s*(\S.*?)\s*\Z")


def one_number(answer: str) -> str | None:
    """The number that is the whole answer, as written; None if the answer is another."""
    match = _ONE_NUMBER.fullmatch(answer)
    return match.group(1) if match else None


def read_asdiv(files: Sequence[DataFile]) -> Iterator[Item | LeftOut]:
    """XML with `Problem` elements."""
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
            yield _problem(body, question, answer)


def read_svamp(files: Sequence[DataFile]) -> Iterator[Item | LeftOut]:
    """A JSON list of problems."""
    for file in files:
        for record in records(json_document(file)):
            yield _problem(record.text("Body"), record.text("Question"), _number(record, "Answer"))


def read_mawps(files: Sequence[DataFile]) -> Iterator[Item | LeftOut]:
    """JSON lists of problems in either form."""
    earlier_questions: set[str] = set()
    for file in files:
        for record in records(json_document(file)):
            if "original_text" in record.values:
                question, answer = record.text("original_text"), _number(record, "ans")
            else:
                solutions = record.values.get("lSolutions")
                if not isinstance(solutions, list):
                    raise WrongFormatError(
                        f"neither a list lSolutions nor original_text in {record.where} of {file.name}"
                    )
                question, answer = record.text("sQuestion"), " and ".join(map(str, solutions))
            if question in earlier_questions:
                yield LeftOut("repeated_problem")
                continue
            earlier_questions.add(question)
            yield _problem("", question, answer, part=file.name)


def read_gsm8k(files: Sequence[DataFile]) -> Iterator[Item | LeftOut]:
    """JSON Lines whose answers end in `#### number`."""
    for record in json_lines(*files):
        answer = _GSM8K_ANSWER.search(record.text("answer"))
        if answer is None:
            raise WrongFormatError(f"in {record.where} an answer without '#### number'")
        yield _problem("", record.text("question"), answer.group(1))


def _number(record: Record, field: str) -> str:
    value = record.values.get(field)
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise WrongFormatError(f"in {record.where} no number as field {field!r}")
    return str(value)


def _problem(context: str, question: str, answer: str, part: str = "") -> Item | LeftOut:
    number = one_number(answer)
    if number is None:
        return LeftOut("answer_not_one_number")
    return Item({"context": context.strip(), "question": question.strip()}, (number,), part=part)


SUITE = Suite(
    name="math",
    data_sets=(
        DataSet(
            name="asdiv",
            files=("ASDiv.xml",),
            prompt="word_problem",
            format="XML with Problem elements that hold Body, Question and Answer, such as 9 (apples)",
            source="https://github.com/chaochun/nlu-asdiv-dataset, dataset/ASDiv.xml (CC BY-NC 4.0)",
            read=read_asdiv,
        ),
        DataSet(
            name="svamp",
            files=("SVAMP.json",),
            prompt="word_problem",
            format="a JSON list with Body, Question and Answer (a number)",
            source="https://github.com/arkilpatel/SVAMP, SVAMP.json (MIT)",
            read=read_svamp,
        ),
        DataSet(
            name="mawps",
            files=("*.json",),
            prompt="word_problem",
            format="JSON lists with sQuestion and lSolutions, or with original_text and ans",
            source="https://github.com/LYH-YF/MWPToolkit, dataset/mawps-single/mawps_source.json or dataset/mawps",
            read=read_mawps,
        ),
        DataSet(
            name="gsm8k",
            files=("test.jsonl", "train.jsonl"),
            prompt="word_problem",
            format="JSON Lines with question and answer, which ends in '#### number'",
            source="https://github.com/openai/grade-school-math, grade_school_math/data (MIT)",
            read=read_gsm8k,
            first_only=True,
        ),
    ),
    metric=Metric(
        "first number predicted, after = where an equation is written", words=MATH_WORDS, number=True
    ),
    answer_tokens=64,
    call_tokens=64,
)
