"""What WikiSearch and QA make of the passages that their index finds."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from toolformer_ops.config import Settings
from toolformer_ops.errors import ModelError, ToolError, UsageError
from toolformer_ops.tools.base import ToolOutput
from toolformer_ops.tools.question_answering import TOOL as QA
from toolformer_ops.tools.question_answering import BestSentenceReader, QuestionAnsweringRunner
from toolformer_ops.tools.retrieval.bm25_index import FoundPassage, SearchAnswer
from toolformer_ops.tools.retrieval.index_manifest import IndexManifest, write_manifest
from toolformer_ops.tools.retrieval.own_text import OwnText
from toolformer_ops.tools.retrieval.sentences import count_tokens
from toolformer_ops.tools.wiki_search import RESULT_TOKENS, WikiSearchRunner
from toolformer_ops.tools.wiki_search import TOOL as WIKI_SEARCH

SENTENCE = (
    "Spin fishing uses a reel with a fixed spool, and a rod of glass or of wood."  # 17 words and 2 marks
)
STOP_WORDS = frozenset(
    ["a", "an", "the", "is", "was", "in", "of", "to", "it", "by", "who", "when", "where", "how"]
)


class FakeIndex:
    """Passages in memory: every word weighs 1, and a passage's score is the number of the question's words in it."""

    def __init__(self, *passages: tuple[str, str]) -> None:
        self._passages = passages

    def terms(self, text: str) -> tuple[str, ...]:
        words = "".join(character if character.isalnum() else " " for character in text.lower()).split()
        return tuple(word for word in words if word not in STOP_WORDS)

    def inverse_document_frequency(self, term: str) -> float:
        return 1.0

    def search(self, queries: Sequence[str], top: int) -> list[SearchAnswer]:
        return [self._answer(set(self.terms(query)), top) for query in queries]

    def _answer(self, asked: set[str], top: int) -> SearchAnswer:
        if not asked:
            return SearchAnswer(reason="empty_query")
        found = [
            FoundPassage(heading, text, float(len(asked.intersection(self.terms(f"{heading} {text}")))))
            for heading, text in self._passages
        ]
        ranked = sorted((passage for passage in found if passage.score), key=lambda passage: -passage.score)
        return SearchAnswer(tuple(ranked[:top])) if ranked else SearchAnswer(reason="no_match")


def settings_with_index(folder: Path, fingerprint: str = "1" * 64) -> Settings:
    folder.mkdir(exist_ok=True)
    write_manifest(folder, IndexManifest(fingerprint, "wiki.jsonl", "0" * 64, {}, 1, 1, {}, 0, "lucene-1"))
    return Settings(wiki_index=str(folder))


def test_each_search_has_its_different_results_cut_at_a_sentence_end_or_a_reason():
    [output] = WikiSearchRunner(FakeIndex(("Fishing", " ".join([SENTENCE] * 5)))).run(["reel"])
    assert (count_tokens(SENTENCE), RESULT_TOKENS) == (19, 64)
    assert output.results == ("Fishing > " + " ".join([SENTENCE] * 3),)  # 57 tokens; a fourth would make 76
    passages = [
        ("Fishing > Reel", "Spin uses a reel."),
        ("Reel", "A reel."),
        ("Reel", "A reel."),
        ("Golf", "A ball."),
    ]
    assert WikiSearchRunner(FakeIndex(*passages)).run(["the of", "reel", "tennis", "golf"]) == [
        ToolOutput.none("empty_query"),
        ToolOutput(("Fishing > Reel > Spin uses a reel.", "Reel > A reel.")),
        ToolOutput.none("no_match"),
        ToolOutput(("Golf > A ball.",)),
    ]


def test_a_document_from_the_index_gets_the_first_result_that_is_not_from_it():
    own, other = SENTENCE, "A reel holds the line that is used in angling for fish of all kinds."
    results = (
        WikiSearchRunner(FakeIndex(("Fishing", own), ("Reel", other))).run(["reel rod fishing"])[0].results
    )
    assert WIKI_SEARCH.spec.pass_over_own_text
    assert QA.spec.pass_over_own_text
    document = OwnText(f"Some words before. {own} Some words after.")
    assert [document.repeated_by(result) for result in results] == [True, False]


def test_the_version_of_a_search_names_the_index(tmp_path):
    one, two = settings_with_index(tmp_path / "one"), settings_with_index(tmp_path / "two", "2" * 64)
    assert "1" * 16 in WIKI_SEARCH.version(one, "model@1") == WIKI_SEARCH.version(one, "model@2")
    assert WIKI_SEARCH.version(one, "model@1") != WIKI_SEARCH.version(two, "model@1")


def test_the_version_of_question_answering_names_what_reads_the_index(tmp_path):
    one = settings_with_index(tmp_path / "one")
    version = QA.version(one, "model@1")
    assert "1" * 16 in version == QA.version(one, "model@2")
    readers = [one.model_copy(update={"qa_reader": reader}) for reader in ("causal", "span")]
    asked = [QA.version(reader, model) for reader in readers for model in ("model@1", "model@2")]
    assert len({version, *asked}) == 5


def test_without_an_index_or_a_readers_checkpoint_nothing_opens(tmp_path):
    settings = Settings(wiki_index=str(tmp_path / "nowhere"))
    for tool in (WIKI_SEARCH, QA):
        with pytest.raises(UsageError, match=r"TOOLFORMER_WIKI_INDEX[\s\S]*build-index"):
            tool.version(settings, "model")
        with pytest.raises(UsageError, match="TOOLFORMER_WIKI_INDEX"):
            tool.open(settings, pytest.fail)
    reader = settings_with_index(tmp_path).model_copy(update={"qa_reader": "sequence_to_sequence"})
    with pytest.raises(ToolError, match="TOOLFORMER_QA_READER_MODEL"):
        QA.version(reader, "model")
    with pytest.raises(ModelError, match="/no/such/folder"):
        QA.version(reader.model_copy(update={"qa_reader_model": "/no/such/folder"}), "model")


def read(question: str, *passages: tuple[str, str]) -> tuple[str, ...]:
    """What the best-sentence reader answers when all passages score alike."""
    found = [FoundPassage(heading, text, 1.0) for heading, text in passages]
    return BestSentenceReader(FakeIndex()).read([question], [found])[0]


def test_a_sentence_that_only_repeats_the_question_is_no_answer():
    text = "Who manufactures Coke? Coke is a cold drink. The Owens company manufactures Coke bottles."
    assert (
        read("Who manufactures Coke?", ("Drinks", text))[0] == "The Owens company manufactures Coke bottles."
    )


def test_a_heading_lends_its_words_to_sentences_that_say_it():
    # A heading lends its words to sentences that say "it".
    towers = [
        ("Blackpool Tower", "It is a tower beside the sea."),
        ("Eiffel Tower", "It is an iron thing of Paris."),
    ]
    assert read("Where is the Eiffel Tower?", *towers) == tuple(text for _, text in towers[::-1])


def test_equal_sentences_are_one_answer():
    # Equal sentences are given once, in the passages' order.
    drinks = [("A", "Coke tastes sweet."), ("B", "Coke costs little."), ("C", "Coke tastes sweet.")]
    assert read("Coke", *drinks) == ("Coke tastes sweet.", "Coke costs little.")


def test_a_long_answer_ends_after_64_words():
    long = "Coke " + "word other " * 60 + "end."
    assert read("Coke", ("Drinks", long)) == (" ".join(long.split()[:64]),)


def test_of_two_equal_matches_the_kind_that_is_asked_for_wins():
    for question, start, asked_for, another in (
        ("When was Coke sold first?", "Coke was sold first", "during May 1886.", "as a tonic syrup."),
        ("How many bottles of Coke exist?", "Bottles of Coke exist", ": nine types.", "for every taste."),
        ("Who invented Coke?", "Coke was invented by the", "chemist Pemberton.", "thirsty chemists."),
    ):
        fitting, other = f"{start} {asked_for}", f"{start} {another}"
        assert read(question, ("Coke", f"{other} {fitting}"))[0] == fitting
        assert read(question, ("Coke", f"{fitting} {other}"))[0] == fitting


def test_each_question_has_its_own_answers_or_reason_in_any_company():
    index = FakeIndex(
        ("Coke", "Coke tastes sweet all day. Coke costs little."), ("Tea", "Tea tastes bitter in China.")
    )
    runner = QuestionAnsweringRunner(index, BestSentenceReader(index))
    answers = {
        "What tastes sweet?": "Coke tastes sweet all day.",
        "the": "empty_query",
        "golf": "no_match",
        "Tea bitter in China?": "no_answer",
        "Where is tea bitter?": "Tea tastes bitter in China.",
    }
    outputs = runner.run(list(answers))
    assert [(output.reason or output.results[0]) for output in outputs] == list(answers.values())
    assert [runner.run([question])[0] for question in answers] == outputs
