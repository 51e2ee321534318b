"""Word n-grams that texts share with questions, against sets of tuples, and each rule of appendix C of the GPT-3 paper by hand."""

import random
import re
import uuid

import pytest

from toolformer_ops.evaluation.overlap import EvaluationNgrams, Overlap, QuestionSet, ngram_length, words_of

Found = dict[tuple[int, str, int], int]
"""By text, data set and question, the number of shared n-grams."""


def numbered(texts: list[str]) -> list[tuple[uuid.UUID, str]]:
    return [(uuid.UUID(int=number), text) for number, text in enumerate(texts)]


def ngrams(**questions: list[str]) -> EvaluationNgrams:
    return EvaluationNgrams(
        [QuestionSet("suite", name, "0" * 64, texts) for name, texts in questions.items()]
    )


def shared(overlaps: list[Overlap]) -> Found:
    return {(one.document_id.int, one.data_set, one.question): one.shared_ngrams for one in overlaps}


def by_sets_of_tuples(questions: dict[str, list[str]], lengths: dict[str, int], texts: list[str]) -> Found:
    """Every n-gram of every question looked for among all n-grams of every text; what questions share is the first one's."""

    def tuples(text: str, length: int) -> set[tuple[str, ...]]:
        words = re.sub(r"[^\w\s]|_", "", text.lower()).split()
        return {tuple(words[place : place + length]) for place in range(len(words) - length + 1)}

    found: Found = {}
    taken: set[tuple[str, ...]] = set()
    for name, asked in questions.items():
        held = [tuples(text, lengths[name]) for text in texts]
        for number, question in enumerate(asked, start=1):
            own = tuples(question, lengths[name]) - taken
            taken |= own
            own = {ngram for ngram in own if sum(ngram in of_text for of_text in held) <= 10}
            found |= {
                (place, name, number): len(own & of_text)
                for place, of_text in enumerate(held)
                if own & of_text
            }
    return found


def words(first: int, count: int) -> str:
    return " ".join(f"w{number}" for number in range(first, first + count))


@pytest.mark.parametrize(
    ("way_to_write", "text"),
    [
        ("zero-width space", "The ca\u200bfe of Zoe's final stra\u00dfe"),
        ("soft hyphen", "The cafe of Zoe's fi\u00adnal stra\u00dfe"),
        ("full-width letters", "\uff34\uff28\uff25 cafe of Zoe's final stra\u00dfe"),
        ("ligature", "The cafe of Zoe's \ufb01nal stra\u00dfe"),
        ("folded case", "THE CAFE OF ZOE'S FINAL STRASSE"),
        ("byte-order mark", "\ufeffThe cafe of Zoe's final stra\u00dfe"),
    ],
)
def test_words_are_equal_however_they_are_written(way_to_write, text):
    assert words_of(text) == ["the", "cafe", "of", "zoes", "final", "strasse"], way_to_write


def test_decomposed_accents_are_the_composed_ones():
    assert words_of("cafe\u0301 A\u030angstro\u0308m") == words_of("caf\u00e9 \u00c5ngstr\u00f6m")


def test_words_with_other_accents_differ():
    assert words_of("cafe") != words_of("caf\u00e9")


def test_words_have_neither_case_nor_punctuation():
    found = words_of("The U.S. paid $1,461 -- twenty-one\u00a0%\nof «ALL» its don\u2019t_s")
    assert found == ["the", "us", "paid", "1461", "twentyone", "of", "all", "its", "donts"]


def test_ngrams_are_as_long_as_nearly_all_questions():
    # The fifth of a hundred, of 8 to 13 words.
    lengths = [[10] * 5 + [20] * 95, [10] * 4 + [20] * 96, [3] * 50 + [20] * 50, []]
    assert list(map(ngram_length, lengths)) == [10, 13, 8, 13]


def test_exactly_the_overlaps_are_found():
    random_words = random.Random(3)  # noqa: S311 - no secret
    # Of so few words that n-grams come up again in questions, in texts and at their ends.
    stretch = [random_words.choice("ab") for _ in range(400)]

    def piece(least: int, most: int) -> str:
        start = random_words.randrange(len(stretch) - most)
        return " ".join(stretch[start : start + random_words.randint(least, most)])

    questions = {"long": [piece(14, 30) for _ in range(12)], "short": [piece(9, 12) for _ in range(12)]}
    texts = [f"{piece(1, 40)} x {piece(1, 40)}, {piece(5, 40)}." for _ in range(60)]
    lengths = {name: ngram_length([len(text.split()) for text in asked]) for name, asked in questions.items()}
    assert lengths["long"] == 13 > lengths["short"] >= 9
    expected = by_sets_of_tuples(questions, lengths, texts)
    assert len({place for place, _, _ in expected}) > 20
    evaluation_data = ngrams(**questions)
    found = evaluation_data.overlaps(numbered(texts))
    assert shared(found) == expected
    assert evaluation_data.overlaps(reversed(numbered(texts))) == found


def test_an_overlap_is_a_whole_ngram():
    evaluation_data = ngrams(problems=[words(0, 20)] * 20 + ["How many are left?"])
    texts = [
        f"So {words(3, 12)} end",
        f"So {words(3, 13)} end",
        "How many are left? How many are left?",
        words(0, 20),
    ]
    found = evaluation_data.overlaps(numbered(texts))
    overlaps = [(one.document_id.int, one.question, one.words) for one in found]
    assert overlaps == [(1, 1, words(3, 13)), (3, 1, words(0, 13))]


def test_a_question_of_fewer_words_than_an_ngram_is_counted_but_not_compared():
    evaluation_data = ngrams(problems=[words(0, 20)] * 20 + ["How many are left?"])
    [definition] = evaluation_data.definition
    assert (definition["questions"], definition["ngram_words"], definition["too_short"]) == (21, 13, 1)
