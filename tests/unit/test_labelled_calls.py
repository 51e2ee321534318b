"""Labelled calls differ from a right one in one thing, and their halves, placebos and log probabilities follow from the text."""

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

from studies import labelled_texts
from studies.answers import gather, write_lines
from studies.devices import load_to_score
from studies.labelled_calls import (
    LabelledText,
    facts,
    places_around,
    plain_spaces,
    posts,
    problems,
    read_facts,
    reports,
)
from studies.labelled_scores import digest_of, half_of, placebos_of, score_sets, score_texts
from studies.labelled_texts import LabelledFacts, LabelledProblems, write_labelled_records
from studies.plan import StudyPlan
from studies.tool_folder import with_tools
from toolformer_ops.config import Settings
from toolformer_ops.errors import UsageError
from toolformer_ops.tools.calendar import write_day
from toolformer_ops.tools.registry import get_tool


def word_problem(broken: int) -> dict[str, str]:
    """A problem as GSM8K has it."""
    left = 520 - broken
    steps = (
        f"There are 520 - {broken} = <<520-{broken}={left}>>{left} lamps left over.",
        f"He sells {left} / 3 = <<{left}/3={left // 3}>>{left // 3} lamps.",
    )
    question = (
        f"A farmer had 520 lamps in his barn. He found that {broken} of them were broken. How many are left?"
    )
    return {"question": question, "answer": "\n".join([*steps, f"#### {left // 3}"])}


PROBLEM = word_problem(187)


def article(title: str, passage: str) -> dict[str, Any]:
    """An article as KILT has it."""
    return {"wikipedia_title": title, "text": [f"{title}\n", passage]}


ARTICLES = [
    article(
        "Help! (album)",
        "Help ! is a 1965 studio album , produced by George Martin , and released on 6 August 1965 .",
    ),
    article("Joyride", "Joyride was released on 28 March 1991 and produced by Clarence Ofwerman in Sweden ."),
    article("Lagaan", "The film Lagaan was released on 6 August 2001 in India ."),
]


def labelled(text: LabelledText, label: str) -> list[str]:
    """The calls of a label with their results."""
    return [f"{call.call} -> {call.result}" for call in text.calls if call.label == label]


@pytest.fixture(scope="module")
def problem():
    (text,) = problems([PROBLEM])
    return text


@pytest.fixture(scope="module")
def produced():
    """Help! was produced by George Martin."""
    texts = {str(text.right.call): text for text in facts(ARTICLES)}
    return texts["Articles(SELECT produced_by FROM articles WHERE title = 'Help!')"]


def test_the_right_call_of_a_problem_is_its_computation(problem):
    assert labelled(problem, "right") == ["Calculator(520 - 187) -> 333"]


def test_the_right_call_of_a_problem_stands_before_its_result(problem):
    assert problem.text[problem.right.place :].startswith(" 333 lamps left over.")


def test_a_problem_does_not_say_its_first_equation(problem):
    assert "520 - 187" not in problem.text


@pytest.mark.parametrize(
    ("label", "call"),
    [
        ("operator", "Calculator(520 + 187) -> 707"),
        ("sign", "Calculator(187 - 520) -> -333"),
        ("digit", "Calculator(520 - 188) -> 332"),
    ],
)
def test_a_wrong_sum_differs_in_one_thing(problem, label, call):
    assert labelled(problem, label) == [call]


def test_an_operand_is_exchanged_for_another_number_of_the_text():
    record = {**PROBLEM, "question": f"He has 4 barns. {PROBLEM['question']}"}
    (text,) = problems([record])
    assert labelled(text, "operand") == ["Calculator(4 - 187) -> -183", "Calculator(520 - 4) -> 516"]


def test_a_right_call_is_moved_by_words(problem):
    moved = {
        call.label: problem.text[call.place :].split()[0] for call in problem.calls if "place" in call.label
    }
    assert moved == {
        "place -5": "many",
        "place -3": "left?",
        "place -1": "are",
        "place +1": "lamps",
        "place +3": "over.",
        "place +5": "sells",
    }


def test_a_call_is_not_moved_beyond_its_text():
    assert list(places_around("It is 12 here.", 5)) == [(-1, 2), (1, 8)]


def test_a_number_of_a_report_is_written_as_the_report_writes_it():
    (text,) = reports(
        [
            {
                "text": "Net sales rose from $111.8 million to $115.2 million, an increase of $3.4 million over 2018."
            }
        ]
    )
    assert labelled(text, "right") == ["Calculator(115.2 - 111.8) -> 3.40"]


def test_a_passage_has_no_spaces_around_its_punctuation():
    assert (
        plain_spaces("`` Help ! '' ( 1965 ) , the Beatles 's album .")
        == '"Help!" (1965), the Beatles\'s album.'
    )


def test_a_table_has_what_articles_state():
    stated = {(fact.title, fact.column): fact.value for fact in read_facts(ARTICLES)}
    assert stated == {
        ("Help!", "year"): "1965",
        ("Help!", "produced_by"): "George Martin",
        ("Help!", "released_on"): "6 August 1965",
        ("Joyride", "released_on"): "28 March 1991",
        ("Joyride", "produced_by"): "Clarence Ofwerman",
        ("Lagaan", "released_on"): "6 August 2001",
    }


def test_another_row_is_asked_for(produced):
    assert labelled(produced, "row") == [
        "Articles(SELECT produced_by FROM articles WHERE title = 'Joyride') -> Clarence Ofwerman"
    ]


def test_another_column_is_asked_for(produced):
    assert sorted(labelled(produced, "column")) == [
        "Articles(SELECT released_on FROM articles WHERE title = 'Help!') -> 6 August 1965",
        "Articles(SELECT year FROM articles WHERE title = 'Help!') -> 1965",
    ]


@pytest.fixture
def post(tmp_path):
    file = tmp_path / "posts.jsonl"
    text = "We were glad to see so many of you at our summit on open data this week in the city, the largest of 2014 so far."
    file.write_text(json.dumps({"id": "a", "date": "2014-05-12", "text": text}), encoding="utf-8")
    (post,) = posts(file)
    return post


def test_the_right_call_of_a_post_stands_before_its_year(post):
    assert post.text[post.right.place :] == " 2014 so far."


def test_the_right_call_of_a_post_tells_its_day(post):
    assert labelled(post, "right") == ["Calendar() -> Today is Monday, May 12, 2014."]


def test_a_wrong_day_does_not_hold_what_the_post_states(post):
    other_years = [datetime.date(year, 5, 12) for year in (2013, 2015, 2004)]
    contents = [call.result for call in post.calls[1:] if "place" not in call.label]
    assert contents == [write_day(day) for day in other_years]


@pytest.fixture(scope="module")
def lines(tiny_gpt2_dir, problem):
    """The problem's calls, scored by a tiny model."""
    model = load_to_score(Settings(), str(tiny_gpt2_dir))
    (of_problem,) = score_texts(model, [problem], ["12", "333", "45"])
    return of_problem


def test_every_call_at_the_start_of_a_token_is_scored(lines, problem):
    assert [line["label"] for line in lines] == [call.label for call in problem.calls]


def test_ten_tokens_are_scored(lines):
    assert len(lines[0]["log_p"]["with_result"]) == 10


def test_a_right_call_alone_has_a_second_placebo(lines):
    assert [line["label"] for line in lines if "with_other_placebo" in line["log_p"]] == ["right"]


def test_a_placebo_is_not_the_own_result(problem):
    assert sorted(placebos_of(problem, problem.right, ["12", "333", "45"])) == ["12", "45"]


def test_a_moved_call_has_the_placebos_of_the_right_one(problem):
    moved = problem.calls[-1]
    assert placebos_of(problem, moved, ["12", "333", "45"]) == placebos_of(
        problem, problem.right, ["12", "333", "45"]
    )


def test_raw_answers_hold_no_text(lines, problem):
    assert problem.text not in json.dumps(lines)


def test_a_half_follows_from_the_texts_name():
    assert (half_of(digest_of("a")), half_of(digest_of("b"))) == ("choose", "sealed")


@pytest.fixture
def gsm8k(tmp_path):
    """Problems of both halves."""
    file = tmp_path / "gsm8k.jsonl"
    problems_of_file = [json.dumps(word_problem(broken)) for broken in (187, 190, 196, 198, 199)]
    file.write_text("\n".join(problems_of_file), encoding="utf-8")
    return file


def scored_texts(folder: Path) -> list[str]:
    """The digests of the texts whose right calls are scored."""
    lines = map(json.loads, (folder / "problems.jsonl").read_text(encoding="utf-8").splitlines())
    return [line["text"] for line in lines if line["label"] == "right"]


def test_a_half_of_a_set_is_scored(tiny_gpt2_dir, gsm8k, tmp_path):
    model = load_to_score(Settings(), str(tiny_gpt2_dir))
    score_sets(model, {"problems": gsm8k}, tmp_path, half="sealed")
    assert {half_of(digest) for digest in scored_texts(tmp_path)} == {"sealed"}


def test_a_set_continues_where_it_was_killed(tiny_gpt2_dir, gsm8k, tmp_path):
    model = load_to_score(Settings(), str(tiny_gpt2_dir))
    score_sets(model, {"problems": gsm8k}, tmp_path, half="choose", at_most=1)
    first = scored_texts(tmp_path)
    score_sets(model, {"problems": gsm8k}, tmp_path, half="choose")
    assert scored_texts(tmp_path)[:1] == first
    assert len(set(scored_texts(tmp_path))) == len(scored_texts(tmp_path)) > 1


@pytest.fixture
def source(gsm8k, monkeypatch):
    """Arms are trained on three of the problems."""
    monkeypatch.setattr(LabelledProblems, "texts", 3)
    return LabelledProblems(gsm8k)


def test_no_seed_is_tested_with_a_problem_that_arms_are_trained_on(source):
    trained = {item.fact for item in source.training(3, 0)}
    assert not trained & {item.fact for item in source.fresh(2, 0, [])}


def test_all_seeds_are_trained_on_the_same_problems(source):
    assert source.training(3, 0) == source.training(3, 1)


@pytest.fixture
def records(gsm8k, lines, tmp_path, monkeypatch):
    """The problems with the scored calls of one of them."""
    write_lines(tmp_path / "labelled-problems.jsonl.bz2", lines)
    monkeypatch.setattr(labelled_texts, "ANSWERS", tmp_path)
    plan = StudyPlan(study="problems", file=str(gsm8k), texts=5)
    write_labelled_records(LabelledProblems(gsm8k), plan, tmp_path / "calls.jsonl")
    return [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()]


def test_a_text_that_was_not_scored_has_no_call(records, lines):
    assert sorted(len(record["calls"]) for record in records) == [0, 0, 0, 0, len(lines)]


def test_a_scored_call_has_the_result_of_another_text_beside_its_own(records):
    calls = [call for record in records for call in record["calls"]]
    assert all(call["other_result"] != call["result"] for call in calls)


def test_a_call_after_its_numbers_may_be_released(records):
    last = max(
        (call for record in records for call in record["calls"]), key=lambda call: call["position_char"]
    )
    assert not last["input_only_after"]


def test_a_study_of_labelled_calls_has_no_other_file_of_calls(gsm8k, tmp_path):
    seed = tmp_path / "problems" / "seed-0"
    StudyPlan(study="problems", file=str(gsm8k), texts=5, arms=()).write(seed)
    (seed / "calls.jsonl").touch()
    gather(tmp_path / "problems", tmp_path / "answers")
    assert [file.name for file in (tmp_path / "answers").iterdir()] == ["problems.jsonl.bz2"]


@pytest.fixture
def passages(tmp_path, monkeypatch):
    """A text that arms are trained on, and texts of other articles."""
    monkeypatch.setattr(LabelledFacts, "texts", 1)
    articles = [
        {
            "wikipedia_title": title,
            "text": [title, f"{title} is a film that was directed by {name} in Rome. {name} liked it."],
        }
        for title, name in (("Ash", "Ada Lee"), ("Elm", "Bo Ray"), ("Oak", "Cy Dow"))
    ]
    articles.append({"wikipedia_title": "Yew", "text": ["Yew", "It was directed by Di Fox in Rome."]})
    file = tmp_path / "passages.jsonl"
    file.write_text("\n".join(map(json.dumps, articles)), encoding="utf-8")
    return LabelledFacts(file)


def test_a_fact_whose_article_is_not_named_before_it_is_not_asked_for(passages):
    with pytest.raises(UsageError, match="found 2"):
        passages.fresh(3, 0, [])


def test_no_seed_is_tested_with_a_fact_of_an_article_that_arms_are_trained_on(passages):
    trained = {item.fact for item in passages.training(1, 0)}
    assert not trained & {item.fact for item in passages.fresh(2, 0, [])}


def test_the_table_answers_a_right_call_with_the_fact(passages, tools_folder):
    passages.write_tool(tools_folder)
    settings = with_tools(Settings(), tools_folder)
    right = passages.labelled()[0].right
    runner = get_tool("Articles").open(settings, lambda: pytest.fail("no model is asked"))
    assert runner.run([right.call.input])[0].results == (right.result,)
