"""QA finds passages and reads an answer out of them."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.unit.tools.fake_passages import FakeIndex
from tests.unit.tools.test_wiki_search import settings_with_index
from toolformer_ops.config import Settings
from toolformer_ops.errors import ModelError, SearchIndexError, ToolError
from toolformer_ops.records import Document
from toolformer_ops.retrieval.bm25_index import FoundPassage
from toolformer_ops.tools.base import ToolOutput
from toolformer_ops.tools.question_answering import TOOL, BestSentenceReader, QuestionAnsweringRunner


def read(question: str, *passages: tuple[str, str]) -> tuple[str, ...]:
    """What the best-sentence reader answers when all passages score alike."""
    found = [FoundPassage(str(number), heading, text, 1.0) for number, (heading, text) in enumerate(passages)]
    return BestSentenceReader(FakeIndex()).read([question], [found])[0]


class EchoReader:
    """Answers each question with how many passages it was given."""

    passages = 2

    def read(self, questions: Sequence[str], passages: Sequence[Sequence[FoundPassage]]) -> list[tuple[str, ...]]:
        return [(f"{question} from {len(found)}",) for question, found in zip(questions, passages, strict=True)]


class SilentReader(EchoReader):
    def read(self, questions: Sequence[str], passages: Sequence[Sequence[FoundPassage]]) -> list[tuple[str, ...]]:
        return [() for _ in questions]


def test_the_sentence_with_most_of_the_questions_words_comes_first() -> None:
    answers = read(
        "Who manufactures Coke bottles?",
        ("Coke", "Coke is a cold drink. The Owens company manufactures Coke bottles. It is sold in tins."),
    )
    assert answers[0] == "The Owens company manufactures Coke bottles."


def test_a_sentence_that_only_repeats_the_question_is_left_out() -> None:
    answers = read("Who manufactures Coke?", ("Drinks", "Who manufactures Coke? The Owens company makes Coke."))
    assert answers == ("The Owens company makes Coke.",)


def test_the_heading_lends_its_words_to_sentences_that_say_it() -> None:
    answers = read(
        "Where is the Eiffel Tower?",
        ("Blackpool Tower", "It is a tower beside the sea."),
        ("Eiffel Tower", "It is an iron thing of Paris."),
    )
    assert answers[0] == "It is an iron thing of Paris."


@pytest.mark.parametrize(
    ("question", "fitting", "other"),
    [
        ("When was Coke sold first?", "Coke was sold first during May 1886.", "Coke was sold first as a tonic syrup."),
        (
            "How many bottles of Coke exist?",
            "Bottles of Coke exist: nine types.",
            "Bottles of Coke exist for every taste.",
        ),
        (
            "Who invented Coke?",
            "Coke was invented by the chemist Pemberton.",
            "Coke was invented by the thirsty chemists.",
        ),
        (
            "Where was Coke invented?",
            "Coke was invented in Atlanta by chemists.",
            "Coke was invented in haste by chemists.",
        ),
    ],
)
def test_of_two_equal_matches_the_one_with_the_kind_asked_for_wins(question: str, fitting: str, other: str) -> None:
    assert read(question, ("Coke", f"{other} {fitting}"))[0] == fitting
    assert read(question, ("Coke", f"{fitting} {other}"))[0] == fitting


def test_equal_sentences_stay_in_the_passages_order_and_come_once() -> None:
    answers = read("Coke", ("A", "Coke tastes sweet."), ("B", "Coke costs little."), ("C", "Coke tastes sweet."))
    assert answers == ("Coke tastes sweet.", "Coke costs little.")


def test_each_passage_gives_its_best_sentence() -> None:
    answers = read(
        "sweet Coke", ("A", "Coke costs little. Sweet Coke sells well."), ("B", "Tea sells badly. Coke tastes bitter.")
    )
    assert answers == ("Sweet Coke sells well.", "Coke tastes bitter.")


def test_a_long_sentence_is_cut_to_the_budget() -> None:
    (answer,) = read("Coke", ("Drinks", "Coke " + "word other " * 60 + "end."))
    assert len(answer.split()) == 64


def test_a_better_passage_wins_where_sentences_match_alike() -> None:
    passages = [FoundPassage("1", "A", "Coke tastes sweet.", 1.0), FoundPassage("2", "B", "Coke costs little.", 4.0)]
    assert BestSentenceReader(FakeIndex()).read(["Coke"], [passages])[0][0] == "Coke costs little."


def test_each_question_gets_its_own_answer_or_reason() -> None:
    runner = QuestionAnsweringRunner(FakeIndex(("Reel", "A reel."), ("Rod", "A rod and reel.")), EchoReader())
    assert runner.run(["reel", "the", "golf", "rod"]) == [
        ToolOutput(("reel from 2",)),
        ToolOutput.none("empty_query"),
        ToolOutput.none("no_match"),
        ToolOutput(("rod from 1",)),
    ]


def test_a_reader_without_an_answer_is_a_reason() -> None:
    assert QuestionAnsweringRunner(FakeIndex(("Reel", "A reel.")), SilentReader()).run(["reel"]) == [
        ToolOutput.none("no_answer")
    ]


def test_the_order_and_company_of_questions_change_no_answer() -> None:
    index = FakeIndex(("Coke", "Coke tastes sweet. Coke costs little."), ("Tea", "Tea tastes bitter in China."))
    runner = QuestionAnsweringRunner(index, BestSentenceReader(index))
    questions = ["How does Coke taste?", "Where is tea bitter?", "What costs little?"]
    together = runner.run(questions)
    assert [runner.run([question])[0] for question in questions] == together
    assert runner.run(questions[::-1]) == together[::-1]


def test_every_document_is_asked_and_its_own_sentences_are_passed_over() -> None:
    assert [decision.kept for decision in TOOL.filter(Document.of("Some text."))] == [True]
    assert TOOL.spec.pass_over_own_text


def test_the_version_names_index_and_reader(tmp_path: Path) -> None:
    settings = settings_with_index(tmp_path, "1" * 64)
    version = TOOL.version(settings, "model@1")
    assert "1" * 16 in version
    assert "best_sentence" in version
    assert version == TOOL.version(settings, "model@2")
    causal = settings.model_copy(update={"qa_reader": "causal"})
    span = settings.model_copy(update={"qa_reader": "span"})
    asked = [TOOL.version(reader, model) for reader in (causal, span) for model in ("model@1", "model@2")]
    assert len({version, *asked}) == 5


def test_a_model_reader_without_a_checkpoint_names_the_setting(tmp_path: Path) -> None:
    settings = settings_with_index(tmp_path).model_copy(update={"qa_reader": "sequence_to_sequence"})
    with pytest.raises(ToolError, match="TOOLFORMER_QA_READER_MODEL"):
        TOOL.version(settings, "model")


def test_a_checkpoint_that_is_not_there_fails_before_anything_runs(tmp_path: Path) -> None:
    update = {"qa_reader": "sequence_to_sequence", "qa_reader_model": str(tmp_path / "nowhere")}
    with pytest.raises(ModelError, match="nowhere"):
        TOOL.version(settings_with_index(tmp_path).model_copy(update=update), "model")


def test_without_an_index_nothing_opens(tmp_path: Path) -> None:
    with pytest.raises(SearchIndexError, match="TOOLFORMER_WIKI_INDEX"):
        TOOL.open(Settings(wiki_index=str(tmp_path / "nowhere")), pytest.fail)
