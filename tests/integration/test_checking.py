"""The quality gates: right data passes, and each check fails on data that break its claim, naming the row."""

import math
import re
import sys
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy import text as sql_text
from sqlalchemy.exc import DBAPIError

from tests.annotated_runs import AnnotatedRun, recipe_id, release
from tests.run_sql import run_sql
from toolformer_ops.audit import checking
from toolformer_ops.audit.checking import (
    CheckedTools,
    CheckResult,
    check_release,
    check_tool,
    check_tools,
    run_checks,
)
from toolformer_ops.audit.claims import all_claims, claims_of
from toolformer_ops.config import Settings
from toolformer_ops.errors import (
    DatabaseError,
    DatabaseUnreachableError,
    NoResultError,
    ObjectStoreError,
    ToolError,
    UsageError,
)
from toolformer_ops.release.format import ReleasedText, read_release, write_texts
from toolformer_ops.runs.claims import retry_failed
from toolformer_ops.stages.release import release_prefix
from toolformer_ops.stages.run_setup import finish_run
from toolformer_ops.storage.objects.publication import ObjectStore
from toolformer_ops.storage.postgres import database, queries

TEXT = "Out of 1400 people, 400 passed, that is 29 %."
TOOL = "Calculator"
CLAIMS = {claim.name: claim for claim in all_claims()}


@pytest.fixture
def run(settings):
    """Two texts, three calls of which two are kept, complete in all stages."""
    run = AnnotatedRun(settings, {TOOL: 0.5})
    _annotate(run)
    return run


def _annotate(run: AnnotatedRun) -> None:
    first, second = run.add_text(TEXT), run.add_text("Twice 21 is 42 and no more.")
    run.add_call(TOOL, first, " 29", "400 / 1400", "0.29", saves=1.25)
    run.add_call(TOOL, first, " people", "1 + 1", "2", saves=-1.0)
    run.add_call(TOOL, second, " 42", "2 * 21", "42", saves=2.0)
    run.complete(TOOL)
    for stage in ("filter", "sample", "execute", "score"):
        run.write(
            "recipes", {"recipe_id": recipe_id(stage, TOOL), "stage": stage, "tool": TOOL, "definition": "{}"}
        )
    run.change(
        "insert into call_results (tool, tool_version, input_key, input, results) "
        "select distinct 'Calculator', '1', input_key, effective_input, array['x'] from candidate_calls"
    )


def _failing(settings: Settings, run: AnnotatedRun) -> dict[str, str]:
    """Messages of the checks of `TOOL` that do not hold, by name, as they are stored; the error has each with its remedy."""
    with pytest.raises(NoResultError) as failed:
        check_tool(settings, run.run_id, TOOL)
    assert run.rows("select recipe_id from finished_work") == []  # the next run looks at these rows again
    stored = _stored(run, TOOL)
    for name, message in stored.items():
        claim = CLAIMS[name]
        assert (f"{name}: {message}. {claim.remedy}" in str(failed.value)) == (claim.severity == "fail")
    return stored


def _stored(run: AnnotatedRun, subject: str) -> dict[str, str]:
    failed = "select check_name, message from quality_results where not success and subject = :subject"
    return dict(map(tuple, run.rows(failed, subject=subject)))


def test_right_data_pass_every_check_with_results_that_are_stored(settings, run):
    run.change("update documents set text = text || ' [Calculator(1) gives 1]'")  # only looks like a call
    results = check_tool(settings, run.run_id, TOOL)
    assert all(result.success for result in results)
    by_name = {result.claim.name: result for result in results}
    assert list(by_name) == [claim.name for claim in claims_of("tool")]
    assert by_name["positions_lie_inside_the_text"].observed["rows"] == 3
    assert by_name["calls_removed_give_the_text_back"].observed["rows"] == 2
    assert by_name["every_document_is_in_the_ledger"].observed["rows"] == 2 * 4
    stored = "select check_name, success, message from quality_results order by check_name"
    assert run.rows(stored) == [(name, True, result.message) for name, result in by_name.items()]
    assert "altair.vegalite" not in sys.modules  # Great Expectations is imported without its charts


def test_a_check_that_is_repeated_finds_what_the_first_did(settings, run):
    results = check_tool(settings, run.run_id, TOOL)
    # A check that is repeated, since its answer was lost, finds what the first one did.
    again = check_tool(settings, run.run_id, TOOL)
    assert [result.message for result in again] == [result.message for result in results]


def test_a_tool_whose_check_fails_holds_up_no_other(settings):
    run = AnnotatedRun(settings, {TOOL: 0.5, "Calendar": 0.5})
    _annotate(run)
    run.complete("Calendar")  # nobody described its recipes
    checked = check_tools(settings, run.run_id)
    assert checked.passed == [TOOL]
    assert list(checked.refused) == ["Calendar"]
    assert "recipes_are_described" in checked.refused["Calendar"]


def test_a_tool_that_is_not_complete_is_not_checked(settings):
    run = AnnotatedRun(settings, {TOOL: 0.5, "Calendar": 0.5})
    _annotate(run)
    assert check_tools(settings, run.run_id) == CheckedTools(passed=[TOOL], refused={})


def test_a_release_of_right_data_passes_every_check(settings, run):
    release(settings, run.run_id)
    outcomes = [(result.claim.name, result.success) for result in check_release(settings, run.run_id)]
    assert outcomes == [(claim.name, True) for claim in claims_of("files")]


GIVEN_BACK = "calls_removed_give_the_text_back"
COUNTED = "update stage_ledger set counts = counts || '{{\"{}\": {}}}' where stage = 'sample'"
PRUNED = (
    "update call_losses set reason = 'pruned_below', loss_without_result = null where loss_with_result < 2"
)
BROKEN = (
    (1, "recipes_are_described", "delete from recipes where stage = 'execute'"),
    (
        1,
        "ledger_equals_rows",
        "update stage_ledger set rows_written = rows_written + 1 where stage = 'sample'",
    ),
    (1, "every_sample_is_accounted_for", COUNTED.format("samples", 9)),
    (
        1,
        "positions_lie_inside_the_text",
        "update candidate_calls set position_char = 0 where call_input = '1 + 1'",
    ),
    (1, GIVEN_BACK, "update documents set text = text || ' [Calculator(1) -> 1]' where text like 'Out of%'"),
    (2, "every_document_is_in_the_ledger", "delete from call_losses where loss_reduction < 2"),
    (
        2,
        "every_document_is_in_the_ledger",
        "delete from stage_ledger where stage = 'score' and rows_written = 2",
    ),
    (2, "every_pruned_position_is_stored", COUNTED.format("positions_pruned_below", 1)),
    (
        2,
        "ledger_equals_rows",
        "delete from call_results where input = '2 * 21'",
    ),  # a call that was never answered
    # An input that ends its call early.
    (2, GIVEN_BACK, "update candidate_calls set call_input = '2] * 21' where call_input = '2 * 21'"),
    (3, "ledger_equals_rows", "delete from call_losses where loss_reduction < 0"),  # a score that lost a call
    (3, "ledger_equals_rows", "update stage_ledger set rows_written = 1 where stage = 'score'"),
    (3, "what_was_pruned_cannot_be_kept", "update run_tools set prune_below = 0.5"),
    (3, "what_was_pruned_cannot_be_kept", PRUNED),
    (4, GIVEN_BACK, "update candidate_calls set position_char = 100 where call_input = '2 * 21'"),
)
"""Damages, by number of the run that has them together, and the check that finds each."""


@pytest.mark.parametrize("number", range(1, 5))
def test_each_check_that_fails_on_broken_data_names_a_row(settings, run, number):
    together = [damage[1:] for damage in BROKEN if damage[0] == number]
    for _, statement in together:
        run.change(statement)
    failing = _failing(settings, run)
    for expected, _ in together:
        first_column = HOLDS_AND_BREAKS[expected][0].split(",")[0]
        assert re.search(rf"found otherwise in \d+ of \d+ rows: {first_column} ", failing[expected])


CONSTRAINTS = (
    (
        "candidate_calls_{sample}_document_id_call_id_idx",
        "insert into candidate_calls select * from candidate_calls",
    ),
    ("call_id", "update candidate_calls set call_id = null"),
    ("candidate_calls_position_probability_check", "update candidate_calls set position_probability = 1.01"),
    ("candidate_calls_position_probability_check", "update candidate_calls set position_probability = 'NaN'"),
    (
        "candidate_calls_sampled_position_check",
        "update candidate_calls set position_probability = null",
    ),
    ("candidate_calls_sample_count_check", "update candidate_calls set sample_count = 0"),
    *(
        (
            "a_scored_call_has_a_result_and_three_finite_losses",
            f"update call_losses set {loss} where reason is null",
        )
        for loss in (
            "loss_without_call = 'NaN'",
            "loss_without_result = null",
            "loss_with_result = 'Infinity'",
        )
    ),
    *(
        (f"call_losses_{column}_check", f"update call_losses set {column} = -0.5")
        for column in (
            "loss_without_call",
            "loss_without_result",
            "loss_with_result",
            "loss_without_call_full_context",
        )
    ),
    (
        "loss_reduction",
        "update call_losses set loss_reduction = loss_without_call - loss_with_result + 0.001",
    ),
    ("reduction_bound", "update call_losses set reduction_bound = 9"),
    ("gain_bound", "update call_losses set gain_bound = 9"),
    ("call_losses_probability_with_check", "update call_losses set probability_with = 0"),
    ("call_losses_probability_without_check", "update call_losses set probability_without = 1.01"),
    ("reduction", "update placebo_losses set reduction = 9"),
)
"""What makes claims true that no check asks of stored rows, a constraint, an index or a column that is
generated or never null; and a statement that it refuses."""


def test_what_no_check_asks_of_stored_rows_is_made_true_by_a_constraint(run):
    for name, statement in CONSTRAINTS:
        with pytest.raises(DBAPIError) as refused, run.engine.begin() as connection:
            connection.execute(sql_text(statement))
        said: Any = refused.value.orig
        expected = name.format(sample=recipe_id("sample", TOOL))
        assert expected in (said.diag.constraint_name, said.diag.column_name) or f'"{expected}"' in str(
            said
        ), statement


def test_a_run_a_tool_or_a_release_that_is_not_there_is_said(settings, run):
    with pytest.raises(UsageError, match="nobody"):
        check_tool(settings, "nobody", TOOL)
    with pytest.raises(ToolError, match="not with 'QA'"):
        check_tool(settings, run.run_id, "QA")
    with pytest.raises(UsageError, match="expected a release, found none"):
        check_release(settings, run.run_id)
    release_id = release(settings, run.run_id)
    ObjectStore(settings).delete(f"{release_prefix(release_id)}/manifest.json")
    with pytest.raises(ObjectStoreError, match=r"found no manifest\.json"):
        check_release(settings, run.run_id)


def test_a_tool_without_a_released_call_is_a_warning(settings):
    run = AnnotatedRun(settings, {TOOL: 0.5, "QA": 1.0})
    run.add_call(TOOL, run.add_text(TEXT), " 29", "400 / 1400", "0.29", saves=1.25)
    run.complete(TOOL)
    release(settings, run.run_id)
    check_release(settings, run.run_id)
    assert list(_stored(run, "release")) == ["every_tool_is_present"]


def test_yield_is_held_to_the_bounds_of_the_run(settings, run):
    bounds = "update annotation_runs set parameters = parameters || cast(:bounds as jsonb)"
    run.change(bounds, bounds='{"min_kept_texts": 3}')
    assert set(_failing(settings, run)) == {"enough_texts_are_kept"}
    run.change(bounds, bounds='{"min_kept_texts": 2}')
    check_tool(settings, run.run_id, TOOL)
    assert _stored(run, TOOL) == {}  # mended


def test_release_check_fails_on_a_damaged_release(settings, run, tmp_path, monkeypatch):
    prefix = release_prefix(release(settings, run.run_id))
    store = ObjectStore(settings)
    store.fetch(prefix, tmp_path / "right")
    first, second = read_release(tmp_path / "right")
    wrong: Any = {
        "position_char": 1000,
        "position_probability": 2.0,
        "loss_with_result": math.nan,
        "tool": "Oracle",
    }
    damaged = replace(second, plain_text="Something else.", calls=(replace(second.calls[0], **wrong),))
    # No writer of ours says where a result is in a text that does not hold it.
    monkeypatch.setattr(ReleasedText, "call_spans", lambda _: [])
    (tmp_path / "damaged").mkdir()
    files = write_texts(tmp_path / "damaged", (first, first, replace(second, calls=()), damaged))
    store.remove(store.list(prefix))
    store.publish(prefix, files)
    with pytest.raises(NoResultError) as failed:
        check_release(settings, run.run_id)
    failing = {claim.name for claim in claims_of("files")} - {
        "overlaps_are_those_stored",
        "every_tool_is_present",
    }
    assert _stored(run, "release").keys() == failing
    assert all(name in str(failed.value) for name in failing)


HOLDS_AND_BREAKS: dict[str, tuple[str, list[str], list[str]]] = {
    "recipes_are_described": ("stage, recipe_id, described", ["'filter', 'a', true"], ["'filter', 'a', false"]),
    "every_document_is_in_the_ledger": ("stage_of_document, ledger_rows", ["'s', 1"], ["'s', 0", "'s', 2"]),
    "ledger_equals_rows": (
        "stage_of_document, rows_written, rows_found, rows_expected",
        ["'s', 0, 0, 0", "'s', 2, 2, 2"],
        ["'s', 1, 2, 2", "'s', 2, 2, 1", "'s', 2, 1, 2"],
    ),
    "most_samples_have_an_end": ("tool, samples, without_end", ["'a', 10, 5", "'b', 0, 0"], ["'c', 9, 5"]),
    "every_sample_is_accounted_for": ("stage_of_document, items_in, items_out", ["'s', 5, 5"], ["'s', 5, 4", "'s', 4, 5"]),
    "every_pruned_position_is_stored": (
        "stage_of_document, pruned_in_ledger, pruned_found", ["'s', 0, 0", "'s', 3, 3"], ["'s', 1, 0", "'s', 0, 1"]
    ),
    "call_ids_are_unique": ("call_id", ["'a'", "'b'"], ["'c'", "'c'", "null"]),
    "calls_are_those_of_their_rows": ("call_id, difference", ["'a', null::text"], ["'b', 'expected 5, found 6'"]),
    "document_ids_are_unique": ("document_id", ["'a'", "'b'"], ["'c'", "'c'", "null"]),
    "positions_lie_inside_the_text": (
        "call_id, position_char, text_length", ["'a', 1, 2", "'b', 44, 45"], ["'c', 0, 45", "'d', 45, 45", "'e', null, 45"]
    ),
    "probabilities_are_probabilities": (
        "call_id, position_probability",
        ["'a', 0.0::float", "'b', 0.5", "'c', 1.0", "'g', null"],
        ["'d', 1.1", "'e', -0.1", "'f', 'NaN'", "'h', 'Infinity'"],
    ),
    "losses_are_finite": (
        "call_id, loss_without_call, loss_without_result, loss_with_result",
        ["'a', 0::float, 0::float, 0::float", "'b', 1e308, 2, 3"],
        ["'c', 'NaN', 2, 3", "'d', 1, 'Infinity', 3", "'e', 1, 2, -1", "'f', null, 2, 3", "'g', 1, 2, null"],
    ),
    "reduction_equals_its_definition": (
        "call_id, loss_without_call, loss_without_result, loss_without_call_full_context, loss_with_result, loss_reduction",
        ["'a', 2::float, 3::float, null::float, 0.5::float, 1.5::float", "'b', 2, 3, 1, 0.5, 0.5"],
        ["'c', 2, 3, 1, 0.5, 1.5", "'d', 2, 3, null, 0.5, 1.5000000000000002", "'e', 2, 3, null, 0.5, null"],
    ),
    "what_was_pruned_cannot_be_kept": (
        "pruned, bound, prune_below", ["'a', 0.25::float, 0.5"], ["'b', 0.5, 0.5", "'c', 'NaN', 0.5", "'d', null, 0.5"]
    ),
    "calls_removed_give_the_text_back": ("document_id, gives_text_back", ["'a', true"], ["'b', false", "'c', null"]),
    "every_text_has_a_call": ("document_id, call_count", ["'a', 1"], ["'b', 0"]),
    "enough_texts_are_kept": ("tool, kept_texts, min_kept_texts", ["'a', 0, 0", "'b', 3, 3"], ["'c', 2, 3"]),
    "false_discovery_rate_is_low": (
        "tool, false_discovery_rate, rate_low, rate_high, placebos_scored",
        ["'a', 0.2, 0, 1, 30", "'d', null, null, null, 99"],
        ["'c', 0.21, 0, 1, 30"],
    ),
    "false_discovery_rate_is_allowed": (
        "tool, false_discovery_rate, rate_low, rate_high, placebos_scored, max_false_discovery_rate",
        ["'a', 0.1, 0, 1, 30, 0.1", "'d', 0.9, 0, 1, 99, null"],
        ["'c', 0.11, 0, 1, 30, 0.1"],
    ),
    "overlaps_are_those_stored": (
        "document_id, question, is_found, is_stored, is_left_out_and_in_it",
        ["'a', 'math:gsm8k 1', true, true, false"],
        ["'b', 'q', true, false, false", "'c', 'q', false, true, false", "'d', 'q', true, true, true"],
    ),
    "some_call_is_kept": ("tool, kept_calls", ["'a', 1"], ["'b', 0"]),
    "release_is_what_is_registered": ("what, on_s3, registered", ["'a', '7', '7'"], ["'b', '7', '8'", "'c', null, '7'"]),
    "tools_are_those_of_the_run": ("call_id, tool", ["'a', 'QA'"], ["'b', 'Oracle'"]),
    "every_tool_is_present": ("tool, released_calls", ["'a', 1"], ["'b', 0"]),
}  # fmt: skip
"""The columns of the rows that a check reads, rows that hold, and rows that break the claim."""


def test_a_check_returns_exactly_the_rows_that_break_its_claim(engine):
    assert {claim.name for scope in ("tool", "files") for claim in claims_of(scope)} == set(HOLDS_AND_BREAKS)
    with engine.connect() as connection:
        for name, (columns, holding, breaking) in HOLDS_AND_BREAKS.items():
            rows = ", ".join(f"({row})" for row in [*holding, *breaking])
            batch = f"(select * from (values {rows}) as rows_to_check ({columns})) as subselect"
            found = connection.execute(
                sql_text(CLAIMS[name].statement.replace("{batch}", batch)), {"tools": ["QA"]}
            ).all()
            keys = [row.split(",")[0].strip("'").replace("null", "None") for row in breaking]
            assert sorted(str(row[0]) for row in found) == sorted(keys), name


def test_a_result_counts_the_rows_under_the_names_of_the_first_five(postgres_dsn, monkeypatch):
    claim = CLAIMS["probabilities_are_probabilities"]
    monkeypatch.setattr("toolformer_ops.audit.checking.claims_of", lambda _: (claim,))

    def result_of(columns: str, rows: int) -> CheckResult:
        def write_rows(engine: Engine) -> dict[str, object]:
            table = f"select {columns} from generate_series(0, {rows - 1}) n"
            run_sql(engine, f"create temporary table checked_calls as {table}")
            return {}

        [result] = run_checks(database.connect_dsn(postgres_dsn, database.DSN_SETTING), write_rows, "files")
        return result

    columns = "'r' || n as call_id, cast(case when n < 10 then 0.5 else 2.5 end as double precision) as position_probability"
    result = result_of(columns, 20)
    named = "; ".join(f"call_id r{n} (position_probability 2.5)" for n in range(10, 15))
    assert (result.success, result.observed["rows"], result.observed["unexpected"]) == (False, 20, 10)
    assert result.message.endswith(f"found otherwise in 10 of 20 rows: {named}")
    assert result.observed["examples"] == [
        {"call_id": f"r{n}", "position_probability": 2.5} for n in range(10, 15)
    ]
    nothing = result_of(columns, 0)
    assert (nothing.success, nothing.observed) == (True, {"rows": 0, "unexpected": 0, "examples": []})
    with pytest.raises(DatabaseError, match=r"check probabilities_are_probabilities: .*position_probability"):
        result_of("'r1' as call_id", 1)


def test_a_connection_that_breaks_in_the_middle_is_an_outage_not_a_wrong_check(settings, run, monkeypatch):
    """The tables to check are temporary: another session has none of them."""
    sessions = iter((1, 2))

    def no_such_table(_scope: str) -> None:
        raise DatabaseError("relation does not exist")

    monkeypatch.setattr("toolformer_ops.audit.checking.claims_of", no_such_table)
    with pytest.raises(DatabaseError, match="relation does not exist"):
        check_tool(settings, run.run_id, TOOL)
    monkeypatch.setattr("toolformer_ops.audit.checking._backend_of", lambda _connection: next(sessions))
    with pytest.raises(DatabaseUnreachableError, match="Postgres broke"):
        check_tool(settings, run.run_id, TOOL)


def test_a_claim_without_a_severity_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "audits").mkdir()
    (tmp_path / "audits" / "odd.sql").write_text(
        "-- name: odd\n-- perhaps: one\n-- tool: checked\nselect 1\n"
    )
    monkeypatch.setattr(database, "SQL_DIR", tmp_path)
    all_claims.cache_clear()
    with pytest.raises(DatabaseError, match=r"odd\.sql: expected"):
        all_claims()


RECIPES_ARE_FREE = "select recipe_id from recipes for no key update skip locked"
"""The recipes whose rows `retry-failed` could delete now."""


def give_up(run: AnnotatedRun) -> None:
    """Have the sampling of the run's first text given up."""
    recipe = {"recipe_id": recipe_id("sample", TOOL), "stage": "sample", "tool": TOOL}
    given_up = {"document_id": run.documents[0].document_id, "reason": "process_killed", "deaths": 2}
    run.write("failed_documents", recipe | given_up | {"run_id": run.run_id})


def test_a_check_of_rows_that_are_deleted_meanwhile_finishes_no_work(settings, run, monkeypatch):
    give_up(run)

    def run_then_retry(*arguments: Any) -> list[CheckResult]:
        results = run_checks(*arguments)
        assert [document.stage for document in retry_failed(settings, run.run_id)] == ["sample"]
        return results

    monkeypatch.setattr(checking, "run_checks", run_then_retry)
    check_tool(settings, run.run_id, TOOL)
    assert run.rows("select recipe_id from finished_work") == []
    assert run.rows("select tool from checked_yields") == []


def test_a_check_finishes_the_work_that_was_tried_again_before_it(settings, run):
    give_up(run)
    run.change("update recipes set dropped_at = clock_timestamp()")
    check_tool(settings, run.run_id, TOOL)
    assert run.rows("select count(*) from finished_work") == [(4,)]


@pytest.mark.parametrize(
    ("topic", "name"), [("checks", "finished"), ("tries", "retry_failed"), ("numbers", "count")]
)
def test_rows_are_deleted_while_no_check_or_end_of_a_run_counts_them(settings, run, monkeypatch, topic, name):
    """Each of the three holds the recipes at the statement that writes."""
    give_up(run)
    free: list[list[Any]] = []
    statement = getattr(queries, topic)[name]
    for function in ("execute", "fetch_all"):
        original = getattr(database, function)

        def watched(on: Any, asked: Any, /, *, original: Any = original, **parameters: object) -> Any:
            if asked is statement:
                free.append(run_sql(settings, RECIPES_ARE_FREE))
            return original(on, asked, **parameters)

        monkeypatch.setattr(database, function, watched)
    check_tool(settings, run.run_id, TOOL)
    finish_run(settings, run.run_id, "success")
    retry_failed(settings, run.run_id)
    assert free == [[]]
