"""Every suite reads the published format of its data sets, asks what can be asked, and says what is wrong with other files."""
# ruff: noqa: E501 - records as they are published, a line each

import datetime
import gzip
import json
import logging
from collections import Counter
from pathlib import Path

import pytest

from tests.unit.evaluation import published_files as published
from toolformer_ops.config import load_settings
from toolformer_ops.errors import EvaluationDataError, UsageError
from toolformer_ops.evaluation.data_files import DataFolder
from toolformer_ops.evaluation.dateset import SIZES
from toolformer_ops.evaluation.records import Question
from toolformer_ops.evaluation.suites import SUITES
from toolformer_ops.evaluation.suites.base import (
    SLOTS,
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
def data(tmp_path: Path) -> Path:
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
DVDS = (
    "Each pack of dvds costs 76 dollars. If there is a discount of 25 dollars on each pack How much do you have to pay to buy "
    "each pack? The answer is"
)
ASKED = {
    # Only statements that end in their mask.
    "lama:squad": ([(COMPLETE + "The colour of the sky is", ("blue",))], {"mask_not_last": 1}),
    # LAMA's templates, not the sentences of the evidence; Bo Lind's fact was judged wrong by two of three, Ada Holm's is there twice.
    "lama:google_re": (
        [(COMPLETE + "Ada Holm was born in", ("Oslo",)), (COMPLETE + "Cy Moe (born", ("1941",))],
        {"judged_wrong": 1, "repeated_fact": 1},
    ),
    # Relations in the order of relations.jsonl, each fact once; P30's object stands first and P99 has no file.
    "lama:trex": (
        [
            (COMPLETE + "Dante was born in", ("Florence",)),
            (COMPLETE + "The capital of Norway is", ("Oslo",)),
            (COMPLETE + "The capital of Italy is", ("Rome",)),
        ],
        {"mask_not_last": 1, "repeated_fact": 1},
    ),
    "math:asdiv": (
        [
            (
                "Seven red apples and two green apples are in the basket. How many apples are in the basket? The answer is",
                ("9",),
            )
        ],
        {"answer_not_one_number": 1},
    ),
    "math:svamp": ([(DVDS, ("51.0",))], {}),
    "math:mawps": (
        [("Joan found 70.0 seashells . How many are left of 27.0 ? The answer is", ("43.0",))],
        {"answer_not_one_number": 1},
    ),
    "math:gsm8k": ([("She sold 48/2 clips. How many? The answer is", ("24",))], {}),
    # With a question mark and all aliases.
    "qa:webquestions": ([(ASK + "what does jamaican people speak?", ("Jamaican English", "Patois"))], {}),
    "qa:nq_open": ([(ASK + "when was the last time anyone was on the moon?", ("December 1972",))], {}),
    "qa:triviaqa": (
        [
            (
                ASK + "Which American-born Sinclair won the Nobel Prize for Literature in 1930?",
                ("Sinclair Lewis", "Harry Sinclair Lewis"),
            )
        ],
        {},
    ),
    "mlqa:es": ([(MLQA + "¿Cuál es la capital?", ("Oslo",))], {}),
    "mlqa:zh": ([(MLQA + "首都是哪里？", ("Oslo",))], {}),  # noqa: RUF001 - Chinese
    "temporal:templama": ([(COMPLETE + "Valentino Rossi plays for", ("Yamaha Motor Racing",))], {"mask_not_last": 1}),
}
"""By data set: what is asked of the published file, with the right answers; what is left out, by reason."""


@pytest.mark.parametrize("name", ASKED)
def test_each_published_format_is_asked_as_in_the_paper_and_what_cannot_be_asked_is_counted(
    data: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    asked, left_out = ASKED[name]
    suite, subset = name.split(":")
    with caplog.at_level(logging.INFO):
        found = load(data, suite, subset)
    assert [(question.prompt, question.answers) for question in found.questions] == asked
    assert [question.number for question in found.questions] == list(range(1, len(asked) + 1))
    middle_of_2010 = datetime.date(2010, 7, 1)  # of the year that TempLAMA names
    assert {question.date for question in found.questions} == {middle_of_2010 if subset == "templama" else None}
    assert found.left_out == left_out
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(left_out.items()))
    assert not reasons or f"{len(asked)} inputs; {sum(left_out.values())} are left out: {reasons}" in caplog.text


def test_a_relation_without_a_template_is_left_out_of_trex_and_refused_of_google_re(data: Path) -> None:
    fact = published.lines({"sub_label": "a", "obj_label": "b"})
    published.write_file(data / "lama" / "data" / "TREx" / "P5.jsonl", fact)
    assert load(data, "lama", "trex").left_out == {
        "mask_not_last": 1,
        "relation_without_template": 1,
        "repeated_fact": 1,
    }
    published.write_file(data / "lama" / "data" / "Google_RE" / "height_test.jsonl", "")
    with pytest.raises(EvaluationDataError, match="the unknown relation height"):
        load(data, "lama", "google_re")


def test_mawps_is_read_in_both_forms_and_a_problem_of_two_files_is_asked_once(data: Path) -> None:
    toolkit = [
        {"id": 1, "original_text": "Tyler had 15 dogs .", "segmented_text": "", "equation": "X=15", "ans": 75.0},
        {"id": 2, "original_text": "How many cards ?", "segmented_text": "", "equation": "X=70-27", "ans": "43"},
    ]
    published.write_file(data / "mawps" / "testset.json", json.dumps(toolkit))
    published.write_file(data / "mawps" / "MAWPS.json", json.dumps(toolkit[::-1]))
    found = load(data, "math", "mawps")
    assert [question.answers for question in found.questions] == [("43.0",), ("43",), ("75.0",)]
    assert found.left_out == {"answer_not_one_number": 1, "repeated_problem": 2}


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("It is [MASK].", "It is"),
        ("It is [MASK] .", "It is"),
        ('He said "[MASK]".', 'He said "'),
        ("It is [MASK] now.", None),
        ("[MASK] and [MASK].", None),
        ("[MASK].", None),
        ("No mask.", None),
    ],
)
def test_the_text_before_a_last_mask(statement: str, expected: str | None) -> None:
    assert text_before_mask(statement) == expected


@pytest.mark.parametrize(
    ("answer", "number"),
    [
        ("9 (apples)", "9"),
        ("43.0", "43.0"),
        ("1,050 (km)", "1,050"),
        ("-3", "-3"),
        ("3/4 (pizza)", "3/4"),
        ("25% (of it)", "25"),
        ("Yes", None),
        ("3:5", None),
        ("5 (red); 3 (blue)", None),
        ("8 hours 5 minutes", None),
    ],
)
def test_an_answer_that_is_one_number(answer: str, number: str | None) -> None:
    assert one_number(answer) == number


def test_templama_with_aliases_accepts_each(data: Path) -> None:
    answer = {"wikidata_id": "Q1", "name": ["Yamaha Factory Racing", "Yamaha"]}
    published.write_file(
        data / "templama" / "test.json",
        published.lines({"query": "Rossi plays for _X_.", "answer": [answer], "date": "2010"}),
    )
    assert load(data, "temporal", "templama").questions[0].answers == ("Yamaha Factory Racing", "Yamaha")


def test_dateset_is_made_if_there_is_no_file_of_it_and_a_limit_takes_the_share_of_each_template(data: Path) -> None:
    whole, sample = load(data, "temporal", "dateset"), load(data, "temporal", "dateset", 94)
    assert len(whole.questions) == 9400
    assert whole.questions[0].prompt.startswith(f"{ASK}How many days")
    # Each is the question of that number of the whole, in order; of each template there is its share (Table 11).
    numbers = [question.number for question in sample.questions]
    assert numbers == sorted(set(numbers))
    assert list(sample.questions) == [whole.questions[number - 1] for number in numbers]
    templates = [template for template, size in SIZES.items() for _ in range(size)]
    assert Counter(templates[number - 1] for number in numbers) == {name: size // 100 for name, size in SIZES.items()}
    line = {"question": "What year is it today", "answer": ["2020"], "date": "2020-11-20", "template": "around_today"}
    published.write_file(data / "dateset" / "dateset.jsonl", published.lines(line))
    read = load(data, "temporal", "dateset")
    day = datetime.date(2020, 11, 20)
    assert read.questions == (Question("dateset", 1, f"{ASK}What year is it today?", ("2020",), day),)
    assert read.sha256 != whole.sha256


def test_wikitext_is_cut_into_its_articles(data: Path) -> None:
    folder = DataFolder(load_settings(), str(data))
    wikitext, documents = (
        [question.prompt for question in load_data_set(folder, data_set).questions] for data_set in TEXTS
    )
    assert wikitext == [
        "= Robert <unk> = \n \n Robert <unk> is an English actor . \n = = Career = = \n He acts .",
        "= Du Fu = \n \n Du Fu was a poet .",
    ]
    assert documents == [" Some document.", "Another one."]  # as they are: white space is part of a text


def test_a_line_of_a_formula_is_no_heading() -> None:
    text = " = Sum = \n \n It is <formula> \n = 2 = \n and \n \n = x = \n so . \n \n = Du Fu = \n \n A poet . \n"
    assert [article.strip().splitlines()[0] for article in articles(text.splitlines(keepends=True))] == [
        "= Sum = ",
        "= Du Fu = ",
    ]


def test_packed_files_are_read_and_hashed_as_stored(data: Path) -> None:
    plain = load(data, "qa", "nq_open")
    path = data / "nq_open" / "NQ-open.dev.jsonl"
    path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    path.unlink()
    packed = load(data, "qa", "nq_open")
    assert packed.questions == plain.questions
    assert packed.sha256 != plain.sha256


def test_the_first_split_that_lies_there_is_read(data: Path) -> None:
    line = {"question": "who", "answer": ["nobody"]}
    published.write_file(data / "webquestions" / "webq-train.jsonl", published.lines(line))
    assert "jamaican" in load(data, "qa", "webquestions").questions[0].prompt
    (data / "webquestions" / "webq-test.jsonl").unlink()
    assert load(data, "qa", "webquestions").questions[0].answers == ("nobody",)


def test_a_limit_counts_what_cannot_be_asked_all_the_same_and_takes_all_if_it_is_not_reached(data: Path) -> None:
    whole, sample = load(data, "lama", "trex"), load(data, "lama", "trex", 2)
    assert sample.left_out == whole.left_out
    assert {question.prompt.split()[-3] for question in sample.questions} == {"was", "of"}  # of both relations
    assert load(data, "lama", "trex", 10) == whole


def test_a_sample_has_of_each_part_its_share_and_is_drawn_from_all_of_it() -> None:
    parts = ["a"] * 700 + ["b"] * 290 + ["c"] * 10
    places = sample_places(parts, 100, "some set")
    assert Counter(parts[place] for place in places) == {"a": 70, "b": 29, "c": 1}
    assert len(set(places)) == 100
    of_a = [place for place in places if place < 700]
    assert 250 < sum(of_a) / len(of_a) < 450  # 350 with an error of 24; the first ones would have 35
    assert places == sample_places(parts, 100, "some set") != sample_places(parts, 100, "another set")
    assert sample_places(parts, 1, "some set") != [0]
    assert sample_places(parts[:3], 5, "some set") == [0, 1, 2]


def test_a_data_set_that_is_not_there_says_what_is_expected_and_where_to_get_it(data: Path) -> None:
    (data / "svamp" / "SVAMP.json").rename(data / "svamp" / "other.json")
    svamp = "expected a JSON list with Body, Question and Answer.*found only other.json.*https://github.com/arkilpatel/SVAMP"
    with pytest.raises(EvaluationDataError, match=svamp):
        load(data, "math", "svamp")
    with pytest.raises(EvaluationDataError, match=r"de: expected JSON as SQuAD's.*MLQA_V1.zip"):
        load(data, "mlqa", "de")
    with pytest.raises(EvaluationDataError, match=r"expected a folder with a folder for each data set, found nothing"):
        load(data / "nowhere", "qa", "nq_open")


ENTITIES = '<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>'


@pytest.mark.parametrize(
    ("suite", "subset", "file", "content", "found"),
    [
        ("qa", "nq_open", "nq_open/NQ-open.dev.jsonl", "question,answer\n", "found no JSON in line 1"),
        ("qa", "nq_open", "nq_open/NQ-open.dev.jsonl", '{"question": "who"}\n', "nothing as field 'answer' (fields: question)"),
        ("qa", "nq_open", "nq_open/NQ-open.dev.jsonl", '["who"]\n', "as line 1"),
        ("qa", "nq_open", "nq_open/NQ-open.dev.jsonl", "", "no input that can be asked"),
        ("qa", "nq_open", "nq_open/NQ-open.dev.jsonl", "[" * 100_000, "found no JSON in line 1"),
        ("qa", "triviaqa", "triviaqa/triviaqa-unfiltered/unfiltered-web-dev.json", "[]", "no JSON object with a list Data"),
        ("math", "svamp", "svamp/SVAMP.json", '[{"Body": "a", "Question": "b", "Answer": null}]', "no number as field 'Answer'"),
        ("math", "mawps", "mawps/AddSub.json", '{"a": 1}', "in place of a list of records"),
        ("math", "gsm8k", "gsm8k/test.jsonl", '{"question": "a", "answer": "5"}', "an answer without '#### number'"),
        ("math", "asdiv", "asdiv/dataset/ASDiv.xml", "not xml", "no XML that may be read"),
        ("math", "asdiv", "asdiv/dataset/ASDiv.xml", f"{ENTITIES}{published.ASDIV.split('?>', 1)[1].strip()}", "no XML that may be read"),
        ("lama", "squad", "lama/data/Squad/test.jsonl", '{"masked_sentences": "a [MASK]"}', "as field 'masked_sentences'"),
        ("lama", "trex", "lama/data/relations.jsonl", '{"relation": "P36"}', "nothing as field 'template'"),
        ("mlqa", "es", "mlqa/MLQA_V1/test/test-context-en-question-es.json", '{"rows": []}', "nothing as field 'data'"),
        ("temporal", "templama", "templama/test.json", '{"query": "a _X_", "answer": [{"name": "b"}], "date": "MMX"}', "no date: 'MMX'"),
    ],
)  # fmt: skip
def test_a_file_of_another_format_says_what_was_found(
    data: Path, suite: str, subset: str, file: str, content: str, found: str
) -> None:
    (data / file).write_text(content, encoding="utf-8")
    with pytest.raises(EvaluationDataError) as raised:
        load(data, suite, subset)
    assert found in str(raised.value)
    assert f"{subset}: expected" in str(raised.value)


def test_damaged_packing_is_named(data: Path) -> None:
    path = data / "nq_open" / "NQ-open.dev.jsonl"
    packed = gzip.compress(json.dumps({"question": "who", "answer": ["x"]}).encode() * 100)
    path.with_name(path.name + ".gz").write_bytes(packed[:-20])
    path.unlink()
    with pytest.raises(EvaluationDataError, match="expected whole packed data"):
        load(data, "qa", "nq_open")


def test_every_prompt_of_a_suite_is_there() -> None:
    used = {data_set.prompt for suite in SUITES.values() for data_set in suite.data_sets}
    assert used == set(SLOTS)
    assert all(load_prompt(name).template for name in used)


def test_questions_that_begin_alike_share_their_head(data: Path) -> None:
    instruction = "Please complete the following text so that it is factually correct:"
    assert {question.shared_head for question in load(data, "lama", "trex").questions} == {instruction}
    assert {question.shared_head for question in load(data, "math", "gsm8k").questions} == {""}
    path = data / "mlqa" / "MLQA_V1" / "test" / "test-context-en-question-es.json"
    squad = json.loads(path.read_text())
    squad["data"][0]["paragraphs"][0]["qas"] *= 2
    path.write_text(json.dumps(squad))
    (head,) = {question.shared_head for question in load(data, "mlqa", "es").questions}
    assert head.endswith("Oslo is the capital of Norway. Now answer the following question in English:")


def test_a_prompt_without_its_slot_is_refused() -> None:
    with pytest.raises(UsageError, match=r"expected the slots context, question once each, found question"):
        ZeroShotPrompt("word_problem", "{question} The answer is")
    with pytest.raises(UsageError):
        ZeroShotPrompt("question", "{question} {question}")


def test_what_fills_a_slot_is_not_searched_for_slots() -> None:
    prompt = load_prompt("question_on_paragraph")
    assert "in English: {context}" in prompt.fill({"context": "A {question}.", "question": "{context}"})


@pytest.mark.parametrize(
    ("question", "expected"),
    [("who", "who?"), ("who? ", "who?"), ("谁？", "谁？"), ("من؟", "من؟")],  # noqa: RUF001 - other scripts
)
def test_a_question_mark_is_added_where_none_stands(question: str, expected: str) -> None:
    assert with_question_mark(question) == expected
