"""What changed between two releases: one reason for every call, worked out by hand in the histories of these tests."""

import uuid
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from tests.run_sql import run_sql
from tests.written_nights import Nights, Record, Tool, draw
from toolformer_ops.errors import UsageError
from toolformer_ops.runs.changes import REASONS, ChangedCall, ReleaseChanges, changed_calls, find_changes
from toolformer_ops.storage import database

CALCULATOR = Tool("Calculator")
CALENDAR = Tool("Calendar", reads_record=True)
TOOLS = (CALCULATOR, CALENDAR)


def night(nights: Nights, run_id: str, *tools: Tool, max_examples: int | None = None, **start: Any) -> None:
    if max_examples is not None:
        start["max_examples_per_tool"] = max_examples
    nights.start(run_id, *tools, **start)
    nights.work(run_id, *tools)
    nights.release(run_id, max_examples=max_examples)
    nights.finish(run_id)


def changes(
    nights: Nights, run_id: str, other: str | None = None
) -> tuple[ReleaseChanges, list[ChangedCall]]:
    with database.transaction(nights.engine) as connection:
        found = find_changes(connection, run_id, other)
        return found, changed_calls(connection)


def texts(*numbers: int, url: str | None = None) -> list[Record]:
    return [Record(f"text {number}", url) for number in numbers]


ADDED, GONE, BETTER = True, False, "better_call_at_position"
STARTED_WITH: dict[str, tuple[tuple[Tool, ...], dict[str, int], set[tuple[str, bool, str]]]] = {
    "threshold": ((replace(CALCULATOR, threshold=0.5),), {}, {("Calculator", ADDED, "threshold")}),
    "no release": ((replace(CALCULATOR, threshold=9.0),), {}, {("Calculator", GONE, "threshold")}),
    "index": (
        (replace(CALCULATOR, index="index-2"),),
        {},
        {
            ("Calculator", is_added, reason)
            for is_added in (ADDED, GONE)
            for reason in ("result_changed", BETTER)
        },
    ),
    "model": (
        (replace(CALCULATOR, model="m@2"),),
        {},
        {("Calculator", ADDED, "model_changed"), ("Calculator", GONE, "model_changed")},
    ),
    "second tool": (TOOLS, {}, {("Calendar", ADDED, "tool_lacking"), ("Calculator", GONE, BETTER)}),
    "few examples": ((CALCULATOR,), {"max_examples": 5}, {("Calculator", GONE, "above_max_examples")}),
    "few documents": ((CALCULATOR,), {"limit": 10}, {("Calculator", GONE, "document_limit")}),
}
"""Runs beside one of the calculator at the threshold 1: their tools and choices, and the reasons of the calls
that differ."""


def test_what_a_run_was_started_with_is_the_reason_of_the_calls_that_differ(nights: Nights) -> None:
    nights.ingest(*texts(*range(250)))
    night(nights, "one", CALCULATOR)
    calls: dict[str, list[ChangedCall]] = {}
    found: dict[str, ReleaseChanges] = {}
    for run_id, (tools, choices, _) in STARTED_WITH.items():
        night(nights, run_id, *tools, **choices)  # type: ignore[arg-type]
        found[run_id], calls[run_id] = changes(nights, run_id, "one")
    expected = {run_id: reasons for run_id, (_, _, reasons) in STARTED_WITH.items()}
    assert {
        run_id: {(call.tool, call.is_added, call.reason) for call in of_run}
        for run_id, of_run in calls.items()
    } == expected

    assert {(call.detail, call.loss_reduction) for call in calls["threshold"]} == {
        ("1 -> 0.5", 0.5),
        ("1 -> 0.5", 0.75),
    }
    results = {
        call.detail for call in calls["index"] if (call.is_added, call.reason) == (GONE, "result_changed")
    }
    assert results <= {"1 -> 2", "2 -> 1", "1 -> none", "2 -> none"}
    assert {call.detail for call in calls["model"]} == {"model"}
    assert all(
        str(call.detail).startswith("Calendar(") for call in calls["second tool"] if call.tool == "Calculator"
    )
    now, before = found["no release"].now, found["no release"].before
    assert before is not None
    assert (now.release_id, now.calls, before.calls) == (None, 0, len(calls["no release"]))
    few = found["few examples"]
    assert (few.now.texts, few.texts_removed) == (5, before.texts - 5)


def test_two_runs_are_compared_from_the_earlier_to_the_later_also_by_their_releases(nights: Nights) -> None:
    nights.ingest(*texts(*range(10)))
    night(nights, "one", CALCULATOR)
    nights.ingest(*texts(*range(20)))
    night(nights, "two", CALCULATOR)
    found, _ = changes(nights, "two", "one")
    assert found.before is not None
    assert (found.before.run_id, found.now.run_id) == ("one", "two")
    assert changes(nights, str(found.before.release_id), str(found.now.release_id))[0] == found
    with pytest.raises(UsageError, match="'three'"):
        changes(nights, "three")


@pytest.mark.parametrize("seed", range(3))
def test_every_call_that_differs_is_counted_under_one_reason(nights: Nights, seed: int) -> None:
    drawn = draw(seed)
    records = [Record(f"text {n}", f"https://x.org/{n}", f"r{n}" if n % 2 else None) for n in range(40)]
    tools = list(TOOLS)
    limit: int | None = None
    for number in range(6):
        records = nights.change(drawn, number, records)
        nights.ingest(*records)
        which = drawn.randrange(2)
        tools[which] = replace(
            tools[which],
            **drawn.choice([{"threshold": drawn.choice([0.5, 1.0, 2.0])}, {"index": f"i{number}"}, {"model": f"m{number}"},
                            {"context": f"c{number}"}, {}, {}]),
        )  # fmt: skip
        limit = drawn.choice([None, None, 30])
        chosen = tools if drawn.random() < 0.8 else tools[:1]
        night(nights, f"night-{number}", *chosen, limit=limit, max_examples=drawn.choice([None, 6]))
    pairs = [(f"night-{one}", f"night-{two}") for one in range(6) for two in range(one + 1, 6)]
    for before, now in pairs:
        found, calls = changes(nights, now, before)
        assert found.before is not None
        released = {run: released_texts(nights, run) for run in (before, now)}
        assert {(*fact(call), call.is_added) for call in calls} == {
            *((*one, True) for one in released[now] - released[before]),
            *((*one, False) for one in released[before] - released[now]),
        }
        assert len(calls) == sum(count.calls for count in found.counts)
        unchanged = len(released[now] & released[before])
        assert found.before.calls == unchanged + found.calls(is_added=False)
        assert found.now.calls == unchanged + found.calls(is_added=True)
        assert {call.reason for call in calls} <= set(REASONS) - {"other", "first_run"}
        by_text = [{run: {one for one in released[run] if one[0] == key} for run in (before, now)} for key in
                   {one[0] for one in released[now] | released[before]}]  # fmt: skip
        assert found.texts_added == sum(not calls_of[before] for calls_of in by_text)
        assert found.texts_removed == sum(not calls_of[now] for calls_of in by_text)
        changed = [
            calls_of for calls_of in by_text if all(calls_of.values()) and calls_of[before] != calls_of[now]
        ]
        assert found.texts_changed == len(changed)
        places = compared(nights, now, before)
        counts = Counter(row.change for row in places)
        assert counts["new"] + counts["changed"] == found.calls(is_added=True)
        assert counts["gone"] + counts["changed"] == found.calls(is_added=False)
        by_place = {run: {(one[0], one[2]): one for one in released[run]} for run in (before, now)}
        assert {(uuid.UUID(row.document_id), row.position_char): row.change for row in places} == {
            place: "gone"
            if place not in by_place[now]
            else "new"
            if place not in by_place[before]
            else "changed"
            for place in by_place[now] | by_place[before]
            if by_place[now].get(place) != by_place[before].get(place)
        }
        assert {row.reason for row in places} <= {call.reason for call in calls}


def test_the_run_before_needs_no_name_in_the_views(nights: Nights) -> None:
    nights.ingest(*texts(*range(80)))
    night(nights, "one", CALCULATOR)
    night(nights, "two", replace(CALCULATOR, index="index-4"))
    run_sql(nights.engine, "update annotation_runs set previous_run_id = 'one' where run_id = 'two'")
    of_runs: dict[str, dict[str, list[Any]]] = {}
    for view in ("release_changes", "run_comparison"):  # from the earlier run to the later, and never back
        pairs = run_sql(nights.engine, f"select distinct run_id, before_run_id from {view}")
        assert {tuple(pair) for pair in pairs} == {("one", None), ("two", None), ("two", "one")}
        rows = run_sql(nights.engine, f"select * from {view} where is_previous_run")
        of_runs[view] = {run_id: [row for row in rows if row.run_id == run_id] for run_id in ("one", "two")}
    assert {(row.before_run_id, row.reason) for row in of_runs["release_changes"]["one"]} == {
        (None, "first_run")
    }
    assert {(row.before_run_id, row.change) for row in of_runs["run_comparison"]["one"]} == {(None, "new")}
    _, calls = changes(nights, "two", "one")
    assert Counter(
        (row.is_added, row.call_text, row.reason, row.detail) for row in of_runs["release_changes"]["two"]
    ) == Counter((call.is_added, call.call_text, call.reason, call.detail) for call in calls)
    places = of_runs["run_comparison"]["two"]
    same_call = [row for row in places if row.change == "changed" and row.call_text == row.call_text_before]
    assert same_call
    assert {(row.reason, row.detail) for row in same_call} == {
        ("result_changed", f"{row.result_before} -> {row.result}") for row in same_call
    }


def compared(nights: Nights, run_id: str, before_run_id: str) -> list[Any]:
    return run_sql(
        nights.engine,
        "select * from run_comparison where run_id = :run_id and before_run_id = :before_run_id",
        run_id=run_id,
        before_run_id=before_run_id,
    )


def fact(call: ChangedCall) -> tuple[Any, ...]:
    return call.document_id, call.tool, call.position_char, call.call_text, call.result


def released_texts(nights: Nights, run_id: str) -> set[tuple[Any, ...]]:
    """The release's calls as they are in its texts."""
    rows = run_sql(
        nights.engine,
        "select r.document_id, r.tool, c.position_char, c.call_text, l.result from run_releases "
        "join release_calls r using (release_id) join candidate_calls c using (call_id) "
        "join call_losses l using (call_id, scoring_recipe_id) where run_id = :run_id",
        run_id=run_id,
    )
    return {tuple(row) for row in rows}


def test_two_runs_without_a_release_are_compared_by_what_they_keep(nights: Nights) -> None:
    nights.ingest(*texts(*range(30)))
    low, high = replace(CALCULATOR, threshold=0.5), replace(CALCULATOR, threshold=2.0)
    for run_id, tool in (("one", low), ("two", high), ("last", low)):
        nights.start(run_id, tool)
        nights.work(run_id, tool)
    kept = "select document_uuid, position_char from kept_calls where run_id = :run and releasable"
    places_of = {run: {tuple(row) for row in run_sql(nights.engine, kept, run=run)} for run in ("one", "two")}
    found, calls = changes(nights, "two", "one")
    assert {(call.is_added, call.reason) for call in calls} == {(False, "threshold")}
    assert {(call.document_id, call.position_char) for call in calls} == places_of["one"] - places_of["two"]
    assert found.before is not None
    assert (found.before.release_id, found.now.release_id) == (None, None)
    assert found.now.calls - found.calls(is_added=True) == len(places_of["two"]) > 0
    assert {row.change for row in compared(nights, "two", "one")} == {"gone"}
    # Of two runs with one release the other has none of its calls.
    nights.release("last")
    _, calls = changes(nights, "last", "two")
    assert {call.is_added for call in calls} == {True}
    # Alone, a run without a release has nothing to show.
    assert not run_sql(nights.engine, "select from calls_to_compare('two', null)")
