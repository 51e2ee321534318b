"""Every file of sql/examples is run as the read-only role on data/small_annotation.sql, with the rows it must give.

The rows are those of the run r1, which is named; r2 is the newest finished one, which psql asks about by itself.
"""

import subprocess
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import Engine

from toolformer_ops.config import REPOSITORY, Settings
from toolformer_ops.local_services.postgres import psql
from toolformer_ops.storage import database

EXAMPLES = sorted(path.stem for path in (database.SQL_DIR / "examples").glob("*.sql"))

ROWS: dict[str, list[tuple[Any, ...]]] = {
    "01_how_far_is_my_run": [
        ("r1", "Calculator", "filter", 3, 3, 100),
        ("r1", "Calculator", "sample", 2, 2, 100),
        ("r1", "Calculator", "execute", 2, 2, 100),
        ("r1", "Calculator", "score", 2, 2, 100),
        ("r1", "Calendar", "filter", 3, 3, 100),
        ("r1", "Calendar", "sample", 1, 1, 100),
        ("r1", "Calendar", "execute", 1, 1, 100),
        ("r1", "Calendar", "score", 1, 1, 100),
        ("r1", "WikiSearch", "filter", 1, 3, 33),
        ("r1", "WikiSearch", "sample", 0, 1, 0),
        ("r1", "WikiSearch", "execute", 0, 1, 0),
        ("r1", "WikiSearch", "score", 0, 1, 0),
    ],
    "02_how_many_calls_are_kept": [
        ("Calculator", 0.5, True, 3, 2, 2, None, None, None),
        ("Calculator", 1.0, False, 2, 2, 2, None, None, None),
        ("Calculator", 2.0, False, 1, 1, 1, None, None, None),
        ("Calendar", 0.5, False, 1, 1, 1, None, None, None),
        ("Calendar", 1.0, True, 0, 0, 0, None, None, None),
        ("Calendar", 2.0, False, 0, 0, 0, None, None, None),
        ("WikiSearch", 0.5, False, 0, 0, 0, None, None, None),
        ("WikiSearch", 1.0, True, 0, 0, 0, None, None, None),
        ("WikiSearch", 2.0, False, 0, 0, 0, None, None, None),
    ],
    "03_which_calls_help_most": [
        (
            "Calculator",
            Decimal("2.38"),
            "She had 520 shirts, sold 187 and has [Calculator(520 - 187) -> 333] 333 left.",
        ),
        (
            "Calculator",
            Decimal("1.25"),
            "Out of 1400 participants, 400 (or [Calculator(400 / 1400) -> 0.29] 29%) passed the test.",
        ),
        (
            "Calculator",
            Decimal("0.63"),
            "She had [Calculator(520 - 187) -> 333] 520 shirts, sold 187 and has 333 left.",
        ),
    ],
    "04_where_do_calls_get_lost": [
        ("Calculator", "filter", "fewer_than_3_numbers", 1),
        ("Calculator", "sample", "sample_without_end", 4),
        ("Calculator", "sample", "duplicates_merged", 3),
        ("Calculator", "sample", "sample_does_not_parse", 3),
        ("Calculator", "execute", "divides_by_zero", 1),
        ("Calculator", "score", "divides_by_zero", 1),
        ("Calculator", "score", "loss_not_finite", 1),
        ("Calculator", "keep", "below_threshold", 1),
        ("Calculator", "release", "input_only_after", 1),
        ("Calendar", "filter", "no_url", 2),
        ("Calendar", "sample", "duplicates_merged", 4),
        ("Calendar", "keep", "below_threshold", 1),
    ],
    "05_what_would_another_threshold_keep": [
        ("Calculator", 0.0, False, 3, 2, 0, 0),
        ("Calculator", 0.25, False, 3, 2, 0, 0),
        ("Calculator", 0.5, True, 3, 2, 0, 0),
        ("Calculator", 1.0, False, 2, 2, 0, 0),
        ("Calculator", 1.5, False, 1, 1, 0, 0),
        ("Calculator", 2.0, False, 1, 1, 0, 0),
        ("Calendar", 0.0, False, 1, 1, 0, 0),
        ("Calendar", 0.25, False, 1, 1, 0, 0),
        ("Calendar", 0.5, False, 1, 1, 0, 0),
        ("Calendar", 1.0, True, 0, 0, 0, 0),
        ("Calendar", 1.5, False, 0, 0, 0, 0),
        ("Calendar", 2.0, False, 0, 0, 0, 0),
        *(("WikiSearch", threshold, threshold == 1.0, 0, 0, 0, 0) for threshold in (0.0, 0.25, 0.5, 1.0, 1.5, 2.0)),
    ],
    "06_what_was_tried_in_a_document": [
        (
            "Calculator",
            7,
            "Calculator(520 - 187)",
            "333",
            "kept",
            None,
            "input_only_after",
            1.5,
            1.375,
            0.75,
            0.625,
            0.625,
        ),
        ("Calculator", 36, "Calculator(520 - 187)", "333", "kept", None, "no_release", 3.0, 2.875, 0.5, 2.375, 2.375),
        ("Calculator", 36, "Calculator(520 / 187)", "2.78", "not_finite", "loss_not_finite", *[None] * 6),
    ],
    "07_which_records_were_refused": [
        (
            "no_text",
            2,
            "s3://toolformer/corpora/posts/a.jsonl line 2",
            "found 1 fields, and none called text (a line of 21 bytes)",
        ),
        ("corrupt_json", 1, "s3://toolformer/corpora/posts/b.jsonl line 4", "Expecting value"),
    ],
    "08_how_long_does_a_document_take": [
        ("Calculator", "filter", 3, Decimal("0.500"), Decimal("0.000")),
        ("Calculator", "sample", 2, Decimal("3.000"), Decimal("0.002")),
        ("Calculator", "execute", 2, Decimal("0.250"), Decimal("0.000")),
        ("Calculator", "score", 2, Decimal("4.000"), Decimal("0.002")),
        ("Calendar", "filter", 3, Decimal("0.000"), Decimal("0.000")),
        ("Calendar", "sample", 1, Decimal("1.000"), Decimal("0.000")),
        ("Calendar", "execute", 1, Decimal("0.000"), Decimal("0.000")),
        ("Calendar", "score", 1, Decimal("1.000"), Decimal("0.000")),
        ("WikiSearch", "filter", 1, Decimal("0.000"), Decimal("0.000")),
    ],
    "09_what_did_the_checks_find": [
        (
            "Calculator",
            "share_of_kept_calls",
            "warn",
            "60 % of the scored calls are kept, more than 50 %",
            {"share": 0.6},
        ),
    ],
    "10_what_has_been_released": [
        (
            "2026-11-20",
            "s3://toolformer/releases/release-2",
            3,
            "Calculator 3",
            [],
            "s3://toolformer/models/model-2",
            "texts with calls",
            Decimal("2.500"),
        ),
    ],
    "11_what_did_a_run_cost": [],  # neither estimated nor ended; test_run_costs.py has one that was both
    "13_what_became_of_the_candidates": [
        ("Calculator", "kept", None, "no_release", 2, 2),
        ("Calculator", "below_threshold", None, None, 1, 1),
        ("Calculator", "kept", None, "input_only_after", 1, 1),
        ("Calculator", "no_result", "divides_by_zero", None, 1, 1),
        ("Calculator", "not_finite", "loss_not_finite", None, 1, 1),
        ("Calendar", "below_threshold", None, None, 1, 1),
    ],
    "14_what_did_the_tools_find": [
        ("Calculator", "520 - 187", "333", None, 2, 1, 2, Decimal("2.38")),
        ("Calculator", "400 / 1400", "0.29", None, 1, 1, 1, Decimal("1.25")),
        ("Calculator", "1400 / 400", "3.50", None, 1, 1, 0, Decimal("-0.25")),
        ("Calculator", "400 / 0", None, "divides_by_zero", 1, 1, 0, None),
    ],
    "15_what_changed_since_the_run_before": [],  # r1 is not finished; test_changes.py compares runs
    "16_what_does_a_kept_call_cost": [
        ("Calculator", 3, None, Decimal("16.0"), Decimal("0.0"), Decimal("5.33"), None),
        ("Calendar", 0, None, Decimal("2.0"), Decimal("0.0"), None, None),
        ("WikiSearch", 0, None, Decimal("0.0"), Decimal("0.0"), None, None),
    ],
    # With equal weights c5 saves 1.375 - (2 x 0.25 + 3 x 1.5) / 5 = 0.375 nats instead of 0.625, of the 0.5 that it needs.
    "17_what_would_other_weights_keep": [("Calculator", 4, 3, 2, 2), ("Calendar", 1, 0, 0, 0)],
    # Half a second a call: 5 nats a second ask for 2.5 nats, and the dearest call saves 2.375.
    "18_what_is_kept_if_seconds_cost": [
        ("Calculator", 0.5, Decimal("0"), 0.5, 3, 2),
        ("Calculator", 0.5, Decimal("0.1"), 0.5, 3, 2),
        ("Calculator", 0.5, Decimal("0.5"), 0.5, 3, 2),
        ("Calculator", 0.5, Decimal("1"), 0.5, 3, 2),
        ("Calculator", 0.5, Decimal("2"), 1.0, 2, 2),
        ("Calculator", 0.5, Decimal("5"), 2.5, 0, 0),
    ],
    "12_what_did_the_models_learn": [
        ("math", "gsm8k", "share_correct", 200, Decimal("0.100"), None, Decimal("0.125"), Decimal("0.400"), 95),
        ("perplexity", "wikitext", "perplexity_by_token", 60, Decimal("9.870"), None, Decimal("10.310"), None, 0),
    ],
}


def example(name: str, run_id: str) -> str:
    """The statement of an example, with psql's variable filled in."""
    statement = (database.SQL_DIR / "examples" / f"{name}.sql").read_text()
    return statement.replace(database.RUN_DEFAULT, "").replace(":'run'", f"'{run_id}'")


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_example_answers_its_question(annotated: Engine, reader_dsn: str, name: str) -> None:
    reader = database.connect_dsn(reader_dsn, "TOOLFORMER_READER_DSN")
    with reader.connect() as connection, database.raw_cursor(connection) as cursor:
        cursor.execute(example(name, "r2" if name.startswith("12") else "r1"))
        rows = cursor.fetchall()
    if name.startswith("10"):
        rows = [(row[0].isoformat(), *row[1:]) for row in rows]
    assert rows == ROWS[name]


def test_there_are_eighteen_examples_and_each_opens_with_its_question() -> None:
    assert len(EXAMPLES) == 18
    assert "`sql/examples/` holds the eighteen questions" in (REPOSITORY / "docs" / "database.md").read_text(
        encoding="utf-8"
    )
    for name in EXAMPLES:
        question = (database.SQL_DIR / "examples" / f"{name}.sql").read_text().splitlines()[0]
        assert question.startswith("-- ")
        assert question.endswith("?")


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_example_runs_on_a_database_without_a_run(postgres_dsn: str, name: str) -> None:
    engine = database.connect_dsn(postgres_dsn, database.DSN_SETTING)
    with engine.connect() as connection, database.raw_cursor(connection) as cursor:
        cursor.execute(example(name, ""))
        assert cursor.fetchall() == []


@pytest.mark.usefixtures("annotated")
def test_psql_asks_about_the_newest_finished_run_or_the_one_that_is_named(settings: Settings) -> None:
    command, environment = psql(settings)
    command += ["--no-psqlrc", "--tuples-only", "--no-align", "--set=ON_ERROR_STOP=1"]

    def answer(*words: str) -> list[str]:
        finished = subprocess.run([*command, *words], env=environment, capture_output=True, text=True, check=True)
        return finished.stdout.splitlines()

    paths = [f"--file={database.SQL_DIR / 'examples' / name}.sql" for name in EXAMPLES]
    assert answer(*paths), "every file is one that psql takes"
    [kept] = [path for path in paths if "02_" in path]
    assert answer(kept) == ["Calculator|0.5|f|4|3|3|||", "Calculator|1|t|3|3|3|||", "Calculator|2|f|2|2|2|||"]  # r2
    assert answer("--set=run=r1", kept)[0] == "Calculator|0.5|t|3|2|2|||"
    refused = subprocess.run(
        [*command, "--set=run=r'3", kept], env=environment, capture_output=True, text=True, check=False
    )
    assert (refused.returncode, "run r'3: expected a run that was started, found none" in refused.stderr) == (3, True)
