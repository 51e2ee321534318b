"""A night's summary: its numbers, and what it says in words."""

import json
import re
from dataclasses import replace
from typing import Any

from click.testing import Result
from typer.testing import CliRunner

from tests.annotated_runs import AnnotatedRun
from tests.written_nights import Nights, Record, Tool
from toolformer_ops.cli.people import app
from toolformer_ops.config import Settings, load_settings
from toolformer_ops.errors import UsageError
from toolformer_ops.evaluation.records import SuiteScore
from toolformer_ops.evaluation.store import write_scores
from toolformer_ops.runs.summary import (
    CountedFailure,
    NothingReleased,
    RunSummary,
    documents_taken,
    summarise,
)
from toolformer_ops.storage.postgres import database

TOOLS = (Tool("Calculator"), Tool("Calendar", reads_record=True))


def night(
    nights: Nights, run_id: str, *tools: Tool, lacking: tuple[str, ...] = (), **start: Any
) -> RunSummary:
    nights.start(run_id, *tools, **start)
    nights.work(run_id, *tools)
    nights.release(run_id, lacking=lacking)
    nights.finish(run_id)
    return summarise_one(nights, run_id)


def summarise_one(nights: Nights, run_id: str) -> RunSummary:
    with database.transaction(nights.engine) as connection:
        return summarise(connection, run_id)


def texts(*numbers: int, url: str = "https://x.org/2023/01/30") -> list[Record]:
    return [Record(f"text {number}", url, f"r{number}") for number in numbers]


def test_the_first_night_has_all_documents_anew(nights):
    nights.ingest(*texts(*range(30)))
    first = night(nights, "one", *TOOLS)
    assert (first.previous_run_id, first.documents, first.documents_added, first.documents_removed) == (
        None,
        30,
        30,
        0,
    )
    assert [(tool.annotated, tool.reused) for tool in first.tools] == [(30, 0), (30, 0)]
    assert first.examples_changed == first.examples == first.examples_added > 0
    done = [tool.done_by_stage for tool in first.tools]
    assert first.device_seconds == sum(0.5 * (by_stage["sample"] + by_stage["score"]) for by_stage in done)
    assert "the first of its kind" in first.as_text()


def test_a_night_with_nothing_new_says_so_plainly(nights):
    nights.ingest(*texts(*range(30)))
    first = night(nights, "one", *TOOLS)
    second = night(nights, "two", *TOOLS)
    assert second.is_nothing_new
    assert (second.previous_run_id, second.release_id) == ("one", first.release_id)
    assert (second.examples_changed, second.device_seconds) == (0, 0.0)
    assert second.headline == "nothing new"
    assert second.as_text().startswith("- Nothing new\n- 30 texts and release ")


def test_a_night_says_what_moved_from_corpus_to_release(nights):
    nights.ingest(*texts(*range(60)))
    first = night(nights, "one", *TOOLS)
    mended = [replace(record, text=record.text + ", mended") for record in texts(*range(20, 25))]
    nights.ingest(*texts(*range(10, 20)), *mended, *texts(*range(25, 30), url="u"), *texts(*range(30, 80)))
    second = night(nights, "two", *TOOLS)
    moved = (
        second.documents_added,
        second.documents_removed,
        second.documents_corrected,
        second.documents_changed,
    )
    assert moved == (25, 15, 5, 5)  # 20 new and 5 mended; 10 gone and 5 mended
    by_tool = {tool.tool: tool for tool in second.tools}
    assert (by_tool["Calculator"].annotated, by_tool["Calculator"].reused) == (25, 45)
    assert (by_tool["Calendar"].annotated, by_tool["Calendar"].reused) == (30, 40)
    assert set(by_tool["Calculator"].removed_by_reason) <= {
        "text_removed",
        "text_changed",
        "better_call_at_position",
    }
    assert "record_corrected" in by_tool["Calendar"].removed_by_reason
    assert second.examples == first.examples + second.examples_added - second.examples_removed
    written = second.as_text()
    assert written.startswith("- 25 new texts, ")
    assert (
        "- Corpus: 70 texts, 15 gone, 5 with another url, date or title, 5 of a record with another text"
        in written
    )
    assert all(line.startswith("- ") for line in written.splitlines())  # a list, wherever it is read


def test_what_a_night_that_failed_did_is_not_reused(nights):
    nights.ingest(*texts(*range(30)))
    night(nights, "one", *TOOLS)
    nights.ingest(*texts(*range(40)))
    for number, share in enumerate((0.3, 0.6)):
        nights.start(f"failed-{number}", *TOOLS)
        nights.work(f"failed-{number}", *TOOLS, share=share)
        nights.finish(f"failed-{number}", "failed", "failed: MT.annotate (2 shards). None.")
    second_failed = summarise_one(nights, "failed-1")
    assert second_failed.headline == "FAILED: MT.annotate (2 shards)"
    assert second_failed.as_text().startswith("failed: MT.annotate (2 shards). None.\n\n- Corpus: ")
    second = night(nights, "two", *TOOLS)
    for tool in second.tools:
        assert (tool.annotated + tool.annotated_by_failed, tool.reused) == (10, 30)
        assert tool.annotated_by_failed > 0
    third = night(nights, "three", *TOOLS)
    assert third.is_nothing_new
    assert [(tool.annotated_by_failed, tool.reused) for tool in third.tools] == [(0, 40), (0, 40)]


def test_a_summary_shows_the_best_new_calls(nights):
    tool = Tool("Calculator")
    lead = "`<!channel> <b>[x](http://x.example) "
    nights.ingest(*texts(*range(20)))
    night(nights, "one", tool)
    nights.ingest(*texts(*range(20)), *(Record(f"{lead}{number}") for number in range(20)))
    second = night(nights, "two", tool)
    assert len(second.best_calls) == 2
    saved = [call.gain for call in second.best_calls]
    assert saved == sorted(saved, reverse=True)
    assert saved[0] == 2.5
    line = next(line for line in second.as_text().splitlines() if line.startswith("- New call: "))
    assert re.fullmatch(r"- New call: `[^`<]*\[Calculator\([^`<]*` \(Calculator, saves 2\.50 nats\)", line)


def test_a_summary_shows_the_scores_of_its_model(nights):
    tool = Tool("Calculator")
    nights.ingest(*texts(*range(20)))
    night(nights, "one", tool)
    nights.ingest(*texts(*range(40)))
    second = night(nights, "two", tool)
    with database.transaction(nights.engine) as connection:
        columns = ("model_id", "release_id", "run_id", "uri", "manifest_sha256")
        model = ("5c08a1b2c3d4", second.release_id, "two", "u", "0" * 64)
        database.copy_insert(connection, "finetuned_models", columns, [model])
        connection.exec_driver_sql("insert into run_models (run_id, model_id) values ('two', '5c08a1b2c3d4')")
        scores = [
            SuiteScore("math", "svamp", name, variant, rank, 8, "share_correct", score, 0, 1, {}, 0, None, score, 1, "0" * 64)
            for name, variant, rank, score in (
                ("m", "base", 0, 0.25), ("ours", "with_tools", 1, 0.4), ("ours", "with_tools", 10, 0.5),
            )
        ]  # fmt: skip
        write_scores(connection, "two", scores, {"m": None, "ours": model[0]}, {})
    told = summarise_one(nights, "two")
    calls = sum(tool.calls_added for tool in second.tools)
    assert told.headline == f"20 new texts, {calls} new calls, model 5c08a1b2"
    assert "math svamp share correct 50.0% of 8 inputs, before finetuning 25.0%" in told.as_text()


def test_a_failed_check_is_a_warning(nights):
    nights.ingest(*texts(*range(30)))
    night(nights, "one", *TOOLS)
    with database.transaction(nights.engine) as connection:
        columns = ("run_id", "subject", "check_name", "severity", "success", "message")
        failed = ("one", "Calendar", "losses_are_finite", "fail", False, "3 losses are not finite")
        database.copy_insert(connection, "quality_results", columns, [failed])
    assert summarise_one(nights, "one").warnings == ("Calendar: 3 losses are not finite",)


def test_that_a_tool_keeps_nothing_is_said_once(nights):
    nights.ingest(*texts(*range(30)))
    night(nights, "one", *TOOLS)
    with database.transaction(nights.engine) as connection:
        columns = ("run_id", "subject", "check_name", "severity", "success", "message")
        failed = [
            ("one", "Calendar", "some_call_is_kept", "warn", False, "expected a kept call"),
            ("one", "release", "every_tool_is_present", "warn", False, "expected every tool"),
        ]
        database.copy_insert(connection, "quality_results", columns, failed)
    assert summarise_one(nights, "one").warnings == ("no call is kept of Calendar",)


def test_a_lacking_tool_is_a_warning(nights):
    nights.ingest(*texts(*range(30)))
    night(nights, "one", *TOOLS)
    second = night(nights, "two", *TOOLS, lacking=("Calendar",))
    assert second.warnings == ("the release lacks Calendar",)
    [_, calendar] = second.tools
    assert set(calendar.removed_by_reason) == {"tool_lacking"}


def test_new_documents_without_a_new_kept_call_are_a_warning(nights):
    nights.ingest(*texts(*range(30)))
    night(nights, "one", TOOLS[0])
    nights.ingest(*texts(*range(30), 31))  # the Calculator keeps no call in text 31
    assert night(nights, "two", TOOLS[0]).warnings == ("1 new documents, but no new kept call",)


def test_a_run_is_compared_with_its_own_schedule_and_a_run_by_hand_with_its_model(nights):
    nights.ingest(*texts(*range(30)))
    other_model = replace(TOOLS[0], model="m@2")
    for run_id, tool, schedule in (
        ("a-1", TOOLS[0], "a"), ("b-1", TOOLS[0], "b"), ("hand-1", TOOLS[0], None), ("hand-2", other_model, None),
        ("a-2", other_model, "a"), ("b-2", TOOLS[0], "b"), ("hand-3", TOOLS[0], None),
    ):  # fmt: skip
        night(nights, run_id, tool, schedule=schedule)
    compared = {
        run_id: summarise_one(nights, run_id).previous_run_id for run_id in ("a-2", "b-2", "hand-2", "hand-3")
    }
    assert compared == {"a-2": "a-1", "b-2": "b-1", "hand-2": None, "hand-3": "b-2"}


def test_commands_list_the_runs_with_their_changes_by_reason(nights, postgres_dsn, monkeypatch):
    monkeypatch.setenv("TOOLFORMER_DATABASE_DSN", postgres_dsn)
    load_settings.cache_clear()

    def command(*arguments: str) -> Result:
        return CliRunner().invoke(app, arguments)

    assert json.loads(command("runs", "--json").stdout) == []
    nights.ingest(*texts(*range(60)))
    first = night(nights, "one", *TOOLS)
    nights.ingest(*texts(*range(10, 80)))
    second = night(nights, "two", *TOOLS)
    night(nights, "three", *TOOLS)
    nights.start("four", *TOOLS, schedule=None)
    listed = json.loads(command("runs", "--json").stdout)
    assert [(run["run_id"], run["state"], run["schedule"], run["documents"]) for run in listed] == [
        ("four", "running", None, 70),
        ("three", "success", "nightly", 70),
        ("two", "success", "nightly", 70),
        ("one", "success", "nightly", 60),
    ]
    assert [run["own_documents"] for run in listed] == [0, 0, 40, 120]
    assert listed[3]["kept_calls"] == sum(tool.kept for tool in first.tools)
    assert listed[3]["release_id"] == first.release_id not in command("runs", "--limit", "2").stdout
    shown = command("changes", "two", "--calls", "3").stdout
    assert shown.startswith(second.as_text())
    assert {"text_new", "text_removed"} <= {*shown.split()}
    found = json.loads(command("changes", "two", "--calls", "1000", "--json").stdout)
    assert found["summary"]["documents_added"] == 20
    assert len(found["calls"]) == sum(count["calls"] for count in found["changes"]) > 0
    assert "Nothing new" in command("changes", "three").stdout
    across = json.loads(command("changes", "one", "three", "--json").stdout)
    assert (across["summary"]["run_id"], across["summary"]["previous_run_id"]) == ("three", "one")
    assert across["changes"] == found["changes"]
    assert isinstance(command("changes", "none").exception, UsageError)


def test_a_run_says_how_many_of_its_corpus_documents_it_takes(nights):
    nights.ingest(*texts(*range(30)))
    nights.start("all", *TOOLS)
    nights.start("some", *TOOLS, limit=10)
    with database.transaction(nights.engine) as connection:
        assert str(documents_taken(connection, "all")) == "30 of 30 texts (no document limit)"
        assert str(documents_taken(connection, "some")) == "10 of 30 texts (document limit 10)"


def test_a_run_with_a_limit_is_summed_up_with_what_it_leaves_out(nights):
    nights.ingest(*texts(*range(30)))
    assert (
        "- Corpus: 10 texts of 30, by the document limit" in night(nights, "some", *TOOLS, limit=10).as_text()
    )


def test_a_run_without_a_kept_call_says_what_comes_nearest(settings):
    note = summary_of_run_that_keeps_nothing(settings).as_text().splitlines()
    assert note[:2] == [
        "- No call was kept, so nothing is released",
        "- 2 texts, 2 calls sampled, 2 of them scored",
    ]
    assert note[2].endswith("[Calculator(520 - 187) -> 333] 333 left.` (Calculator, saves 2.26 nats)")
    assert "saves -0.50 nats" in note[3]


def test_a_run_without_a_kept_call_says_which_threshold_keeps_how_many(settings):
    note = summary_of_run_that_keeps_nothing(settings).as_text().splitlines()
    found = "Calculator: 2.25 keeps 1 (now 3; what is pruned below 0.5 is not counted)"
    assert note[4] == f"- Thresholds in nats: {found}"


def test_a_run_without_a_kept_call_is_told_so_in_its_headline(settings):
    assert summary_of_run_that_keeps_nothing(settings).headline == "No call was kept, so nothing is released"


def test_a_run_without_a_kept_call_says_so_once(settings):
    note = summary_of_run_that_keeps_nothing(settings).as_text()
    told = [line for line in note.splitlines() if "release" in line or "no new kept call" in line]
    assert len(told) == 1


def test_a_run_without_a_kept_call_says_what_the_tools_said(settings):
    failure = CountedFailure(
        "Shop", "query_invalid", "no such column: prise", 50, "SELECT prise FROM products"
    )
    nothing = NothingReleased(
        sampled=50, scored=0, is_nothing_kept=True, nearest=(), thresholds=(), failures=(failure,)
    )
    assert nothing.lines(30)[1] == (
        "Without result: 50 calls of Shop, no such column: prise, as in SELECT prise FROM products"
    )


def test_a_run_that_is_at_work_is_not_said_to_have_kept_nothing(settings):
    run = run_that_keeps_nothing(settings)
    with database.transaction(run.engine) as connection:
        assert summarise(connection, run.run_id).nothing_released is None


def run_that_keeps_nothing(settings: Settings) -> AnnotatedRun:
    """A run over two texts with a call each, below the thresholds of 3 and 1 nats."""
    run = AnnotatedRun(settings, {"Calculator": 3.0, "Calendar": 1.0})
    shirts = run.add_text("The shop had 520 shirts and sold 187 of them, so it has 333 left.")
    post = run.add_text("We met on a Friday.")
    run.add_call("Calculator", shirts, " 333", "520 - 187", "333", saves=2.256)
    run.add_call("Calendar", post, " Friday", "", "Today is Friday, March 1, 2019.", saves=-0.5)
    run.complete("Calculator", "Calendar")
    return run


def summary_of_run_that_keeps_nothing(settings: Settings) -> RunSummary:
    """Its summary once it has ended."""
    run = run_that_keeps_nothing(settings)
    run.change("update annotation_runs set state = 'success', finished_at = now()")
    with database.transaction(run.engine) as connection:
        return summarise(connection, run.run_id)
