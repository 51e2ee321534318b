"""Which tools of a run have work: those whose rows no other run has checked as they are."""

import pytest

from tests.annotated_runs import AnnotatedRun, recipe_id
from toolformer_ops.config import Settings
from toolformer_ops.errors import UsageError
from toolformer_ops.stages import planning
from toolformer_ops.stages.planning import filter_shard_count, plan_shards, tools_to_do

TOOLS = {"Calculator": 0.5, "QA": 1.0}
AGAIN = """
insert into annotation_runs
select (jsonb_populate_record(r, jsonb_build_object('run_id', cast(:run_id as text)) || cast(:changes as jsonb))).*
from annotation_runs r where run_id = 'run-1'
"""
SAME_TOOLS = """
insert into run_tools select (jsonb_populate_record(t, jsonb_build_object('run_id', cast(:run_id as text)))).* from run_tools t
where run_id = 'run-1'
"""
CHECKED = "insert into quality_results (run_id, subject, check_name, severity, success) values "


def run_again(run: AnnotatedRun, run_id: str, changes: str, statement: str) -> None:
    """A later run that asks for the same but for `changes` to its row, and what `statement` does."""
    run.change(AGAIN, run_id=run_id, changes=changes)
    run.change(SAME_TOOLS, run_id=run_id)
    if statement:
        run.change(statement)


BOTH = ["Calculator", "QA"]
BOUNDS = '{"parameters": {"corpus": "c", "model": "m", "min_kept_texts": 3, "placebos": 0}}'
WITH_PLACEBOS = (
    """update annotation_runs set parameters = parameters || '{"placebos": 3}' where run_id = 'later-6'"""
)
LATER_RUNS: tuple[tuple[str, str, list[str]], ...] = (
    ("{}", "", []),
    ('{"corpus_version": 2}', "", BOTH),
    ('{"ordinal_limit": 5}', "", BOTH),
    (BOUNDS, "", BOTH),
    ("{}", "update run_tools set scoring_recipe_id = 'new' where run_id = 'later-4' and tool = 'QA'", ["QA"]),
    ("{}", "update run_tools set keep_threshold = 0.7 where run_id = 'later-5' and tool = 'QA'", ["QA"]),
    # No pool of placebos is drawn yet.
    ("{}", WITH_PLACEBOS, BOTH),
    ("{}", CHECKED + "('run-1', 'QA', 'some_call_is_kept', 'fail', false)", ["QA"]),
    ("{}", f"delete from stage_ledger where recipe_id = '{recipe_id('score', 'QA')}'", ["QA"]),
)
"""How a run differs from one that was checked, with a warning, what else happens, and which tools have work."""


def test_only_what_is_done_under_the_same_recipe_is_no_work(settings):
    run = AnnotatedRun(settings, TOOLS)
    run.add_text("Out of 1400 people, 400 passed, that is 29 %.")
    run.complete(*TOOLS)
    for tool, name, severity in (
        ("Calculator", "finite", "fail"),
        ("QA", "finite", "fail"),
        ("QA", "odd", "warn"),
    ):
        run.change(f"{CHECKED} ('run-1', '{tool}', '{name}', '{severity}', {severity == 'fail'})")
    first = tools_to_do(settings, "run-1")
    assert (first.tools, first.filter_shards) == (["Calculator", "QA"], ["0/1"])
    for number, (changes, statement, to_do) in enumerate(LATER_RUNS):
        run_again(run, f"later-{number}", changes, statement)
        assert tools_to_do(settings, f"later-{number}").tools == to_do
    with pytest.raises(UsageError, match="expected a started run, found 'none'"):
        tools_to_do(settings, "none")


def test_the_filters_shards_follow_the_slowest_filter_as_far_as_all_their_processes_are_worth_it():
    assert filter_shard_count([], 60.0, 64) == 1
    assert filter_shard_count([59.0], 60.0, 64) == 1
    assert filter_shard_count([240.0], 60.0, 64) == 4
    # Four filters of 0.1 s beside it: 240.4 s of work pay for 12 s of starting 5 processes a shard, of 1 s
    # each
    assert filter_shard_count([240.0, *[0.1] * 4], 60.0, 64) == 2
    assert filter_shard_count([2400.0, *[100.0] * 4], 60.0, 64) == 28
    # Where starting costs little, the slowest alone decides: shards of 60 s of it, though all together have
    # twice the work.
    assert filter_shard_count([240.0, 240.0], 60.0, 64, start_up_seconds=0.1) == 4
    assert filter_shard_count([10**6] * 5, 60.0, 64) == 64
    assert filter_shard_count([10**6] * 5, 60.0, 1024) == 1024


@pytest.fixture
def starts_at_once(monkeypatch):
    """No time is planned for the start of a process."""
    monkeypatch.setattr(planning, "START_UP_SECONDS", 0.0)


def shards_of_twenty_texts(settings: Settings, measured_by: str) -> int:
    """Into how many shards 20 unscored texts are split, after 10 s a text were measured in another recipe of a model."""
    run = AnnotatedRun(settings, {"Calculator": 0.5})
    texts = [run.add_text(f"Out of 1400 people, {number}00 passed.") for number in range(20)]
    decision = {
        "filter_recipe_id": recipe_id("filter", "Calculator"),
        "paragraph": 0,
        "start_char": 0,
        "kept": True,
    }
    run.write(
        "filter_decisions", *({**decision, "document_id": text.document_id, "end_char": 40} for text in texts)
    )
    run.change(
        "insert into micro_batches (run_id, tool, stage, recipe_id, documents, tokens, rows_written, seconds) "
        "values ('run-1', :tool, 'sample', 'of-another-prompt', 20, 200, 20, 200)",
        tool=measured_by,
    )
    return len(plan_shards(settings, "run-1", "Calculator"))


@pytest.mark.usefixtures("starts_at_once")
def test_a_recipe_without_measured_times_is_planned_by_those_of_its_tool_with_its_model(settings):
    assert shards_of_twenty_texts(settings, measured_by="Calculator") == 3  # 200 s, 60 s a shard or more


@pytest.mark.usefixtures("starts_at_once")
def test_times_of_another_tool_plan_nothing(settings):
    assert shards_of_twenty_texts(settings, measured_by="QA") == 1  # 40 s by the guess of 2 s a text


def test_filters_are_planned_by_what_documents_besides_starts_took_lately(settings):
    assert filter_shard_count([240.0], 60.0, 64, 6.0) == 2  # 5 % of 240 s are two starts of 6 s
    run = AnnotatedRun(settings, TOOLS)
    for number in range(3):
        run.add_text(f"Out of 1400 people, {number}00 passed.")
    lately = (
        "insert into micro_batches (run_id, tool, stage, recipe_id, documents, rows_written, seconds, start_up_seconds) "
        "values ('run-1', 'QA', 'filter', :recipe, 2, 2, 120, :start_up)"
    )
    for start_up, shards in ((None, ["0/3", "1/3", "2/3"]), (2.5, ["0/1"])):
        run.change(lately, recipe=recipe_id("filter", "QA"), start_up=start_up)
        # 3 documents of 60 s; 5 % of them are 9 s, and a start of two filters takes 5 s.
        assert tools_to_do(settings, "run-1").filter_shards == shards
