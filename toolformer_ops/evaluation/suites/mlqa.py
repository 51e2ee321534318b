"""MLQA (section 4.2.4): a paragraph in English, a question in another language, an answer in English (Lewis et al., 2019).

The test files are of SQuAD's format. One subset for each language of the paper's Table 6.
"""

from collections.abc import Iterator, Sequence

from toolformer_ops.errors import WrongFormatError
from toolformer_ops.evaluation.data_files import DataFile, Row, json_document
from toolformer_ops.evaluation.suites.base import DataSet, Item, Metric, Suite

LANGUAGES = ("es", "de", "hi", "vi", "zh", "ar")


def _squad(files: Sequence[DataFile]) -> Iterator[Item]:
    for file in files:
        document = json_document(file)
        if not isinstance(document, dict):
            raise WrongFormatError("no JSON object with a list data")
        for article in Row("the file", document).rows("data"):
            for paragraph in article.rows("paragraphs"):
                context = paragraph.text("context").strip()
                for question in paragraph.rows("qas"):
                    answers = tuple(dict.fromkeys(answer.text("text") for answer in question.rows("answers")))
                    if answers:
                        yield Item({"context": context, "question": question.text("question").strip()}, answers)


def _data_set(language: str) -> DataSet:
    return DataSet(
        language,
        ("mlqa",),
        (f"test-context-en-question-{language}.json", f"dev-context-en-question-{language}.json"),
        "question_on_paragraph",
        "JSON as SQuAD's: data, paragraphs, context, qas, question, answers, text",
        "https://dl.fbaipublicfiles.com/MLQA/MLQA_V1.zip (CC BY-SA 3.0, github.com/facebookresearch/MLQA)",
        _squad,
        first_only=True,
    )


SUITE = Suite(
    name="mlqa",
    data_sets=tuple(map(_data_set, LANGUAGES)),
    metric=Metric("answer among the first 10 words", words=10),
    answer_tokens=24,
    call_tokens=160,
)
