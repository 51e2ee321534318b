"""Retention: what nothing uses is dropped, and what anything uses stays."""

import copy
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.annotated_runs import STAGES, AnnotatedRun, recipe_id, release
from toolformer_ops.__main__ import app
from toolformer_ops.config import Settings
from toolformer_ops.errors import UsageError
from toolformer_ops.storage.history.forgetting import withdraw
from toolformer_ops.storage.history.retention import Unused, Uses, drop_unused, say_done_with, unused
from toolformer_ops.storage.postgres import database, partitions

SUM = "Out of 1400 people, 400 passed, that is 29 %."
NOW = ["retention", "--older-than", "0"]
CALCULATOR = [(stage, recipe_id(stage, "Calculator")) for stage in STAGES]


class Nights:
    """An old run with the Calculator, and a newer run over the same corpus with the Calendar; both successful."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.old = AnnotatedRun(settings, {"Calculator": 0.5}, "old")
        document = self.old.add_text(SUM)
        self.old.add_call("Calculator", document, " 29", "400 / 1400", "0.29", saves=1.25)
        self.old.complete("Calculator")
        self.new = AnnotatedRun(settings, {"Calendar": 0.5}, "new")
        self.new.documents = self.old.documents
        self.new.add_call("Calendar", document, " 29", "", "Today", saves=1.25)
        self.new.complete("Calendar")
        self.change, self.rows = self.old.change, self.old.rows
        self.change(
            f"update annotation_runs set corpus_id = '{self.old.corpus_id}', state = 'success', finished_at = now(), "
            "numbers_stored_at = now(), started_at = now() - case run_id when 'new' then interval '1 day' "
            "else interval '2 days' end"
        )
        self.change("insert into call_results (tool, tool_version, input_key, input, results) "
                    "select tool, '1', gen_random_uuid(), 'asked', '{x}' from run_tools")  # fmt: skip
        for run, tool in ((self.old, "Calculator"), (self.new, "Calendar")):
            for stage in STAGES:
                self.change(
                    "insert into finished_work (recipe_id, corpus_id, version, ordinal_limit, run_id) "
                    f"values ('{recipe_id(stage, tool)}', '{self.old.corpus_id}', 1, 2147483647, '{run.run_id}')"
                )
                self.change(
                    "insert into recipes (recipe_id, stage, tool, definition) "
                    f"values ('{recipe_id(stage, tool)}', '{stage}', '{tool}', '{{}}')"
                )

    def in_copy(self, settings: Settings) -> "Nights":
        nights = copy.copy(self)
        nights.settings = settings
        nights.old, nights.new = self.old.in_copy(settings), self.new.in_copy(settings)
        nights.change, nights.rows = nights.old.change, nights.old.rows
        return nights

    def unused(self, uses: Uses | None = None) -> list[tuple[str, str]]:
        return [(recipe.stage, recipe.recipe_id) for recipe in unused(self.settings, uses or Uses()).recipes]


write = Nights


@pytest.fixture
def nights(settings, written):
    return written.value.in_copy(settings)


def test_only_the_recipes_of_an_old_run_without_a_release_are_dropped(nights):
    numbers = "select run_id, state, tools from annotation_runs order by 1"
    before = nights.rows(numbers)
    assert nights.unused() == CALCULATOR

    dropped = drop_unused(nights.settings, Uses())

    assert [recipe.recipe_id for recipe in dropped.recipes] == [recipe for _, recipe in CALCULATOR]
    assert all(recipe.bytes > 0 for recipe in dropped.recipes)
    assert [(result.tool, result.results) for result in dropped.results] == [("Calculator", 1)]
    for table in ("candidate_calls", "call_losses", "documents"):
        assert nights.rows(f"select count(*) from {table}") == [(1,)], table
    calendar = {recipe_id(stage, "Calendar") for stage in STAGES}
    # Without this a later run under the recipe would take its documents for finished.
    assert {row[0] for row in nights.rows("select recipe_id from finished_work")} == calendar
    assert {row[0] for row in nights.rows("select recipe_id from stage_ledger")} == calendar
    assert nights.rows("select filter_recipe_id from filter_decisions") == [
        (recipe_id("filter", "Calendar"),)
    ]
    assert nights.rows("select tool from call_results") == [("Calendar",)]
    assert nights.rows(numbers) == before
    assert nights.rows("select distinct tool from recipes where dropped_at is null") == [("Calendar",)]
    assert drop_unused(nights.settings, Uses()) == Unused(recipes=[], results=[], answers=[])
    # A dropped recipe can be used again.
    with database.transaction(nights.old.engine) as connection:
        for stage, recipe in CALCULATOR:
            partitions.ensure_partitions(connection, stage, recipe)
    nights.old.add_call("Calculator", nights.old.documents[0], " 29", "400 / 1400", "0.29", saves=1.25)
    assert nights.rows("select tool from scored_calls where run_id = 'old'") == [("Calculator",)]


def test_a_release_keeps_its_recipes_until_it_is_withdrawn(nights):
    release_id = release(nights.settings, "old")
    assert nights.unused() == []
    withdraw(nights.settings, "release", release_id)
    assert nights.unused() == CALCULATOR


OLD = "update annotation_runs set {} where run_id = 'old'"

OF_POSTS, A_DAY_AGO = (
    OLD.format("schedule = 'posts'"),
    OLD.format("finished_at = now() - interval '36 hours'"),
)


@pytest.mark.parametrize(
    ("change", "uses", "stays"),
    [
        (OLD.format("state = 'running', finished_at = null"), Uses(), True),
        (OLD.format("corpus_id = '0123456789abcdef'"), Uses(), True),
        (OLD.format("model_identity = 'another@1'"), Uses(), True),
        ("update annotation_runs set state = 'failed' where run_id = 'new'", Uses(), True),
        (OLD.format("numbers_stored_at = null"), Uses(), True),
        (OF_POSTS, Uses(), True),
        (OF_POSTS, Uses(schedules=["posts", "wiki"]), True),
        (OF_POSTS, Uses(schedules=["wiki"]), False),  # the schedule's file is gone
        (A_DAY_AGO, Uses(older_than_days=2), True),
        (A_DAY_AGO, Uses(older_than_days=1), False),
    ],
)
def test_what_the_next_night_may_use_stays(nights, change, uses, stays):
    nights.change(change)
    unused_of_old = [recipe for recipe in nights.unused(uses) if recipe in CALCULATOR]
    assert unused_of_old == ([] if stays else CALCULATOR)


def test_a_recipe_that_a_run_began_to_use_meanwhile_stays(nights, monkeypatch):
    real = partitions.lock_partition

    def a_run_starts(connection: Any, table: str, recipe: str) -> None:
        if table == "call_losses":
            nights.change(
                "update annotation_runs set state = 'running', finished_at = null where run_id = 'old'"
            )
        real(connection, table, recipe)

    monkeypatch.setattr(partitions, "lock_partition", a_run_starts)
    dropped = drop_unused(nights.settings, Uses()).recipes
    assert ("score", recipe_id("score", "Calculator")) not in [
        (recipe.stage, recipe.recipe_id) for recipe in dropped
    ]
    assert nights.rows(f"select count(*) from partitions.call_losses_{recipe_id('score', 'Calculator')}") == [
        (1,)
    ]


def test_the_command_drops_only_with_yes(nights):
    assert "4 recipes would be dropped" in CliRunner().invoke(app, NOW).stdout
    assert nights.unused() == CALCULATOR
    assert "4 recipes dropped: " in CliRunner().invoke(app, [*NOW, "--yes"]).stdout
    assert nights.unused() == []


CALENDAR = [(stage, recipe_id(stage, "Calendar")) for stage in STAGES]


@pytest.mark.parametrize("name", ["no-such-model", "no-such-model@1", recipe_id("score", "Calendar")])
def test_what_a_person_is_done_with_is_needed_by_no_next_night(nights, name):
    assert CliRunner().invoke(app, ["retention", "--done", name]).exit_code == 0
    assert nights.unused() == CALCULATOR + CALENDAR


def test_a_run_that_starts_after_a_person_was_done_with_its_model_counts_again(nights):
    say_done_with(nights.settings, "no-such-model")
    nights.change("update annotation_runs set started_at = now(), finished_at = now() where run_id = 'new'")
    assert nights.unused() == CALCULATOR


def test_a_model_of_no_run_is_not_done_with(nights):
    with pytest.raises(UsageError, match=r"found 'another'\. Models are no-such-model@1;"):
        say_done_with(nights.settings, "another")


# Answers of proposers behind endpoints


@pytest.fixture
def asked(nights):
    """The sampling of the old run and that of the newer one each asked a proposer of its own, which answered once."""
    for proposer, tool in (("older@1", "Calculator"), ("newer@1", "Calendar")):
        sampling = recipe_id("sample", tool)
        nights.change(
            "insert into proposer_endpoints (proposer, model, api, licence, parameters) "
            f"values ('{proposer}', 'm', 'chat', 'MIT', '{{}}')"
        )
        nights.change(
            "insert into proposer_answers (request_key, proposer, document_id, reply) "
            f"select gen_random_uuid(), '{proposer}', document_id, '{{}}' from documents"
        )
        nights.change(
            f"update recipes set definition = '{{\"proposer\": \"{proposer}\"}}' where recipe_id = '{sampling}'"
        )
    return nights


ANSWERS = "select proposer from proposer_answers order by proposer"


def test_the_answers_of_a_proposer_go_with_the_recipe_that_asked_it(asked):
    [answers] = drop_unused(asked.settings, Uses()).answers
    assert (answers.proposer, answers.answers) == ("older@1", 1)
    assert asked.rows(ANSWERS) == [("newer@1",)]


def test_the_answers_of_a_proposer_stay_while_a_release_uses_its_calls(asked):
    release(asked.settings, "old")
    assert drop_unused(asked.settings, Uses()).answers == []
    assert asked.rows(ANSWERS) == [("newer@1",), ("older@1",)]


def test_the_command_names_the_answers_that_it_would_drop(asked):
    assert "answers of older@1: 1, " in CliRunner().invoke(app, NOW).stdout
    assert asked.rows(ANSWERS) == [("newer@1",), ("older@1",)]
