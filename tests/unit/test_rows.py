"""The row study draws facts that no model knows, changes the table between questions, and counts what follows."""

import json
import sqlite3
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from studies import rows
from studies.row_figures import BAR, BARS, QUESTIONS, Count, RowAnswers
from studies.rows import CALLS, PLAIN, Facts, RowPlan, gather_rows, questions, run_rows, write_table
from toolformer_ops.config import Settings
from toolformer_ops.errors import NoResultError, UsageError
from toolformer_ops.local.demo.mountains import DATABASE, MOUNTAINS
from toolformer_ops.records import content_uuid
from toolformer_ops.release.format import ReleasedCall, ReleasedText

PLAN = RowPlan(rows=24, texts=8, asked=8, asked_of_texts=8, changed=8, deleted=4, steps=1, batch=2)
FACTS = Facts.drawn(PLAN)


class TableReader:
    """Stands for a model that says what the table says, and without calls what it said at first."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, prompts: Any, decoding: Any) -> list[Any]:
        with sqlite3.connect(self._folder / DATABASE) as database:
            selected = database.execute("select name, height, first_climbed from mountains").fetchall()
        database.close()
        values = {name: {"height": height, "first_climbed": year} for name, height, year in selected}
        written = []
        for prompt in prompts:
            fact = next(fact for fact in FACTS.every if fact.prompt == prompt.text)
            row = values.get(fact.name, {})
            number = row.get(fact.column) if decoding.call_start_rank else fact.value
            text = "" if number is None else f" {number} and more"
            written.append(SimpleNamespace(text=text, without_calls=text, calls=()))
        return written


@pytest.fixture
def answers(tmp_path):
    """What the reader of the table answers as the arm with calls."""
    write_table(tmp_path, FACTS.every)
    reader: Any = TableReader(tmp_path)
    return RowAnswers(questions(reader, PLAN, CALLS, FACTS, FACTS.of_texts, tmp_path))


def test_a_seed_draws_the_same_facts():
    assert Facts.drawn(PLAN) == FACTS != Facts.drawn(replace(PLAN, seed=1))


def test_no_two_rows_have_a_name():
    assert len({fact.name for fact in FACTS.every}) == PLAN.rows


def test_no_text_has_a_form_that_is_held_out():
    assert not any(fact.held_out for fact in FACTS.of_texts)


def test_half_of_the_rows_without_a_text_are_asked_for_in_new_forms():
    assert sum(fact.held_out for fact in FACTS.fresh) == len(FACTS.fresh) / 2


def test_a_prompt_ends_before_the_value():
    for fact in FACTS.every:
        assert fact.text.startswith(f"{fact.prompt} {fact.value}")


def test_a_changed_value_is_another():
    assert all(fact.value != fact.other_value for fact in FACTS.every)


COUNTS = (Count(8, 8), Count(4, 4), Count(8, 8), Count(8, 8), Count(0, 8), Count(0, 4), Count(4, 4))
"""By question, of a model that says what the table says."""


@pytest.mark.parametrize("number", range(len(QUESTIONS)))
def test_a_model_that_reads_the_table_follows_it(answers, number):
    assert answers.count(CALLS, QUESTIONS[number].name) == COUNTS[number]


@pytest.mark.usefixtures("answers")
def test_the_table_is_whole_after_the_questions(tmp_path):
    with sqlite3.connect(tmp_path / DATABASE) as database:
        assert database.execute("select count(*) from mountains").fetchall() == [(PLAN.rows,)]
    database.close()


def test_an_arm_without_calls_is_counted_on_the_rows_that_the_other_one_is_asked_for(tmp_path):
    write_table(tmp_path, FACTS.every)
    reader: Any = TableReader(tmp_path)
    lines = questions(reader, PLAN, CALLS, FACTS, FACTS.of_texts, tmp_path)
    lines += questions(reader, PLAN, PLAIN, FACTS, FACTS.of_texts, tmp_path)
    assert RowAnswers(lines).count(PLAIN, "del_on") == Count(4, 4)


def test_the_picture_has_a_bar_for_each_answer(answers):
    assert answers.picture().count(f'height="{BAR}"') == len(BARS)


def test_a_wrong_answer_behind_a_call_without_a_result_is_counted():
    line = {"line": "answer", "arm": CALLS, "table": "full", "in_texts": False, "number": 1.0, "value": 2}
    answers = RowAnswers(
        [{**line, "result": None}, {**line, "result": "1"}, {**line, "result": None, "value": 1}]
    )
    assert answers.wrong_without_result() == Count(1, 2)


def released(texts: list[str]) -> list[ReleasedText]:
    """The texts, each with the call before its value."""
    texts_with_calls = []
    for fact, text in zip(FACTS.of_texts, texts, strict=True):
        call = ReleasedCall(
            call_id=str(content_uuid(text)),
            tool=MOUNTAINS,
            input=f"SELECT {fact.column} FROM mountains WHERE name = '{fact.name}'",
            result=str(fact.value),
            position_char=len(fact.prompt),
            position_probability=None,
            loss_without_call=2.0,
            loss_without_result=2.0,
            loss_with_result=1.0,
            loss_reduction=1.0,
            sampling_recipe_id="study",
            execution_recipe_id="study",
            scoring_recipe_id="study",
        )
        texts_with_calls.append(ReleasedText.of(content_uuid(text), text, [call], None))
    return texts_with_calls


@pytest.fixture
def with_calls(monkeypatch):
    """All texts have a kept call, and so few are enough."""
    monkeypatch.setattr(rows, "annotated_texts", lambda _, texts: released(texts))
    monkeypatch.setattr(rows, "FEWEST_TEXTS", 8)


@pytest.mark.usefixtures("tools_folder")
def test_fewer_than_thirty_texts_train_nothing(tmp_path, tiny_gpt2_dir, monkeypatch):
    monkeypatch.setattr(rows, "annotated_texts", lambda _, texts: released(texts))
    with pytest.raises(NoResultError, match="expected 30 texts with a kept call, found 8 of 8"):
        run_rows(Settings(), str(tiny_gpt2_dir), PLAN, tmp_path / "seed-0")


@pytest.mark.slow
@pytest.mark.usefixtures("with_calls", "tools_folder")
def test_a_seed_of_a_tiny_model_has_an_answer_a_question(tmp_path, tiny_gpt2_dir):
    run_rows(Settings(), str(tiny_gpt2_dir), PLAN, tmp_path / "seed-0")
    gathered = gather_rows(tmp_path, tmp_path / "answers")
    answers = RowAnswers.read(gathered.parent)
    assert [answers.count(CALLS, question.name).every for question in QUESTIONS] == [8, 4, 8, 8, 8, 4, 4]


def test_a_folder_of_another_plan_is_refused(tmp_path):
    (tmp_path / "plan.json").write_text(json.dumps({"seed": 7}))
    with pytest.raises(UsageError, match="expected a folder of this plan"):
        run_rows(Settings(), "", PLAN, tmp_path)


def test_a_study_without_a_seed_is_refused(tmp_path):
    with pytest.raises(NoResultError, match="expected seeds with answers"):
        gather_rows(tmp_path, tmp_path)
