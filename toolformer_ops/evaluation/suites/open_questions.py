"""Question answering without context (section 4.2.3).

The data sets are WebQuestions, Natural Questions (open) and TriviaQA, whose aliases are accepted.
WebQuestions and Natural Questions are read in the JSON Lines form with `question` and a list `answer`,
TriviaQA as published.
"""

from collections.abc import Iterator, Sequence

from toolformer_ops.errors import WrongFormatError
from toolformer_ops.evaluation.answers import Metric
from toolformer_ops.evaluation.data_files import DataFile, Record, json_lines, listed
from toolformer_ops.evaluation.suites.base import DataSet, Item, Suite, with_question_mark


def read_question_lines(files: Sequence[DataFile]) -> Iterator[Item]:
    """A question and a list of answers a line."""
    for record in json_lines(*files):
        yield Item({"question": with_question_mark(record.text("question"))}, record.texts("answer"))


def read_triviaqa(files: Sequence[DataFile]) -> Iterator[Item]:
    """TriviaQA's questions, with the aliases of their answers."""
    for record in listed(files, "Data"):
        answer = record.values.get("Answer")
        if not isinstance(answer, dict):
            raise WrongFormatError(f"no object Answer in {record.where} (a test file has none)")
        value = Record(f"Answer of {record.where}", answer).text("Value")
        aliases = [alias for alias in answer.get("Aliases", []) if isinstance(alias, str) and alias.strip()]
        slots = {"question": with_question_mark(record.text("Question"))}
        yield Item(slots, tuple(dict.fromkeys((value, *aliases))))


SUITE = Suite(
    name="qa",
    data_sets=(
        DataSet(
            name="webquestions",
            files=("webq-test.jsonl", "webq-dev.jsonl", "webq-train.jsonl"),
            prompt="question",
            format="JSON Lines with question and a list answer",
            source="https://nlp.stanford.edu/software/sempre (CC BY 4.0); as JSON Lines in the data of github.com/wyu97/GenRead",
            read=read_question_lines,
            first_only=True,
        ),
        DataSet(
            name="nq_open",
            files=(
                "NQ-open.dev.jsonl",
                "NQ-open.efficientqa.dev.1.1.jsonl",
                "NQ-open.efficientqa.test.1.1.jsonl",
            ),
            prompt="question",
            format="JSON Lines with question and a list answer",
            source="https://github.com/google-research-datasets/natural-questions, nq_open (CC BY-SA 3.0)",
            read=read_question_lines,
            first_only=True,
        ),
        DataSet(
            name="triviaqa",
            files=(
                "unfiltered-web-dev.json",
                "wikipedia-dev.json",
                "web-dev.json",
                "verified-wikipedia-dev.json",
            ),
            prompt="question",
            format="a JSON object with a list Data of Question and Answer (Value, Aliases)",
            source="https://nlp.cs.washington.edu/triviaqa (triviaqa-unfiltered.tar.gz or triviaqa-rc.tar.gz)",
            read=read_triviaqa,
            first_only=True,
        ),
    ),
    metric=Metric("answer among the first 20 words", words=20),
    answer_tokens=40,
    call_tokens=64,
    barred_tools=("QA",),
)
