"""What changed between two releases: one reason for every call, worked out by hand in the histories of these tests."""

import itertools
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.run_sql import run_sql
from tests.servers import copied_database, settings_of
from tests.written_nights import Nights, Record, Tool, draw
from toolformer_ops.errors import UsageError
from toolformer_ops.local import postgres
from toolformer_ops.runs.changes import REASONS, ChangedCall, ReleaseChanges, changed_calls, find_changes
from toolformer_ops.storage.postgres import database

CALCULATOR = Tool("Calculator")
CALENDAR = Tool("Calendar", reads_record=True)
TOOLS = (CALCULATOR, CALENDAR)


NewNights = Callable[[], Nights]


@pytest.fixture(scope="module")
def new_nights(postgres_server, migrated_template):
    """Makes nights in a database of their own, which the tests of this file share."""
    with ExitStack() as stack:

        def made() -> Nights:
            copy = copied_database(postgres_server, migrated_template, postgres.OWNER)
            dsn = postgres_server.dsn(stack.enter_context(copy), postgres.OWNER)
            engine = database.connect(settings_of(dsn))
            stack.callback(engine.dispose)
            return Nights(engine)

        yield made


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


def compared(nights: Nights, run_id: str, before_run_id: str) -> list[Any]:
    return run_sql(
        nights.engine,
        "select * from run_comparison_between(:run_id, :before_run_id)",
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


# What a run was started with


@dataclass(frozen=True)
class Compared:
    """A run beside an earlier one."""

    changes: ReleaseChanges
    calls: list[ChangedCall]


@pytest.fixture(scope="module")
def started(new_nights):
    """Each run of `STARTED_WITH`, compared with the one of the calculator."""
    nights = new_nights()
    nights.ingest(*texts(*range(250)))
    night(nights, "one", CALCULATOR)
    compared_runs: dict[str, Compared] = {}
    for run_id, (tools, choices, _) in STARTED_WITH.items():
        night(nights, run_id, *tools, **choices)  # type: ignore[arg-type]
        compared_runs[run_id] = Compared(*changes(nights, run_id, "one"))
    return compared_runs


@pytest.mark.parametrize("run_id", STARTED_WITH)
def test_what_a_run_was_started_with_is_the_reason_of_the_calls_that_differ(started, run_id):
    reasons = {(call.tool, call.is_added, call.reason) for call in started[run_id].calls}
    assert reasons == STARTED_WITH[run_id][2]


def test_a_call_by_another_threshold_is_told_with_both(started):
    told = {(call.detail, call.gain) for call in started["threshold"].calls}
    assert told == {("1 -> 0.5", 0.5), ("1 -> 0.5", 0.75)}


def test_a_call_whose_result_changed_is_told_with_both_results(started):
    told = {
        call.detail
        for call in started["index"].calls
        if (call.is_added, call.reason) == (GONE, "result_changed")
    }
    assert told <= {"1 -> 2", "2 -> 1", "1 -> none", "2 -> none"}


def test_of_a_call_by_another_model_the_model_is_told(started):
    assert {call.detail for call in started["model"].calls} == {"model"}


def test_a_call_that_gave_way_is_told_with_the_better_call(started):
    details = [str(call.detail) for call in started["second tool"].calls if call.tool == "Calculator"]
    assert [detail for detail in details if not detail.startswith("Calendar(")] == []


def test_against_a_run_without_a_release_all_calls_are_gone(started):
    without = started["no release"]
    before = without.changes.before
    assert before is not None
    assert (without.changes.now.release_id, without.changes.now.calls) == (None, 0)
    assert before.calls == len(without.calls)


def test_texts_above_the_most_examples_are_removed(started):
    few = started["few examples"].changes
    assert few.before is not None
    assert (few.now.texts, few.texts_removed) == (5, few.before.texts - 5)


# Which runs are compared


@pytest.fixture(scope="module")
def two_nights(new_nights):
    """The runs one and two, of which the second has ten more texts."""
    nights = new_nights()
    nights.ingest(*texts(*range(10)))
    night(nights, "one", CALCULATOR)
    nights.ingest(*texts(*range(20)))
    night(nights, "two", CALCULATOR)
    return nights


def test_two_runs_are_compared_from_the_earlier_to_the_later(two_nights):
    found, _ = changes(two_nights, "two", "one")
    assert found.before is not None
    assert (found.before.run_id, found.now.run_id) == ("one", "two")


def test_two_runs_are_compared_by_their_releases_alike(two_nights):
    found, _ = changes(two_nights, "two", "one")
    assert found.before is not None
    assert changes(two_nights, str(found.before.release_id), str(found.now.release_id))[0] == found


def test_a_run_that_is_not_there_is_named(two_nights):
    with pytest.raises(UsageError, match="'three'"):
        changes(two_nights, "three")


# Six random nights, each compared with each before it

Released = set[tuple[Any, ...]]


@dataclass(frozen=True)
class Pair:
    """Two of the nights."""

    changes: ReleaseChanges
    calls: list[ChangedCall]
    released_before: Released
    released_now: Released
    places: list[Any]
    """Rows of `run_comparison_between`."""


@pytest.fixture(scope="module", params=range(3))
def pairs(request, new_nights):
    nights, drawn = new_nights(), draw(request.param)
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
    released = [released_texts(nights, f"night-{number}") for number in range(6)]
    return [
        Pair(
            *changes(nights, f"night-{now}", f"night-{before}"),
            released_before=released[before],
            released_now=released[now],
            places=compared(nights, f"night-{now}", f"night-{before}"),
        )
        for before, now in itertools.combinations(range(6), 2)
    ]


def in_each(pairs: list[Pair], number: Callable[[Pair], object]) -> list[object]:
    """A number of each pair, to compare with another number of each."""
    return [number(pair) for pair in pairs]


def unchanged(pair: Pair) -> int:
    return len(pair.released_now & pair.released_before)


def calls_before(pair: Pair) -> int:
    assert pair.changes.before is not None
    return pair.changes.before.calls


def calls_of_texts(pair: Pair) -> list[tuple[Released, Released]]:
    """The calls before and now of each text that either release has."""
    keys = {call[0] for call in pair.released_now | pair.released_before}
    return [
        (
            {call for call in pair.released_before if call[0] == key},
            {call for call in pair.released_now if call[0] == key},
        )
        for key in keys
    ]


def place_changes(pair: Pair) -> dict[tuple[Any, ...], str]:
    """What became of each place with a call before or now, where that differs."""
    before = {(call[0], call[2]): call for call in pair.released_before}
    now = {(call[0], call[2]): call for call in pair.released_now}
    changed = {}
    for place in before.keys() | now.keys():
        if before.get(place) != now.get(place):
            changed[place] = "gone" if place not in now else "new" if place not in before else "changed"
    return changed


def test_the_calls_that_differ_are_those_that_one_release_alone_holds(pairs):
    def of_releases(pair: Pair) -> Released:
        added = {(*call, True) for call in pair.released_now - pair.released_before}
        return added | {(*call, False) for call in pair.released_before - pair.released_now}

    told = in_each(pairs, lambda pair: {(*fact(call), call.is_added) for call in pair.calls})
    assert told == in_each(pairs, of_releases)


def test_every_call_that_differs_is_counted_under_one_reason(pairs):
    counted = in_each(pairs, lambda pair: sum(count.calls for count in pair.changes.counts))
    assert counted == in_each(pairs, lambda pair: len(pair.calls))


def test_a_call_of_the_release_before_is_unchanged_or_removed(pairs):
    left = in_each(pairs, lambda pair: unchanged(pair) + pair.changes.calls(is_added=False))
    assert left == in_each(pairs, calls_before)


def test_a_call_of_the_release_now_is_unchanged_or_added(pairs):
    there = in_each(pairs, lambda pair: unchanged(pair) + pair.changes.calls(is_added=True))
    assert there == in_each(pairs, lambda pair: pair.changes.now.calls)


def test_no_call_differs_for_an_unknown_reason(pairs):
    reasons = {call.reason for pair in pairs for call in pair.calls}
    assert reasons <= set(REASONS) - {"other", "first_run"}


def test_texts_are_counted_as_added_removed_or_changed(pairs):
    def of_releases(pair: Pair) -> tuple[int, ...]:
        of_texts = calls_of_texts(pair)
        return (
            sum(not before for before, _ in of_texts),
            sum(not now for _, now in of_texts),
            sum(bool(before and now) and before != now for before, now in of_texts),
        )

    told = in_each(
        pairs,
        lambda pair: (pair.changes.texts_added, pair.changes.texts_removed, pair.changes.texts_changed),
    )
    assert told == in_each(pairs, of_releases)


@pytest.mark.parametrize(("change", "is_added"), [("new", True), ("gone", False)])
def test_a_call_that_differs_is_at_a_place_that_differs(pairs, change, is_added):
    counts = in_each(pairs, lambda pair: sum(row.change in (change, "changed") for row in pair.places))
    assert counts == in_each(pairs, lambda pair: pair.changes.calls(is_added=is_added))


def test_every_place_that_differs_is_told_once(pairs):
    told = in_each(
        pairs,
        lambda pair: {(uuid.UUID(row.document_id), row.position_char): row.change for row in pair.places},
    )
    assert told == in_each(pairs, place_changes)


def test_a_place_has_the_reason_of_one_of_its_calls(pairs):
    unknown = in_each(
        pairs, lambda pair: {row.reason for row in pair.places} - {call.reason for call in pair.calls}
    )
    assert unknown == [set()] * len(pairs)


# The views


@pytest.fixture(scope="module")
def after_another(new_nights):
    """The run two, whose run before is one, with another index."""
    nights = new_nights()
    nights.ingest(*texts(*range(80)))
    night(nights, "one", CALCULATOR)
    night(nights, "two", replace(CALCULATOR, index="index-4"))
    run_sql(nights.engine, "update annotation_runs set previous_run_id = 'one' where run_id = 'two'")
    return nights


def rows_without_a_name(nights: Nights, view: str, run_id: str) -> list[Any]:
    """The rows of a view that compare a run with the run before it."""
    statement = f"select * from {view} where is_previous_run and run_id = :run_id"
    return run_sql(nights.engine, statement, run_id=run_id)


@pytest.mark.parametrize("view", ["release_changes", "run_comparison"])
def test_a_view_compares_a_run_with_the_run_before_alone(after_another, view):
    runs = run_sql(after_another.engine, f"select distinct run_id, before_run_id from {view}")
    assert {tuple(row) for row in runs} == {("one", None), ("two", "one")}


def test_calls_of_a_first_run_have_that_reason(after_another):
    rows = rows_without_a_name(after_another, "release_changes", "one")
    assert {(row.before_run_id, row.reason) for row in rows} == {(None, "first_run")}


def test_places_of_a_first_run_are_new(after_another):
    rows = rows_without_a_name(after_another, "run_comparison", "one")
    assert {(row.before_run_id, row.change) for row in rows} == {(None, "new")}


def test_the_run_before_needs_no_name_in_the_view_of_calls(after_another):
    _, calls = changes(after_another, "two", "one")
    rows = rows_without_a_name(after_another, "release_changes", "two")
    assert Counter((row.is_added, row.call_text, row.reason, row.detail) for row in rows) == Counter(
        (call.is_added, call.call_text, call.reason, call.detail) for call in calls
    )


def test_a_call_that_stayed_with_another_result_is_a_changed_place(after_another):
    places = rows_without_a_name(after_another, "run_comparison", "two")
    same_call = [row for row in places if row.change == "changed" and row.call_text == row.call_text_before]
    assert same_call
    assert {(row.reason, row.detail) for row in same_call} == {
        ("result_changed", f"{row.result_before} -> {row.result}") for row in same_call
    }


# Runs without a release


@pytest.fixture(scope="module")
def without_release(new_nights):
    """The runs one and two, which keep calls and have no release, and last, which has one."""
    nights = new_nights()
    nights.ingest(*texts(*range(30)))
    low, high = replace(CALCULATOR, threshold=0.5), replace(CALCULATOR, threshold=2.0)
    for run_id, tool in (("one", low), ("two", high), ("last", low)):
        nights.start(run_id, tool)
        nights.work(run_id, tool)
    nights.release("last")
    return nights


def kept_places(nights: Nights, run_id: str) -> set[tuple[Any, ...]]:
    kept = "select document_uuid, position_char from kept_calls where run_id = :run and releasable"
    return {tuple(row) for row in run_sql(nights.engine, kept, run=run_id)}


def test_two_runs_without_a_release_are_compared_by_what_they_keep(without_release):
    _, calls = changes(without_release, "two", "one")
    gone = {(call.document_id, call.position_char) for call in calls}
    assert gone == kept_places(without_release, "one") - kept_places(without_release, "two")
    assert {(call.is_added, call.reason) for call in calls} == {(False, "threshold")}


def test_of_two_runs_without_a_release_the_later_has_what_it_keeps(without_release):
    found, _ = changes(without_release, "two", "one")
    assert found.before is not None
    assert (found.before.release_id, found.now.release_id) == (None, None)
    kept = len(kept_places(without_release, "two"))
    assert found.now.calls - found.calls(is_added=True) == kept > 0


def test_places_of_runs_without_a_release_are_compared(without_release):
    assert {row.change for row in compared(without_release, "two", "one")} == {"gone"}


def test_of_two_runs_with_one_release_the_other_has_none_of_its_calls(without_release):
    _, calls = changes(without_release, "last", "two")
    assert {call.is_added for call in calls} == {True}


def test_a_run_without_a_release_has_nothing_to_show_alone(without_release):
    assert not run_sql(without_release.engine, "select from calls_to_compare('two', null)")
