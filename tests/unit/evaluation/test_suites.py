"""Every suite reads the published format of its data sets, asks what can be asked, and says what is wrong with other files."""

import datetime
import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

from tests.unit.evaluation import published_files as published
from toolformer_ops.config import load_settings
from toolformer_ops.errors import EvaluationDataError, UsageError
from toolformer_ops.evaluation.data_files import DataFolder
from toolformer_ops.evaluation.records import CALENDAR_DATE, Question
from toolformer_ops.evaluation.suites import SUITES
from toolformer_ops.evaluation.suites.base import (
    LoadedDataSet,
    ZeroShotPrompt,
    load_data_set,
    load_prompt,
    sample_places,
    with_question_mark,
)
from toolformer_ops.evaluation.suites.lama import text_before_mask
from toolformer_ops.evaluation.suites.texts import TEXTS, articles
from toolformer_ops.evaluation.suites.word_problems import one_number


@pytest.fixture
def data(tmp_path):
    return published.write(tmp_path / "data")


def load(data: Path, suite: str, subset: str, limit: int | None = None) -> LoadedDataSet:
    data_set = next(one for one in SUITES[suite].data_sets if one.name == subset)
    return load_data_set(DataFolder(load_settings(), str(data)), data_set, limit)


COMPLETE = "Please complete the following text so that it is factually correct: "
ASK = "Answer the following question: "
MLQA = (
    "Your task is to answer a question based on the following paragraph: Oslo is the capital of Norway. Now answer the "
    "following question in English: "
)
ASKED = {
    # Only statements that end in their mask.
    "lama:squad": ([(COMPLETE + "The colour of the sky is", ("blue",))], {"mask_not_last": 1}),
    # LAMA's templates, not the sentences of the evidence; Bo Lind's fact was judged wrong by two of three,
    # Ada Holm's is there twice.
    "lama:google_re": (
        [(COMPLETE + "Ada Holm was born in", ("Oslo",)), (COMPLETE + "Cy Moe (born", ("1941",))],
        {"judged_wrong": 1, "repeated_fact": 1},
    ),
    # Relations in the order of relations.jsonl, each fact once; P30's object stands first and P99 has no
    # file.
    "lama:trex": (
        [
            (COMPLETE + "Dante was born in", ("Florence",)),
            (COMPLETE + "The capital of Norway is", ("Oslo",)),
            (COMPLETE + "The capital of Italy is", ("Rome",)),
        ],
        {"mask_not_last": 1, "repeated_fact": 1},
    ),
    "math:asdiv": (
        [("Seven red apples are in the basket. How many apples? The answer is", ("9",))],
        {"answer_not_one_number": 1},
    ),
    "math:svamp": ([("A pack costs 76 dollars How much is it? The answer is", ("51.0",))], {}),
    "math:mawps": (
        [("Joan found 70.0 seashells . How many are left of 27.0 ? The answer is", ("43.0",))],
        {"answer_not_one_number": 1},
    ),
    "math:gsm8k": ([("She sold 48/2 clips. How many? The answer is", ("24",))], {}),
    # With a question mark and all aliases.
    "qa:webquestions": ([(ASK + "what does jamaican people speak?", ("Jamaican English", "Patois"))], {}),
    "qa:nq_open": ([(ASK + "when was the last time anyone was on the moon?", ("December 1972",))], {}),
    "qa:triviaqa": ([(ASK + "Which Sinclair won in 1930?", ("Sinclair Lewis", "Harry Sinclair Lewis"))], {}),
    "mlqa:es": ([(MLQA + "¿Cuál es la capital?", ("Oslo",))], {}),
    "temporal:templama": (
        [(COMPLETE + "Valentino Rossi plays for", ("Yamaha Motor Racing",))],
        {"mask_not_last": 1},
    ),
}
"""By data set: what is asked of the published file, with the right answers; what is left out, by reason."""


@pytest.mark.parametrize("name", ASKED)
def test_each_published_format_is_asked_as_in_the_paper(data, name):
    asked, _ = ASKED[name]
    suite, subset = name.split(":")
    found = load(data, suite, subset)
    assert [(question.prompt, question.answers) for question in found.questions] == asked
    assert [question.number for question in found.questions] == list(range(1, len(asked) + 1))
    middle_of_2010 = datetime.date(2010, 7, 1)  # of the year that TempLAMA names
    assert {question.date for question in found.questions} == {
        middle_of_2010 if subset == "templama" else CALENDAR_DATE
    }


@pytest.mark.parametrize("name", ASKED)
def test_what_a_published_format_cannot_ask_is_counted(data, name):
    _, left_out = ASKED[name]
    found = load(data, *name.split(":"))
    assert found.left_out == left_out


def test_a_relation_without_a_template_is_left_out(data):
    fact = published.lines({"sub_label": "a", "obj_label": "b"})
    published.write_file(data / "lama" / "data" / "TREx" / "P5.jsonl", fact)
    assert load(data, "lama", "trex").left_out["relation_without_template"] == 1


def test_a_file_of_an_unknown_relation_is_refused(data):
    published.write_file(data / "lama" / "data" / "Google_RE" / "height_test.jsonl", "")
    with pytest.raises(EvaluationDataError, match="the unknown relation height"):
        load(data, "lama", "google_re")


def test_a_problem_of_two_files_is_asked_once(data):
    toolkit = [
        {"original_text": "Tyler had 15 dogs .", "ans": 75.0},
        {"original_text": "How many ?", "ans": "43"},
    ]
    published.write_file(data / "mawps" / "testset.json", json.dumps(toolkit))
    published.write_file(data / "mawps" / "MAWPS.json", json.dumps(toolkit[::-1]))
    found = load(data, "math", "mawps")
    assert [question.answers for question in found.questions] == [("43.0",), ("43",), ("75.0",)]
    assert found.left_out == {"answer_not_one_number": 1, "repeated_problem": 2}


def test_a_statement_is_asked_by_the_text_before_its_last_mask():
    statements = ("It is [MASK].", 'He said "[MASK]".', "It is [MASK] now.", "[MASK] and [MASK].", "[MASK].")
    assert [text_before_mask(statement) for statement in statements] == [
        "It is",
        'He said "',
        None,
        None,
        None,
    ]


def test_an_answer_is_one_number_or_none():
    answers = ("1,050 (km)", "3/4 (pizza)", "25% (of it)", "3:5", "5 (red); 3 (blue)")
    assert [one_number(answer) for answer in answers] == ["1,050", "3/4", "25", None, None]


def test_a_file_goes_before_questions_that_are_made(data):
    made = load(data, "temporal", "dateset", 1).sha256
    line = {
        "question": "What year is it today",
        "answer": ["2020"],
        "date": "2020-11-20",
        "template": "around_today",
    }
    published.write_file(data / "dateset" / "dateset.jsonl", published.lines(line))
    read = load(data, "temporal", "dateset")
    day = datetime.date(2020, 11, 20)
    assert read.questions == (Question("dateset", 1, f"{ASK}What year is it today?", ("2020",), day),)
    assert read.sha256 != made


def test_the_test_split_goes_before_another(data):
    line = {
        "question": "What year is it today",
        "answer": ["2020"],
        "date": "2020-11-20",
        "template": "around_today",
    }
    published.write_file(data / "webquestions" / "webq-train.jsonl", published.lines(line))
    assert "jamaican" in load(data, "qa", "webquestions").questions[0].prompt
    (data / "webquestions" / "webq-test.jsonl").unlink()
    assert load(data, "qa", "webquestions").questions[0].answers == ("2020",)


def test_wikitext_is_cut_into_its_articles(data):
    folder = DataFolder(load_settings(), str(data))
    wikitext, documents = (
        [question.prompt for question in load_data_set(folder, data_set).questions] for data_set in TEXTS
    )
    assert wikitext == [
        "= Robert <unk> = \n \n Robert <unk> is an English actor . \n = = Career = = \n He acts .",
        "= Du Fu = \n \n Du Fu was a poet .",
    ]
    assert documents == [" Some document.", "Another one."]  # as they are: white space is part of a text
    # A line of a formula is no heading.
    text = (
        " = Sum = \n \n It is <formula> \n = 2 = \n and \n \n = x = \n so . \n \n = Du Fu = \n \n A poet . \n"
    )
    heads = [article.strip().splitlines()[0] for article in articles(text.splitlines(keepends=True))]
    assert heads == ["= Sum = ", "= Du Fu = "]


def test_a_packed_file_is_read_as_the_plain_one_with_a_hash_of_its_own(data):
    plain = load(data, "qa", "nq_open")
    path = data / "nq_open" / "NQ-open.dev.jsonl"
    packed, content = path.with_name(path.name + ".gz"), gzip.compress(path.read_bytes(), mtime=0)
    path.unlink()
    packed.write_bytes(content)
    found = load(data, "qa", "nq_open")
    assert found.questions == plain.questions
    assert found.sha256 != plain.sha256


def test_a_damaged_packed_file_is_named(data):
    path = data / "nq_open" / "NQ-open.dev.jsonl"
    packed, content = path.with_name(path.name + ".gz"), gzip.compress(path.read_bytes(), mtime=0)
    path.unlink()
    packed.write_bytes(content[:-20])
    with pytest.raises(EvaluationDataError, match="expected whole packed data"):
        load(data, "qa", "nq_open")


def test_a_sample_has_of_each_part_its_share():
    parts = ["a"] * 700 + ["b"] * 290 + ["c"] * 10
    places = sample_places(parts, 100, "some set")
    assert Counter(parts[place] for place in places) == {"a": 70, "b": 29, "c": 1}
    assert len(set(places)) == 100
    of_a = [place for place in places if place < 700]
    assert 250 < sum(of_a) / len(of_a) < 450  # 350 with an error of 24; the first ones would have 35
    assert places == sample_places(parts, 100, "some set") != sample_places(parts, 100, "another set")


def test_a_sample_of_a_suite_is_drawn_from_all_of_it(data):
    whole, sample = load(data, "lama", "trex"), load(data, "lama", "trex", 2)
    assert sample.left_out == whole.left_out
    assert {question.prompt.split()[-3] for question in sample.questions} == {
        "was",
        "of",
    }  # of both relations
    assert all(whole.questions[question.number - 1] == question for question in sample.questions)
    assert load(data, "lama", "trex", 10) == whole


def test_a_missing_data_set_says_where_to_get_what_is_expected(data):
    (data / "svamp" / "SVAMP.json").rename(data / "svamp" / "other.json")
    with pytest.raises(
        EvaluationDataError, match=r"found only other.json.*https://github.com/arkilpatel/SVAMP"
    ):
        load(data, "math", "svamp")
    with pytest.raises(
        EvaluationDataError, match=r"expected a folder with a folder for each data set, found nothing"
    ):
        load(data / "nowhere", "qa", "nq_open")


ENTITIES = '<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>'


def test_a_file_of_another_format_says_what_was_found(data):
    nq, trivia = "nq_open/NQ-open.dev.jsonl", "triviaqa/triviaqa-unfiltered/unfiltered-web-dev.json"
    bomb = ENTITIES + published.ASDIV.split("?>", 1)[1].strip()
    for name, file, content, found in (
        ("qa:nq_open", nq, '{"question": "who"}\n', "nothing as field 'answer' (fields: question)"),
        ("qa:nq_open", nq, '{"question": 3}\n', "int as field 'question'"),
        ("qa:nq_open", nq, '["who"]\n', "as line 1"),
        ("qa:nq_open", nq, "", "no input that can be asked"),
        ("qa:nq_open", nq, "[" * 100_000, "found no JSON in line 1"),
        ("qa:triviaqa", trivia, "[]", "no JSON object with a list Data"),
        ("math:svamp", "svamp/SVAMP.json", '[{"Body": "a", "Question": "b"}]', "no number as field 'Answer'"),
        (
            "math:gsm8k",
            "gsm8k/test.jsonl",
            '{"question": "a", "answer": "5"}',
            "an answer without '#### number'",
        ),
        ("math:mawps", "mawps/AddSub.json", '{"a": 1}', "instead of a list of records"),
        (
            "lama:squad",
            "lama/data/Squad/test.jsonl",
            '{"masked_sentences": "a"}',
            "as field 'masked_sentences'",
        ),
        ("mlqa:es", "mlqa/MLQA_V1/test/test-context-en-question-es.json", "{}", "nothing as field 'data'"),
        ("math:asdiv", "asdiv/dataset/ASDiv.xml", bomb, "no XML that may be read"),
        (
            "temporal:templama",
            "templama/test.json",
            '{"query": "a _X_", "answer": [], "date": "MMX"}',
            "date: 'MMX'",
        ),
    ):
        (data / file).write_text(content, encoding="utf-8")
        with pytest.raises(EvaluationDataError) as raised:
            load(data, *name.split(":"))
        assert found in str(raised.value)
        assert f"{name.partition(':')[2]}: expected" in str(raised.value)


def test_questions_that_begin_alike_share_their_head(data):
    instruction = "Please complete the following text so that it is factually correct:"
    assert {question.shared_head for question in load(data, "lama", "trex").questions} == {instruction}
    assert {question.shared_head for question in load(data, "math", "gsm8k").questions} == {""}  # one alone
    path = data / "mlqa" / "MLQA_V1" / "test" / "test-context-en-question-es.json"
    path.write_text(
        path.read_text().replace('"qas": [', '"qas": [{"question": "¿Qué?", "answers": [{"text": "a"}]}, ')
    )
    (head,) = {question.shared_head for question in load(data, "mlqa", "es").questions}
    assert head.endswith("Oslo is the capital of Norway. Now answer the following question in English:")


def test_a_prompt_template_has_each_slot_once():
    for template in ("{question} The answer is", "{question} {question} {context}"):
        with pytest.raises(UsageError, match="expected the slots context, question once each"):
            ZeroShotPrompt("word_problem", template)


def test_a_question_ends_with_one_question_mark():
    endings = ("who", "who? ", "谁？", "من؟")  # noqa: RUF001 - other scripts
    assert [with_question_mark(question) for question in endings] == ["who?", "who?", "谁？", "من؟"]  # noqa: RUF001


def test_what_fills_a_slot_is_not_searched_for_slots():
    prompt = load_prompt("question_on_paragraph")
    assert "in English: {context}" in prompt.fill({"context": "A {question}.", "question": "{context}"})[0]
