"""The release: which calls it holds, how they stand in the texts, and that it is published once."""

import random
import uuid
from pathlib import Path
from unittest.mock import Mock

import pyarrow.parquet as pq
import pytest
from sqlalchemy import text as sql

from studies.following import result_follows
from tests.annotated_runs import AnnotatedRun, recipe_id, release
from tests.servers import flip_a_byte
from toolformer_ops.audit.checking import check_release
from toolformer_ops.config import REPOSITORY, Settings
from toolformer_ops.errors import (
    CorruptObjectError,
    NoResultError,
    ObjectStoreError,
    UsageError,
)
from toolformer_ops.records import Document
from toolformer_ops.release import format as release_format
from toolformer_ops.release.format import ReleasedText, read_release
from toolformer_ops.stages.release import release_of_run, release_prefix
from toolformer_ops.storage.objects.publication import ObjectStore
from toolformer_ops.storage.postgres import database

SUM = "Out of 1400 people, 400 passed, that is 29 %."
DATE = "Today is the first Friday of the year."


def _released(settings: Settings, release_id: str, folder: Path) -> list[ReleasedText]:
    ObjectStore(settings).fetch(release_prefix(release_id), folder)
    return list(read_release(folder))


def annotated(settings: Settings, text: str = SUM) -> tuple[AnnotatedRun, Document]:
    """A complete run over one text, with a call of the calculator before " 29" that is kept."""
    run = AnnotatedRun(settings, {"Calculator": 0.5})
    document = run.add_text(text)
    run.add_call("Calculator", document, " 29", "400 / 1400", "0.29", saves=1.25)
    run.complete("Calculator")
    return run, document


def example(language: str) -> str:
    """The first of a language on the page about releases."""
    page = (REPOSITORY / "docs" / "releases.md").read_text(encoding="utf-8")
    return page.partition(f"```{language}\n")[2].partition("```")[0]


def test_a_kept_call_is_in_its_text_with_everything_about_it_in_the_columns(
    settings, tmp_path, monkeypatch, capsys
):
    run = AnnotatedRun(settings, {"Calculator": 0.5}, document_limit=2)
    document = run.add_text(SUM, "https://example.org/2023/01/30/exam")
    run.add_text("A text without a call is left out.")
    call_id = run.add_call("Calculator", document, " 29", "400 / 1400", "0.29", saves=1.25)
    run.add_call(
        "Calculator", run.add_text(f"{SUM} Beyond the limit."), " 29", "400 / 1400", "0.29", saves=1.25
    )
    run.complete("Calculator")

    release_id = release(settings, run.run_id)

    [text] = _released(settings, release_id, tmp_path)
    assert text.text == "Out of 1400 people, 400 passed, that is [Calculator(400 / 1400) -> 0.29] 29 %."
    assert text.plain_text == SUM
    assert (text.document_id, text.url) == (document.document_id, "https://example.org/2023/01/30/exam")
    [call] = text.calls
    assert (call.tool, call.input, call.result, call.position_char) == (
        "Calculator",
        "400 / 1400",
        "0.29",
        39,
    )
    assert (call.loss_without_call, call.loss_without_result, call.loss_with_result) == (3.0, 3.5, 1.75)
    assert (call.loss_reduction, call.call_id) == (1.25, str(call_id))
    recipes = recipe_id("score", "Calculator"), recipe_id("execute", "Calculator")
    assert (call.scoring_recipe_id, call.execution_recipe_id) == recipes
    assert run.rows("select release_id, document_id, call_id, tool from release_calls") == [
        (release_id, document.document_id, call_id, "Calculator")
    ]
    # The examples of the page find the release and read it.
    [row] = run.rows(example("sql").rstrip().rstrip(";"))
    assert (row.run_id, row.release_id, row.documents, row.calls) == (run.run_id, release_id, 1, 1)
    (tmp_path / "page").mkdir()
    monkeypatch.chdir(tmp_path / "page")
    exec(compile(example("python").replace("RELEASE_ID", release_id), "releases.md", "exec"), {})  # noqa: S102
    assert "that is [Calculator(400 / 1400) -> 0.29] 29 %." in capsys.readouterr().out


CONTROLS = "".join(map(chr, range(1, 0xA0)))


def test_a_text_is_released_with_its_control_characters(settings, tmp_path):
    text = f"{CONTROLS}\n\f{SUM}\f\r\n"
    run, document = annotated(settings, text)
    [released] = _released(settings, release(settings, run.run_id), tmp_path)
    assert released.plain_text == text
    assert released.text == text.replace(" 29", " [Calculator(400 / 1400) -> 0.29] 29")
    assert released.document_id == document.document_id


def test_the_card_of_a_release_shows_no_control_character(settings, tmp_path):
    run, _ = annotated(settings, f"\x1b[2J\x9b0m\f{SUM}")
    _released(settings, release(settings, run.run_id), tmp_path)
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "\u27e8U+001B\u27e9[2J\u27e8U+009B\u27e90m\u27e8U+000C\u27e9Out of 1400 people" in card
    assert not set(card) & set("\x1b\x9b\f")


def test_the_card_names_a_proposer_behind_an_endpoint_with_its_day_under_its_licence(settings, tmp_path):
    run, document = annotated(settings)
    proposer = "endpoint:maker/writer@1"
    run.change(
        "insert into recipes (recipe_id, stage, tool, definition) "
        "values (:recipe, 'sample', 'Calculator', jsonb_build_object('proposer', cast(:proposer as text)))",
        recipe=recipe_id("sample", "Calculator"),
        proposer=proposer,
    )
    run.change(
        "insert into proposer_endpoints values (:proposer, 'maker/writer', 'chat', 'apache-2.0', '{}')",
        proposer=proposer,
    )
    run.change(
        "insert into proposer_answers values (:document, :proposer, :document, '{}', '2026-11-26 23:30:00+00')",
        proposer=proposer,
        document=document.document_id,
    )
    _released(settings, release(settings, run.run_id), tmp_path)
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "Calls were proposed by `maker/writer`, behind an endpoint, on 2026-11-26, and kept by `" in card
    assert "Licence of the proposer's answers: apache-2.0." in card


def test_the_checks_of_a_release_take_its_control_characters(settings):
    run, _ = annotated(settings, f"{CONTROLS}{SUM}")
    release(settings, run.run_id)
    check_release(settings, run.run_id)


def test_at_each_position_the_best_call_that_reaches_its_tools_threshold_is_released(settings, tmp_path):
    run = AnnotatedRun(settings, {"Calculator": 0.5, "QA": 1.0})
    document, second = run.add_text(SUM), run.add_text(DATE)
    run.add_call("Calculator", document, " 29", "400 / 1400", "0.29", saves=0.5)
    run.add_call("Calculator", document, " 400", "1400 - 1000", "400", saves=0.4375)
    run.add_call("QA", document, " people", "Who?", "people", saves=1.0)
    run.add_call("QA", document, " passed", "What?", "pass", saves=0.9375)
    run.add_call("Calculator", second, " first", "1", "1", saves=1.25)
    run.add_call("QA", second, " first", "Which?", "first", saves=2.0)
    tied = [run.add_call("Calculator", second, " year", f"{1 + n} - {n}", "1", saves=1.0) for n in (1, 2, 3)]
    run.complete("Calculator", "QA")

    texts = {text.document_id: text for text in _released(settings, release(settings, run.run_id), tmp_path)}
    woven = (
        "Out of 1400 [QA(Who?) -> people] people, 400 passed, that is [Calculator(400 / 1400) -> 0.29] 29 %."
    )
    assert texts[document.document_id].text == woven
    best, tie = texts[second.document_id].calls
    assert (best.tool, tie.tool, tie.call_id) == ("QA", "Calculator", str(min(tied)))


@pytest.mark.parametrize("max_examples", [1, 2, 4])
def test_the_first_texts_of_each_tool_are_released_also_where_others_take_its_places(settings, max_examples):
    run = AnnotatedRun(settings, {"Calculator": 0.5, "QA": 0.5}, max_examples_per_tool=max_examples)
    saves: dict[uuid.UUID, dict[str, list[float]]] = {}
    for number in range(8):
        document = run.add_text(f"{number}: {SUM}")
        # QA loses the place " 29" in all texts but two; half of the texts have another call of it.
        saves[document.document_id] = {
            "Calculator": [1.25],
            "QA": [2.0 if number in (2, 5) else 1.0, *([0.75] if number % 2 else [])],
        }
        run.add_call("Calculator", document, " 29", "400 / 1400", "0.29", saves=1.25)
        for place, saved in zip((" 29", " people"), saves[document.document_id]["QA"], strict=False):
            run.add_call("QA", document, place, "How many?", "29", saves=saved)
        run.add_call("QA", document, " passed", "What?", "it", saves=2.0, input_only_after=True)
    run.complete("Calculator", "QA")
    release(settings, run.run_id)
    released = {*map(tuple, run.rows("select document_id, tool, count(*) from release_calls group by 1, 2"))}
    expected, last = set(), dict.fromkeys(("Calculator", "QA"), 0)
    for document_id, of_document in sorted(saves.items()):
        calculator_is_best = of_document["QA"][0] < 1.25
        best = {"Calculator": int(calculator_is_best), "QA": len(of_document["QA"]) - int(calculator_is_best)}
        for tool, calls in best.items():
            if calls and last[tool] < max_examples:
                last[tool] += 1
                expected.add((document_id, tool, calls))
    assert released == expected


@pytest.mark.parametrize("max_examples", [1, 3])
@pytest.mark.parametrize("seen_before", [(), (0, 2, 4, 6), range(8)], ids=["no text", "half", "every text"])
def test_texts_are_released_in_the_same_order_whichever_record_of_them_was_ingested_first(
    settings, max_examples, seen_before
):
    run = AnnotatedRun(settings, {"Calendar": 1.0}, max_examples_per_tool=max_examples)
    texts = []
    for number in range(8):
        text = run.add_text(f"{number}: {DATE}", f"https://example.org/2023/01/0{number + 1}/")
        records = [text]
        if number in seen_before:  # the run reads a variant; a call of the first record is kept, too
            records.append(run.correct_url(text, f"https://example.org/2023/02/0{number + 1}/"))
        for record in records:
            run.add_call("Calendar", record, " Friday", "", "Today is Friday, January 6, 2023.", saves=2.0)
        run.complete("Calendar", documents=records)
        texts.append(text.document_id)
    release(settings, run.run_id)
    released = run.rows("select document_id from release_calls order by 1")
    assert [row.document_id for row in released] == sorted(texts)[:max_examples]


def test_neither_incomplete_nor_failed_tools_are_released(settings, tmp_path):
    run = AnnotatedRun(settings, {"Calculator": 0.5, "Calendar": 1.0, "QA": 1.0})
    first, second = run.add_text(SUM), run.add_text(DATE)
    run.add_call("Calculator", first, " 29", "400 / 1400", "0.29", saves=1.25)
    run.add_call("Calendar", second, " Friday", "", "Today is Friday, January 6, 2023.", saves=2.0)
    run.add_call("QA", second, " first", "Which?", "first", saves=2.0)
    run.complete("Calculator", "QA")
    run.complete("Calendar", without=second)
    run.change(
        "insert into quality_results (run_id, subject, check_name, severity, success) "
        "values ('run-1', 'QA', 'enough_texts_are_kept', 'fail', false)"
    )
    release_id = release(settings, run.run_id)
    [text] = _released(settings, release_id, tmp_path)
    assert text.tools == ("Calculator",)
    assert run.rows("select lacking_tools from dataset_releases") == [(["Calendar", "QA"],)]
    # A tool that is mended gives another release, to which the run then points.
    run.complete("Calendar", documents=[second])
    whole = release(settings, run.run_id)
    assert whole != release_id
    assert run.rows("select release_id from run_releases") == [(whole,)]
    assert len(run.rows("select 1 from release_calls")) == 1 + 2


def test_the_same_calls_of_another_run_are_the_same_release(settings):
    run, _ = annotated(settings)
    first = release(settings, run.run_id)
    keys = list(ObjectStore(settings).list("releases/"))
    assert release(settings, run.run_id) == first

    AnnotatedRun(settings, {"Calculator": 0.5}, run_id="run-2").add_text(SUM)
    assert release(settings, "run-2") == first
    assert list(ObjectStore(settings).list("releases/")) == keys
    assert run.rows("select run_id from dataset_releases") == [("run-1",)]
    assert run.rows("select run_id, release_id from run_releases order by 1") == [
        ("run-1", first),
        ("run-2", first),
    ]
    assert len(run.rows("select 1 from release_calls")) == 1


def test_another_threshold_or_url_is_another_release(settings):
    run, document = annotated(settings)
    first = release(settings, run.run_id)
    AnnotatedRun(settings, {"Calculator": 1.0}, run_id="run-3").add_text(SUM)
    assert release(settings, "run-3") != first
    run.correct_url(document, "https://example.org/b")  # of the same calls
    another = release(settings, run.run_id)
    assert another != first


def test_every_kept_call_that_is_not_released_is_counted_under_its_reason(settings):
    run = AnnotatedRun(settings, {"Calculator": 0.5, "Calendar": 1.0, "QA": 1.0}, max_examples_per_tool=2)
    documents = [run.add_text(f"Sum number {n} is {n + n} and this is a Friday.") for n in range(10, 14)]
    for document in documents:
        run.add_call("Calculator", document, " and", "1 + 1", "2", saves=1.0)
        run.add_call("Calculator", document, " is", "9 + 9", "18", saves=0.25)
    run.add_call("Calculator", documents[0], " and", "2 + 2", "4", saves=2.0)
    run.add_call("Calculator", documents[1], " number", "1", "1", saves=3.0, input_only_after=True)
    run.add_call("Calendar", documents[2], " and", "", "Today is Friday, January 6, 2023.", saves=2.5)
    run.add_call("QA", documents[3], " Friday", "Which day?", "Friday", saves=2.0)
    run.complete("Calculator", "Calendar")  # QA is not scored, so that the release lacks it

    release(settings, run.run_id)

    yields = (
        "select tool, reason, count from yield_by_stage where stage = 'release' and count > 0 order by 1, 2"
    )
    # Calculator keeps 6 calls. At " and", document 0 has a better one of the same tool and document 2 one of
    # Calendar. Of the three texts that are left with a call of Calculator two are released.
    assert run.rows(yields) == [
        ("Calculator", "above_max_examples", 1),
        ("Calculator", "better_call_at_position", 2),
        ("Calculator", "input_only_after", 1),
        ("Calculator", "released", 2),
        ("Calendar", "released", 1),
        ("QA", "not_in_release", 1),
    ]
    sums = run.rows(
        "select distinct sum(count) filter (where stage = 'keep' and reason = 'kept') "
        "= sum(count) filter (where stage = 'release') from yield_by_stage group by tool"
    )
    assert sums == [(True,)]


@pytest.mark.parametrize(
    ("result", "text", "follows"),
    [
        ("-327", " 327 left.", "other_sign"),
        ("327", " -327 left.", "other_sign"),
        ("-327.4", " 327 left.", "other_sign"),  # also rounded
        ("-5", " -$5 a day", "equal"),
        ("5", " \u2212$5 a day", "other_sign"),
        ("-5", " at \u20135 degrees", "equal"),  # an en dash
        ("5", " of 5\u201310 years", "equal"),
        ("-10", " of 5\u201310 years", "other_sign"),
        ("10", " of 5\u201310 years", "equal"),
        ("-5", " at minus 5 degrees", "equal"),
        ("5", " at negative 5 degrees", "other_sign"),
        ("5", " 10 minus 5 is", "equal"),
        ("-5", " minus five degrees", "no"),  # words are not read
        ("-5", " of (5) million", "equal"),
        ("5", " of (5) million", "equal"),
        ("-5", " ($5 a day) or", "other_sign"),
        ("-0.052", " by (5.2)% or", "equal"),
        ("5", " 5 and not -5", "equal"),
        ("327", " 327 left.", "equal"),
        ("0.29", " 29 %, that", "equal"),
        ("0.2857", " 29% of them", "nearly"),  # rounded in the text
        ("29", " 28.6 of", "nearly"),  # rounded by the tool
        ("1234567.5", " about $1,234,567.50, it", "equal"),
        ("12", " a b c d e 12", "no"),  # the sixth word
        ("12", " 120 or 1,2", "no"),
        ("5", "", "no"),
        ("5", " 50 cats", "no"),
        ("7", " agent 007 left", "equal"),
        ("5", " 500% more", "equal"),
        ("16", " an A16 road", "equal"),
        ("-3", " \u22123 degrees", "equal"),
        ("-12", " 10-12 years", "other_sign"),  # a hyphen between numbers is no sign
        ("12", " 10-12 years", "equal"),
        ("-10", " 5%-10% of", "other_sign"),
        ("-16", " an F-16 or", "other_sign"),
        ("-12", " from -12 degrees", "equal"),
        ("New York", " in the city of new-york, where", "equal"),
        ("York", " Yorkshire", "no"),
        (".*", " anything", None),
        ("Today is Friday, January 6, 2023.", " Today is Friday, January 6, 2023.", "equal"),
        ("Today is Friday, January 6, 2023.", " the first Friday of the year", "equal"),
        ("Today is Friday, January 6, 2023.", " we met on January 6th.", "equal"),
        ("Today is Friday, January 6, 2023.", " on the 6th of January", "equal"),
        ("Today is Friday, January 6, 2023.", " in January of that year", "nearly"),
        ("Today is Friday, January 6, 2023.", " it is 2023 now", "nearly"),
        ("Today is Friday, January 6, 2023.", " January 16 is a Monday", "nearly"),
        ("Today is Friday, January 6, 2023.", " we meet on Monday", "no"),
        ("One of several answers of six words.", " One of several answers of six words.", None),
    ],
)
def test_a_result_follows_if_the_text_goes_on_with_it(settings, result, text, follows):
    with database.transaction(database.connect(settings)) as connection:
        asked = sql("select result_follows(:result, :text)")
        assert connection.execute(asked, {"result": result, "text": text}).scalar() == follows
    assert result_follows(result, text) == follows


PIECES = [
    " ",
    "5",
    "05",
    "12",
    "0",
    "1",
    ".",
    ",",
    "%",
    " % ",
    "-",
    "\u2212",
    " 5 ",
    " 12, ",
    "word ",
    "1,000",
    "000",
]
PIECES += [
    "3.5",
    "50",
    "500%",
    " 007",
    "F-16",
    "100",
    "\n",
    "  ",
    "9",
    "\u2013",
    "(",
    ")",
    "$",
    " minus ",
    "Negative ",
]
RESULTS = ["5", "12", "100", "7", "1000", "19", "05", "0", "-5", "5%", "1,000", "3.5", "12 "]


def test_numbers_follow_in_the_database_as_in_python(settings):
    drawn = random.Random(5)  # noqa: S311 - no secret
    results = [drawn.choice(RESULTS) for _ in range(3000)]
    texts = ["".join(drawn.choices(PIECES, k=drawn.randrange(1, 13))) for _ in results]
    with database.transaction(database.connect(settings)) as connection:
        asked = sql(
            "select result_follows(result, text_after) "
            "from unnest(cast(:results as text[]), cast(:texts as text[])) with ordinality as pair (result, text_after, number) "
            "order by number"
        )
        in_database = connection.execute(asked, {"results": results, "texts": texts}).scalars().all()
    assert in_database == list(map(result_follows, results, texts))
    assert {*in_database} == {"equal", "nearly", "other_sign", "no"}


def test_a_release_of_results_that_follow_has_the_next_best_call(settings, tmp_path):
    run, strict = (
        AnnotatedRun(settings, {"Calculator": 0.5}, run_id, require_following=asked)
        for run_id, asked in (("run-1", False), ("strict", True))
    )
    for text in (
        texts := ("Ann had 520, sold 193, so 327 are left of them.", "520 less 193, so 327 are left.")
    ):
        document = run.add_text(text)
        strict.add_text(text)
        run.add_call("Calculator", document, " so", "193 - 520", "-327", saves=2.0)
        run.add_call("Calculator", document, " are", "1 + 1", "2", saves=2.0)
    run.complete("Calculator")
    assert "2 calls are left out, since require_following is set" in release_of_run(settings, "strict").reason
    run.add_call("Calculator", document, " so", "520 - 193", "327", saves=1.0)
    release(settings, run.run_id)
    [held] = _released(settings, release(settings, strict.run_id), tmp_path)
    assert held.text == f"{texts[1][:13]} [Calculator(520 - 193) -> 327] so 327 are left."
    assert [call.result_follows for call in held.calls] == ["equal"]
    card = (tmp_path / "README.md").read_text()
    assert "calls that are not equal are left out" in card
    assert "| Calculator | 1 | 0 | 0 | 0 |" in card
    counted = "select reason, count from yield_by_stage where run_id = 'strict' and step = 7 and count > 0 order by 1"
    outcomes = (
        "select release_outcome, count(*) from candidates where run_id = 'strict' group by 1 order by 1"
    )
    expected = [("released", 1), ("result_does_not_follow", 2), ("result_has_other_sign", 2)]
    assert run.rows(counted) == expected == run.rows(outcomes)
    changes = "select reason, count(*) from release_changes_between('strict', 'run-1') group by 1 order by 1"
    assert run.rows(changes) == [("result_does_not_follow", 2)]


def test_a_release_has_no_call_that_gives_minus_the_number_of_its_text(settings):
    run = AnnotatedRun(settings, {"Calculator": 0.5})
    document = run.add_text("Of 520 cards 187 were sold, so 333 are left.")
    run.add_call("Calculator", document, " so", "187 - 520", "-333", saves=2.0)
    run.complete("Calculator")
    reason = release_of_run(settings, run.run_id).reason
    assert "1 calls are left out, since the text continues with the number of the other sign" in reason


def test_a_call_of_the_other_sign_is_counted_under_its_reason(settings):
    run = AnnotatedRun(settings, {"Calculator": 0.5})
    document = run.add_text("Of 520 cards 187 were sold, so 333 are left.")
    run.add_call("Calculator", document, " so", "187 - 520", "-333", saves=2.0)
    run.add_call("Calculator", document, " so", "520 - 187", "333", saves=1.0)
    run.complete("Calculator")
    release(settings, run.run_id)
    outcomes = run.rows("select call_text, release_outcome from candidates order by loss_reduction")
    assert outcomes == [
        ("Calculator(520 - 187)", "released"),
        ("Calculator(187 - 520)", "result_has_other_sign"),
    ]
    counted = "select count from yield_by_stage where reason = 'result_has_other_sign'"
    assert run.rows(counted) == [(1,)]


def test_many_files_hold_every_text_once_with_the_same_bytes_each_time(settings, tmp_path, monkeypatch):
    monkeypatch.setattr("toolformer_ops.release.choosing.PAGE_TEXTS", 2)
    monkeypatch.setattr(release_format, "ROW_GROUP_TEXTS", 2)
    monkeypatch.setattr(release_format, "FILE_TEXTS", 4)
    run = AnnotatedRun(settings, {"Calculator": 0.5})
    documents = [run.add_text(f"Twice {n} is {n + n} and no more.") for n in range(7)]
    for document in documents:
        run.add_call("Calculator", document, " and", "1 + 1", "2", saves=1.0)
    run.complete("Calculator")
    release_id = release(settings, run.run_id)
    store = ObjectStore(settings)
    manifest = store.fetch(release_prefix(release_id), tmp_path / "a")
    assert [file.name for file in manifest.files] == [
        "README.md",
        "data/part-00000.parquet",
        "data/part-00001.parquet",
    ]
    assert pq.ParquetFile(tmp_path / "a" / "data" / "part-00000.parquet").metadata.num_rows == 4
    texts = list(read_release(tmp_path / "a"))
    assert [text.document_id for text in texts] == sorted(item.document_id for item in documents)
    store.remove([*store.list(release_prefix(release_id))])
    release(settings, run.run_id)
    assert store.fetch(release_prefix(release_id), tmp_path / "b") == manifest


def test_what_was_lost_or_changed_on_s3_is_written_again_unless_the_manifest_is_another(
    settings, tmp_path, monkeypatch
):
    run, _ = annotated(settings)
    release_id, store = release(settings, run.run_id), ObjectStore(settings)
    prefix = release_prefix(release_id)
    manifest = store.fetch(prefix, tmp_path / "first")
    card, part = (manifest.key_of(file) for file in manifest.files)

    def again() -> None:
        assert release(settings, run.run_id) == release_id
        assert store.lacking(manifest) == {}

    # 1. Objects that are lost, another or damaged.
    store.delete(part)
    store.delete(card)
    store.put_if_absent(card, b"# Another card")
    again()
    flip_a_byte(store, part)
    again()
    # 2. The manifest.
    store.delete(manifest.key)
    (tmp_path / "other").write_text("another data set")
    store.publish(prefix, {"part-00000.parquet": tmp_path / "other"})
    with pytest.raises(CorruptObjectError, match="that Postgres registered"):
        release(settings, run.run_id)
    store.delete(manifest.key)
    again()
    # 3. A version that writes other bytes takes what is whole as it is; else it makes all anew, also if it is
    #    killed meanwhile.
    monkeypatch.setattr(
        "toolformer_ops.stages.release.dataset_card", lambda *_: "# A card of a later version"
    )
    again()
    assert store.read_manifest(prefix) == manifest
    store.delete(card)
    with monkeypatch.context() as patch:
        patch.setattr(ObjectStore, "conclude", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            release(settings, run.run_id)
    assert release(settings, run.run_id) == release_id
    [row] = run.rows("select manifest_sha256, withdrawn_at from dataset_releases")
    assert store.fetch(prefix, tmp_path / "anew", row.manifest_sha256) != manifest
    assert row.withdrawn_at is None
    assert (tmp_path / "anew" / "README.md").read_text() == "# A card of a later version"


def test_a_run_that_keeps_no_call_has_no_release_but_a_reason(settings):
    run = AnnotatedRun(settings, {"Calculator": 0.5})
    document = run.add_text(SUM)
    run.add_call("Calculator", document, " 29", "400 / 1400", "0.29", saves=0.25)
    run.complete("Calculator")
    released = release_of_run(settings, run.run_id)
    assert (released.release_id, released.changed_examples) == (None, 0)
    assert "threshold_counts shows what lower thresholds would keep" in released.reason


def test_a_release_of_nothing_says_whether_a_run_is_lacking(settings):
    run = AnnotatedRun(settings, {"Calculator": 0.5})
    document = run.add_text(SUM)
    run.add_call("Calculator", document, " 29", "400 / 1400", "0.29", saves=0.25)
    with pytest.raises(NoResultError, match="Calculator: documents not filtered: 1"):
        release(settings, run.run_id)
    run.complete("Calculator")
    with pytest.raises(UsageError, match="expected a started run, found 'nobody'"):
        release(settings, "nobody")
    with pytest.raises(ObjectStoreError, match="TOOLFORMER_S3_BUCKET=nowhere"):
        release(settings.model_copy(update={"s3_bucket": "nowhere"}), "nobody")
    smuggling = run.add_text("Smuggled [Calculator(1 + 1) -> 2] in, and 400 passed, that is 29 %.")
    run.add_call("Calculator", smuggling, " 29", "400 / 1400", "0.29", saves=1.25)
    run.complete("Calculator", documents=[smuggling])
    with pytest.raises(NoResultError, match=str(smuggling.document_id)):
        release(settings, run.run_id)
    assert list(ObjectStore(settings).list("")) == []
