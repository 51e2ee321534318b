"""MLQA (section 4.2.4): a paragraph in English, a question in another language, an answer in English.

The data set is of Lewis et al., 2019. The test files are of SQuAD's format. One subset for each language of
the paper's Table 6.
"""

from collections.abc import Iterator, Sequence

from toolformer_ops.evaluation.answers import Metric
from toolformer_ops.evaluation.data_files import DataFile, listed
from toolformer_ops.evaluation.suites.base import DataSet, Item, LeftOut, Suite

LANGUAGES = ("es", "de", "hi", "vi", "zh", "ar")


def read_mlqa(files: Sequence[DataFile]) -> Iterator[Item | LeftOut]:
    """Questions with their paragraph."""
    for article in listed(files, "data"):
        for paragraph in article.records("paragraphs"):
            context = paragraph.text("context").strip()
            for question in paragraph.records("qas"):
                answers = tuple(dict.fromkeys(answer.text("text") for answer in question.records("answers")))
                slots = {"context": context, "question": question.text("question").strip()}
                yield Item(slots, answers) if answers else LeftOut("no_answer")


SUITE = Suite(
    name="mlqa",
    data_sets=tuple(
        DataSet(
            name=language,
            folders=("mlqa",),
            files=(f"test-context-en-question-{language}.json", f"dev-context-en-question-{language}.json"),
            prompt="question_on_paragraph",
            format="JSON as SQuAD's: data, paragraphs, context, qas, question, answers, text",
            source="https://dl.fbaipublicfiles.com/MLQA/MLQA_V1.zip (CC BY-SA 3.0, github.com/facebookresearch/MLQA)",
            read=read_mlqa,
            first_only=True,
        )
        for language in LANGUAGES
    ),
    metric=Metric("answer among the first 10 words", words=10),
    answer_tokens=24,
    call_tokens=160,
)
