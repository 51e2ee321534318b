"""Question answering without context (section 4.2.3): WebQuestions, Natural Questions (open) and TriviaQA, aliases accepted.

WebQuestions and Natural Questions are read in the JSON Lines form with `question` and a list `answer`, TriviaQA in its own JSON.
"""

from collections.abc import Iterator, Sequence

from toolformer_ops.errors import WrongFormatError
from toolformer_ops.evaluation.data_files import DataFile, Row, json_document, json_lines, rows
from toolformer_ops.evaluation.suites.base import DataSet, Item, Metric, Suite
from toolformer_ops.evaluation.zero_shot import with_question_mark


def _question_lines(files: Sequence[DataFile]) -> Iterator[Item]:
    for file in files:
        for row in json_lines(file):
            yield Item({"question": with_question_mark(row.text("question"))}, row.texts("answer"))


def _triviaqa(files: Sequence[DataFile]) -> Iterator[Item]:
    for file in files:
        document = json_document(file)
        if not isinstance(document, dict):
            raise WrongFormatError("no JSON object with a list Data")
        for row in rows(document.get("Data")):
            answer = row.values.get("Answer")
            if not isinstance(answer, dict):
                raise WrongFormatError(f"no object Answer in {row.where} (a test file has none)")
            named = Row(f"Answer of {row.where}", answer)
            aliases = [alias for alias in answer.get("Aliases", []) if isinstance(alias, str) and alias.strip()]
            answers = tuple(dict.fromkeys((named.text("Value"), *aliases)))
            yield Item({"question": with_question_mark(row.text("Question"))}, answers)


SUITE = Suite(
    name="qa",
    data_sets=(
        DataSet(
            "webquestions", ("webquestions",), ("webq-test.jsonl", "webq-dev.jsonl", "webq-train.jsonl"), "question",
            "JSON Lines with question and a list answer",
            "https://nlp.stanford.edu/software/sempre (CC BY 4.0); as JSON Lines in the data of github.com/wyu97/GenRead",
            _question_lines, first_only=True,
        ),
        DataSet(
            "nq_open", ("nq_open",),
            ("NQ-open.dev.jsonl", "NQ-open.efficientqa.dev.1.1.jsonl", "NQ-open.efficientqa.test.1.1.jsonl"), "question",
            "JSON Lines with question and a list answer",
            "https://github.com/google-research-datasets/natural-questions, nq_open (CC BY-SA 3.0)", _question_lines,
            first_only=True,
        ),
        DataSet(
            "triviaqa", ("triviaqa",),
            ("unfiltered-web-dev.json", "wikipedia-dev.json", "web-dev.json", "verified-wikipedia-dev.json"), "question",
            "a JSON object with a list Data of Question and Answer (Value, Aliases)",
            "https://nlp.cs.washington.edu/triviaqa (triviaqa-unfiltered.tar.gz or triviaqa-rc.tar.gz)", _triviaqa,
            first_only=True,
        ),
    ),
    metric=Metric("answer among the first 20 words", words=20),
    answer_tokens=40,
    call_tokens=64,
    barred_tools=("QA",),
)  # fmt: skip
