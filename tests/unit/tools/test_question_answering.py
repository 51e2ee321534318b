"""QA finds passages and reads an answer out of them."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.unit.tools.fake_passages import FakeIndex
from tests.unit.tools.test_wiki_search import settings_with_index
from toolformer_ops.errors import ModelError, ToolError
from toolformer_ops.tools.base import ToolOutput
from toolformer_ops.tools.question_answering import TOOL, BestSentenceReader, QuestionAnsweringRunner
from toolformer_ops.tools.retrieval.bm25_index import FoundPassage


def read(question: str, *passages: tuple[str, str]) -> tuple[str, ...]:
    """What the best-sentence reader answers when all passages score alike."""
    found = [FoundPassage(str(number), heading, text, 1.0) for number, (heading, text) in enumerate(passages)]
    return BestSentenceReader(FakeIndex()).read([question], [found])[0]


class EchoReader:
    """Answers each question with how many passages it was given; nothing to the question `rod`."""

    passages = 2

    def read(self, questions: Sequence[str], passages: Sequence[Sequence[FoundPassage]]) -> list[tuple[str, ...]]:
        return [
            () if question == "rod" else (f"{question} from {len(found)}",)
            for question, found in zip(questions, passages, strict=True)
        ]


LONG = "Coke " + "word other " * 60 + "end."


@pytest.mark.parametrize(
    ("question", "passages", "answers"),
    [
        pytest.param(
            "Who manufactures Coke?",
            [("Drinks", "Who manufactures Coke? The Owens company makes Coke.")],
            ("The Owens company makes Coke.",),
            id="no sentence that only repeats the question",
        ),
        pytest.param(
            "Where is the Eiffel Tower?",
            [("Blackpool Tower", "It is a tower beside the sea."), ("Eiffel Tower", "It is an iron thing of Paris.")],
            ("It is an iron thing of Paris.", "It is a tower beside the sea."),
            id="a heading lends its words to sentences that say it",
        ),
        pytest.param(
            "Coke",
            [("A", "Coke tastes sweet."), ("B", "Coke costs little."), ("C", "Coke tastes sweet.")],
            ("Coke tastes sweet.", "Coke costs little."),
            id="equal sentences in the passages' order, and once",
        ),
        pytest.param("Coke", [("Drinks", LONG)], (" ".join(LONG.split()[:64]),), id="cut to the budget"),
    ],
)
def test_the_best_sentences_are_the_answers(
    question: str, passages: list[tuple[str, str]], answers: tuple[str, ...]
) -> None:
    assert read(question, *passages) == answers


@pytest.mark.parametrize(
    ("question", "start", "fitting", "other"),
    [
        ("When was Coke sold first?", "Coke was sold first", "during May 1886.", "as a tonic syrup."),
        ("How many bottles of Coke exist?", "Bottles of Coke exist", ": nine types.", "for every taste."),
        ("Who invented Coke?", "Coke was invented by the", "chemist Pemberton.", "thirsty chemists."),
    ],
)
def test_of_two_equal_matches_the_kind_that_is_asked_for_wins(
    question: str, start: str, fitting: str, other: str
) -> None:
    fitting, other = f"{start} {fitting}", f"{start} {other}"
    assert read(question, ("Coke", f"{other} {fitting}"))[0] == fitting
    assert read(question, ("Coke", f"{fitting} {other}"))[0] == fitting


def test_each_question_gets_its_own_answer_or_reason() -> None:
    runner = QuestionAnsweringRunner(FakeIndex(("Reel", "A reel."), ("Rod", "A rod and reel.")), EchoReader())
    assert runner.run(["reel", "the", "golf", "rod", "a rod"]) == [
        ToolOutput(("reel from 2",)),
        ToolOutput.none("empty_query"),
        ToolOutput.none("no_match"),
        ToolOutput.none("no_answer"),
        ToolOutput(("a rod from 1",)),
    ]


def test_the_version_names_index_and_reader(tmp_path: Path) -> None:
    settings = settings_with_index(tmp_path, "1" * 64)
    version = TOOL.version(settings, "model@1")
    assert "1" * 16 in version
    assert "best_sentence" in version
    assert version == TOOL.version(settings, "model@2")
    readers = [settings.model_copy(update={"qa_reader": reader}) for reader in ("causal", "span")]
    asked = [TOOL.version(reader, model) for reader in readers for model in ("model@1", "model@2")]
    assert len({version, *asked}) == 5


def test_a_model_reader_without_its_checkpoint_fails_before_anything_runs(tmp_path: Path) -> None:
    reader = settings_with_index(tmp_path).model_copy(update={"qa_reader": "sequence_to_sequence"})
    with pytest.raises(ToolError, match="TOOLFORMER_QA_READER_MODEL"):
        TOOL.version(reader, "model")
    with pytest.raises(ModelError, match="/no/such/folder"):
        TOOL.version(reader.model_copy(update={"qa_reader_model": "/no/such/folder"}), "model")
