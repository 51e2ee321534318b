"""The numbers are those of data/small_annotation.sql, worked out by hand."""

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from tests.run_sql import run_sql
from toolformer_ops.storage.postgres import database


def test_a_threshold_of_its_own_gets_a_row_of_its_own(annotated):
    counts = "select threshold, is_keep_threshold, calls from threshold_counts where run_id = 'r1' and tool = :tool order by 1"
    run_sql(annotated, "update run_tools set keep_threshold = 0.25 where run_id = 'r1' and tool = 'Calendar'")
    # A reduction of 0.375, below the lowest of the usual thresholds.
    run_sql(
        annotated,
        "update call_losses set loss_with_result = loss_with_result + 0.125 where scoring_recipe_id = 'a2'",
    )
    of_calendar = [(0.25, True, 1), (0.5, False, 0), (1.0, False, 0), (2.0, False, 0)]
    assert run_sql(annotated, counts, tool="Calendar") == of_calendar
    # Counted is from exactly prune_below on: 1.25 and 2.375 reach 1.0, and below it not all calls were
    # computed.
    run_sql(
        annotated,
        "update run_tools set prune_below = 1.0, keep_threshold = 2.0 where run_id = 'r1' and tool = 'Calculator'",
    )
    assert run_sql(annotated, counts, tool="Calculator") == [(1.0, False, 2), (2.0, True, 1)]


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ({"r1": "success", "r2": "success"}, "r2"),
        ({"r1": "success", "r2": "failed"}, "r1"),
        ({"r1": "failed", "r2": "failed"}, None),
    ],
)
def test_an_empty_id_is_the_newest_run_that_ended_well(annotated, states, expected):
    with annotated.connect() as connection:  # is rolled back
        connection.execute(text("update annotation_runs set state = 'failed', finished_at = now()"))
        runs = connection.execute(
            text("select run_id from annotation_runs order by run_id limit 2")
        ).scalars()
        names = dict(zip(("r1", "r2"), runs, strict=True))
        for age, name in enumerate(("r2", "r1")):
            ended = "state = :state, finished_at = now() - make_interval(days => :age)"
            values = {"state": states[name], "age": age, "run": names[name]}
            connection.execute(text(f"update annotation_runs set {ended} where run_id = :run"), values)
        newest = connection.execute(text("select run_or_newest('')")).scalar()
    assert newest == (names[expected] if expected else None)


def test_the_text_around_a_call_is_120_characters_at_most(annotated):
    content = "".join(f"{number:05d}" for number in range(50))  # 250 characters
    run_sql(
        annotated, "update documents set text = :content where document_id::text like 'd3%'", content=content
    )
    for position, before, after in ((0, 0, 120), (119, 119, 120), (200, 120, 50), (250, 120, 0)):
        move = "update candidate_calls set position_char = :position where call_text = 'Calendar()'"
        run_sql(annotated, move, position=position)
        [row] = run_sql(annotated, "select text_before, text_after from scored_calls where tool = 'Calendar'")
        assert tuple(row) == (content[position - before : position], content[position : position + after])


def test_kept_calls_that_reach_the_runs_threshold_say_whether_they_may_be_released(annotated):
    # Losses that do not count are in no view even if they are stored.
    not_finite = "loss_without_call = 'NaN', loss_without_result = 'NaN', loss_with_result = 0"
    run_sql(annotated, f"update call_losses set {not_finite} where reason = 'loss_not_finite'")
    kept = "select left(call_id::text, 2), releasable from kept_calls where run_id = :run order by 1"
    assert run_sql(annotated, kept, run="r1") == [("c1", True), ("c4", True), ("c5", False)]
    assert run_sql(annotated, kept, run="r2") == [("c1", True), ("c4", True), ("c6", True)]


def test_kept_calls_are_joined_with_losses_by_their_variant(annotated):
    joined = """
        select count(*) from kept_calls kept
        join call_losses loss on loss.scoring_recipe_id = kept.scoring_recipe_id
         and loss.document_id = kept.variant_uuid and loss.call_id = kept.call_uuid
        where run_id = 'r1'
    """
    [[count]] = run_sql(annotated, joined)
    assert count == 3


WITH_PLACEBOS = """
insert into recipes (recipe_id, stage, tool, definition) values ('eeeeeeeeeeeeeeee', 'placebo', 'Calculator', '{}');
insert into placebo_pools
    (placebo_recipe_id, scoring_recipe_id, corpus_id, placebos, placebo_sample, documents, calls, sample_share)
values ('eeeeeeeeeeeeeeee', 'a1', 'c000000000000000', 2, 0, 1, 1, 0);
create table placebo_losses_of_views partition of placebo_losses for values in ('eeeeeeeeeeeeeeee');
insert into placebo_losses
    (placebo_recipe_id, document_id, call_id, number, source, is_sampled, loss_with_result, reduction_bound, information)
select 'eeeeeeeeeeeeeeee', document_id, call_id, number, 0, false, 1, 1, information
from (values ('c1', 1, 0.25), ('c1', 2, 0.75), ('c1', 3, null), ('c4', 1, 0.25), ('c4', 2, 0.5)) placebo (call, number, information)
join candidate_calls on left(call_id::text, 2) = placebo.call;
create table call_information_of_views partition of call_information for values in ('eeeeeeeeeeeeeeee');
insert into call_information (placebo_recipe_id, document_id, call_id, information, placebos)
select placebo_recipe_id, document_id, call_id, avg(information), count(information) from placebo_losses group by 1, 2, 3;
update run_tools set placebo_recipe_id = 'eeeeeeeeeeeeeeee', keep_threshold = 0.625 where run_id = 'r1' and tool = 'Calculator';
"""


BY_PROBABILITY = """
update call_losses loss
set probability_without = 0.25, probability_with = scored.probability
from (values ('c1', 0.75), ('c4', 0.5), ('c5', 0.5)) scored (call, probability)
where scoring_recipe_id = 'a1' and left(call_id::text, 2) = scored.call;
update call_information
set probability = scored.probability
from (values ('c1', 0.5), ('c4', 0.125)) scored (call, probability)
where left(call_id::text, 2) = scored.call;
update run_tools set keep_rule = 'probability', prune_below = 0, keep_threshold = {} where run_id = 'r1' and tool = 'Calculator';
"""


@pytest.mark.parametrize(
    ("rule", "kept", "counts"),
    [
        # The reductions are 1.25 (c1), 2.375 (c4) and, exactly at the run's threshold, 0.625 (c5).
        ("", ["c1", "c4", "c5"], [(0.5, 3), (0.625, 3), (1.0, 2), (2.0, 1)]),
        # 0.75 / max(0.25, 0.5) for c1, a gain of 0.41; 0.5 / max(0.25, 0.125) for c4, 0.69; c5 has no placebo.
        (BY_PROBABILITY.format(0.4), ["c1", "c4"], [(0.1, 2), (0.4, 2), (0.5, 1)]),
        (BY_PROBABILITY.format(0.7), [], [(0.1, 2), (0.5, 1), (0.7, 0)]),
    ],
)
def test_a_kept_call_gains_enough_by_the_rule_of_its_run(annotated, rule, kept, counts):
    with database.transaction(annotated) as connection, database.raw_cursor(connection) as cursor:
        cursor.execute(WITH_PLACEBOS + rule)
    of_tool = "where run_id = 'r1' and tool = 'Calculator' order by 1"
    assert [
        row[0] for row in run_sql(annotated, f"select left(call_id::text, 2) from kept_calls {of_tool}")
    ] == kept
    assert run_sql(annotated, f"select threshold, calls from threshold_counts {of_tool}") == counts


def test_yield_accounts_for_every_paragraph_sample_or_call(annotated):
    """The losses are those of the example `04_where_do_calls_get_lost`."""
    found = run_sql(
        annotated,
        "select stage, reason, count from yield_by_stage where run_id = 'r1' and tool = 'Calculator' and not is_loss",
    )
    assert {stage: {reason: count for of, reason, count in found if of == stage} for stage, *_ in found} == {
        "filter": {"texts": 3, "paragraphs": 3, "kept_paragraphs": 2},
        "sample": {"paragraphs": 2, "positions": 4, "samples": 16, "candidates": 6},
        "execute": {"calls": 6, "inputs": 5, "executed": 5, "from_cache": 0, "with_result": 5},
        "score": {"calls": 6, "scored": 4},
        "keep": {"kept": 3, "kept_texts": 2},
    }


ENTERS_AND_LEAVES = {
    "filter": ("paragraphs", "kept_paragraphs"),
    "sample": ("samples", "candidates"),
    "execute": ("calls", "with_result"),
    "score": ("calls", "scored"),
}


@pytest.mark.parametrize("run_id", ["r1", "r2"])
def test_what_enters_a_stage_leaves_it_for_the_next_or_is_a_loss(annotated, run_id):
    rows = run_sql(
        annotated,
        "select tool, stage, reason, is_loss and reason <> 'texts_without_position', count from yield_by_stage where run_id = :run",
        run=run_id,
    )
    count = {(tool, stage, reason): number for tool, stage, reason, _, number in rows}
    for tool, stage in {row[:2] for row in rows if row[1] in ENTERS_AND_LEAVES}:
        enters, leaves = (count[tool, stage, reason] for reason in ENTERS_AND_LEAVES[stage])
        losses = sum(number for *of, _, is_loss, number in rows if of == [tool, stage] and is_loss)
        assert enters == leaves + losses > 0
    for tool in {tool for tool, stage, _ in count if stage == "score"}:
        assert (
            count[tool, "sample", "candidates"]
            == count[tool, "execute", "calls"]
            == count[tool, "score", "calls"]
        )
        below = sum(number for *of, _, is_loss, number in rows if of == [tool, "keep"] and is_loss)
        assert count[tool, "score", "scored"] == count[tool, "keep", "kept"] + below > 0


def test_a_text_in_which_no_call_starts_is_counted(annotated):
    none = '{"paragraphs": 1, "positions": 0}'
    of_text = "where stage = 'sample' and document_id::text like 'd1%'"
    run_sql(annotated, f"update stage_ledger set counts = cast(:none as jsonb) {of_text}", none=none)
    counted = "select tool, is_loss, count from yield_by_stage where run_id = 'r1' and reason = 'texts_without_position'"
    assert run_sql(annotated, f"{counted} and count > 0") == [("Calculator", True, 1)]


def test_the_best_kept_calls_are_the_first_kept_calls_of_the_run(annotated):
    columns = "document_id, call_id, text_before, call_text, result, text_after, gain, releasable"
    found = 0
    for run, tool in run_sql(annotated, "select run_id, tool from run_tools order by 1, 2"):
        for how_many in (1, 2, 100):
            best = run_sql(
                annotated,
                f"select {columns} from best_kept_calls(:run, :tool, :how_many)",
                run=run, tool=tool, how_many=how_many,
            )  # fmt: skip
            kept = f"select {columns} from kept_calls where run_id = :run and tool = :tool order by gain desc, call_id"
            assert best == run_sql(annotated, kept, run=run, tool=tool)[:how_many]
            found += len(best)
    assert found > 6
    with pytest.raises(DBAPIError, match="expected a started run with Calculator, found none"):
        run_sql(annotated, "select * from best_kept_calls('r0', 'Calculator', 1)")


WITH_WEIGHTS = """
insert into recipes (recipe_id, stage, tool, definition) values
    ('aaaaaaaaaaaaaaaa', 'score', 'Calculator',
     '{"weights": [0.3333333333333333, 0.26666666666666666, 0.2, 0.13333333333333333, 0.06666666666666667]}');
create table call_losses_of_views partition of call_losses for values in ('aaaaaaaaaaaaaaaa');
insert into call_losses
    (scoring_recipe_id, document_id, call_id, result, loss_without_call, loss_without_result, loss_with_result,
     token_log_probabilities, scored_tokens)
select 'aaaaaaaaaaaaaaaa', document_id, call_id, result, loss_without_call, loss_without_result, loss_with_result,
       token_log_probabilities, array[' 2', '9', '%', ')', ' passed']
from call_losses
where scoring_recipe_id = 'a1' and reason is null;
update run_tools set scoring_recipe_id = 'aaaaaaaaaaaaaaaa' where run_id = 'r1' and tool = 'Calculator'
"""


@pytest.fixture
def weighted(annotated):
    """The losses of r1's Calculator under a recipe that names the paper's weights."""
    for statement in WITH_WEIGHTS.split(";\n"):
        run_sql(annotated, statement)
    return annotated


def test_the_terms_of_a_call_are_a_row_for_each_token(weighted):
    terms = (
        "select place, token, round(weight::numeric, 3) as weight, with_result, without_call_full_context from call_tokens "
        "where run_id = 'r1' and tool = 'Calculator' and left(call_id::text, 2) = 'c5' order by place"
    )
    found = [(row.place, row.token, float(row.weight), *row[3:]) for row in run_sql(weighted, terms)]
    assert found == [
        (1, " 2", 0.333, -0.25, None),
        (2, "9", 0.267, -0.25, None),
        (3, "%", 0.2, -1.5, None),
        (4, ")", 0.133, -1.5, None),
        (5, " passed", 0.067, -1.5, None),
    ]


def test_a_loss_is_minus_the_weighted_sum_of_the_terms_of_its_call(weighted):
    sums = (
        "select left(call_id::text, 2), max(loss_with_result), round(cast(-sum(weight * with_result) as numeric), 6) "
        "from scored_calls join call_tokens using (run_id, tool, document_id, call_id) "
        "where run_id = 'r1' and tool = 'Calculator' group by call_id order by 1"
    )
    found = [(call, loss, float(by_terms)) for call, loss, by_terms in run_sql(weighted, sums)]
    assert found == [("c1", 0.5, 0.5), ("c2", 2.25, 2.25), ("c4", 0.5, 0.5), ("c5", 0.75, 0.75)]


def test_no_view_holds_an_array_of_arrays(annotated):
    arrays = (
        "select c.relname, a.attname from pg_attribute a join pg_class c on c.oid = a.attrelid "
        "where c.relkind = 'v' and c.relnamespace = current_schema::regnamespace and a.attnum > 0 "
        "and a.atttypid = 'real[]'::regtype"
    )
    assert run_sql(annotated, arrays) == []


def test_a_run_is_one_row_of_facts(annotated):
    facts = (
        "select run_id, state, tools, texts, kept_calls, release_id, model_id from run_facts "
        "where run_id in ('r1', 'r2') order by run_id"
    )
    assert run_sql(annotated, facts) == [
        ("r1", "running", "Calculator, Calendar, WikiSearch", 3, 3, None, None),
        ("r2", "success", "Calculator", 4, 3, "release-2", "model-2"),
    ]


def test_the_facts_of_a_run_hold_how_long_it_took(annotated):
    cost = """update annotation_runs set cost = '{"total": {"device_hours": 0.5}}', estimate = '{"total": {"device_hours": 2}}'"""
    run_sql(annotated, f"{cost} where run_id = 'r2'")
    facts = "select seconds, device_hours, device_hours_expected from run_facts where run_id = 'r2'"
    assert run_sql(annotated, facts) == [(3600.0, 0.5, 2.0)]


IDS_OF_TABLES = {
    "run_documents",
    "run_tool_documents",
}
"""Views that only join tables: their ids are those of the tables."""


def test_ids_of_views_are_texts_beside_those_for_joins(annotated):
    uuids = run_sql(
        annotated,
        "select c.relname, a.attname from pg_attribute a join pg_class c on c.oid = a.attrelid "
        "where c.relkind = 'v' and c.relnamespace = current_schema::regnamespace and a.attnum > 0 "
        "and a.atttypid = 'uuid'::regtype order by 1, 2",
    )
    found = {(row.relname, row.attname) for row in uuids if row.relname not in IDS_OF_TABLES}
    with_both = {"candidates", "kept_calls", "scored_calls"}
    assert found == {(view, f"{of}_uuid") for view in with_both for of in ("call", "document", "variant")}


@pytest.mark.parametrize("view", ["candidates", "scored_calls", "kept_calls"])
def test_both_forms_of_an_id_are_the_same(annotated, view):
    differing = "cast(document_uuid as text) <> document_id or cast(call_uuid as text) <> call_id"
    counts = run_sql(annotated, f"select count(*), count(*) filter (where {differing}) from {view}")
    assert counts[0][0] > 0
    assert counts[0][1] == 0


@pytest.mark.parametrize("view", ["scored_calls", "kept_calls", "candidates", "retrieved", "call_tokens"])
def test_the_function_about_a_run_has_the_views_rows_of_the_run(weighted, view):
    runs = [run for (run,) in run_sql(weighted, "select run_id from annotation_runs order by 1")]
    rows = 0
    for run in runs:
        of_run = run_sql(weighted, f"select * from {view}_of(:run) order by 1, 2, 3, 4, 5", run=run)
        assert of_run == run_sql(
            weighted, f"select * from {view} where run_id = :run order by 1, 2, 3, 4, 5", run=run
        )
        rows += len(of_run)
    assert rows > 0


def test_the_function_about_a_run_refuses_an_unknown_run(annotated):
    with pytest.raises(DBAPIError, match="run r0: expected a run that was started, found none"):
        run_sql(annotated, "select * from candidates_of('r0')")


def test_the_function_about_a_run_takes_the_newest_without_a_name(annotated):
    newest = run_sql(annotated, "select run_or_newest('')")
    assert run_sql(annotated, "select distinct run_id from candidates_of()") == newest


def test_the_function_about_a_run_has_no_rows_before_the_first_run_ended(engine):
    assert run_sql(engine, "select * from candidates_of()") == []
