"""`stage evaluate`: the models of a run, with a fake writing model; scores in Postgres, inputs on S3, nothing twice."""

import dataclasses
import datetime
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.annotated_runs import AnnotatedRun
from tests.unit.evaluation import published_files as published
from tests.unit.evaluation.fake_writing_model import FakeWritingModel, made_call
from toolformer_ops.__main__ import app
from toolformer_ops.config import Settings
from toolformer_ops.errors import (
    DatabaseError,
    EvaluationDataError,
    ParameterError,
    RecipeMismatchError,
    ToolError,
)
from toolformer_ops.evaluation.data_files import DataFolder
from toolformer_ops.evaluation.records import CALENDAR_DATE, VARIANTS, EvaluatedInput, SuiteScore
from toolformer_ops.evaluation.session import Outcome, load_suites
from toolformer_ops.evaluation.store import read_inputs, scores_of_run, write_inputs, write_scores
from toolformer_ops.stages.evaluation import evaluate_stage
from toolformer_ops.storage import database
from toolformer_ops.storage.object_store import ObjectStore

RUN = "run-1"
MODELS = """
insert into dataset_releases (release_id, run_id, uri, manifest_sha256, documents, calls, lacking_tools) values
    ('release-1', 'run-1', 's3://b/releases/release-1', repeat('0', 64), 1, 1, '{}');
insert into finetuned_models (model_id, release_id, run_id, uri, manifest_sha256, definition, training_loss, without_calls) values
    ('tuned', 'release-1', 'run-1', 's3://b/models/tuned', repeat('0', 64), '{"steps": 1}', 2.5, false),
    ('plain', 'release-1', 'run-1', 's3://b/models/plain', repeat('1', 64), '{"steps": 1}', 2.5, true);
insert into run_models (run_id, model_id, without_calls) values ('run-1', 'tuned', false), ('run-1', 'plain', true);
"""


class FakeModels:
    """M says nothing, M without calls says blue, the tuned model Oslo; what was loaded, and which tools are down."""

    def __init__(self) -> None:
        self.loaded: list[tuple[str, Sequence[str] | None]] = []
        self.down: list[str] = []
        self.base_identity = "m@1"

    def load(self, _: Settings, address: str, *, tools: Sequence[str] | None = None) -> FakeWritingModel:
        self.loaded.append((address, tools))
        if address == "m":
            return FakeWritingModel(lambda *_: (" nothing", ()), self.base_identity)
        if address.endswith("/plain"):
            return FakeWritingModel(lambda *_: (" blue", ()), "s3://b/models/plain@2")
        return FakeWritingModel(
            lambda _, settings: (" Oslo", (made_call("QA", "Oslo"),) if settings.call_start_rank else ()),
            "s3://b/models/tuned@3",
            down=self.down,
        )


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> FakeModels:
    from toolformer_ops.decoding.model import WritingModel

    found = FakeModels()
    monkeypatch.setattr(WritingModel, "load", found.load)
    return found


def start(settings: Settings, data: Path | str, *, finetuned: bool = True, **parameters: object) -> AnnotatedRun:
    run = AnnotatedRun(settings, {"Calculator": 0.5, "QA": 1.0}, RUN, "m", evaluation_data=str(data), **parameters)
    if finetuned:
        with database.transaction(run.engine) as connection, database.raw_cursor(connection) as cursor:
            cursor.execute(MODELS)
    return run


def scores(run: AnnotatedRun) -> list[SuiteScore]:
    with database.transaction(run.engine) as connection:
        return scores_of_run(connection, RUN)


def rows(run: AnnotatedRun, sql: str) -> list[tuple[Any, ...]]:
    with database.transaction(run.engine) as connection, database.raw_cursor(connection) as cursor:
        cursor.execute(sql)
        return cursor.fetchall()


def test_all_models_of_a_run_are_evaluated_beside_the_language_model(
    settings: Settings, models: FakeModels, tmp_path: Path
) -> None:
    published.write_lama(tmp_path)
    run = start(settings, tmp_path)
    # SQuAD asks one statement (blue), Google-RE two (one is Oslo), T-REx three (one is Oslo).
    assert evaluate_stage(settings, RUN, "lama") == 12
    found = {(score.variant, score.subset): score for score in scores(run)}
    assert {key: round(score.score, 3) for key, score in found.items()} == {
        ("base", "squad"): 0,
        ("base", "google_re"): 0,
        ("base", "trex"): 0,
        ("without_calls", "squad"): 1,
        ("without_calls", "google_re"): 0,
        ("without_calls", "trex"): 0,
        ("disabled", "squad"): 0,
        ("disabled", "google_re"): 0.5,
        ("disabled", "trex"): 0.333,
        ("with_tools", "squad"): 0,
        ("with_tools", "google_re"): 0.5,
        ("with_tools", "trex"): 0.333,
    }
    trex = found["with_tools", "trex"]
    assert (trex.model, trex.call_start_rank, trex.inputs, trex.call_shares) == ("tuned", 10, 3, {"QA": 1.0})
    assert (trex.score_with_call, trex.score_without_call) == (pytest.approx(1 / 3), None)
    assert found["base", "trex"].model == "m@1"
    assert models.loaded == [
        ("s3://b/models/tuned", ("Calculator", "QA")),
        ("s3://b/models/plain", ("Calculator", "QA")),
        ("m", ("Calculator", "QA")),
    ]
    ids = rows(run, "select distinct variant, model_id from evaluation_scores order by 1")
    assert ids == [("base", None), ("disabled", "tuned"), ("with_tools", "tuned"), ("without_calls", "plain")]


def test_what_was_written_lies_on_s3_with_its_hash(settings: Settings, models: FakeModels, tmp_path: Path) -> None:
    published.write_lama(tmp_path)
    run = start(settings, tmp_path)
    evaluate_stage(settings, RUN, "lama")
    store = ObjectStore(settings)
    files = rows(run, "select distinct variant, inputs_uri, inputs_sha256 from evaluation_scores")
    assert {variant: uri for variant, uri, _ in files} == {
        "base": store.uri("reports/run-1/inputs/lama/base-k0.jsonl"),
        "without_calls": store.uri("reports/run-1/inputs/lama/without_calls-k0.jsonl"),
        "disabled": store.uri("reports/run-1/inputs/lama/disabled-k0.jsonl"),
        "with_tools": store.uri("reports/run-1/inputs/lama/with_tools-k10.jsonl"),
    }
    for _, uri, sha256 in files:
        assert hashlib.sha256(store.get(store.key_of(uri))).hexdigest() == sha256
    inputs = list(read_inputs(store, RUN))
    assert len(inputs) == 4 * 6
    one = next(one for one in inputs if (one.variant, one.subset) == ("with_tools", "google_re"))
    assert one == EvaluatedInput(
        suite="lama",
        subset="google_re",
        model="tuned",
        variant="with_tools",
        call_start_rank=10,
        number=1,
        prompt="Please complete the following text so that it is factually correct: Ada Holm was born in",
        answers=("Oslo",),
        written=" [QA(input) -> Oslo] Oslo",
        predicted="Oslo",
        correct=True,
        calls=(made_call("QA", "Oslo"),),
        date=CALENDAR_DATE,
    )


def test_a_second_evaluation_of_the_same_loads_no_model_and_writes_nothing(
    settings: Settings, models: FakeModels, tmp_path: Path
) -> None:
    published.write_all(tmp_path)
    run = start(settings, tmp_path)
    for suite in ("lama", "perplexity"):
        evaluate_stage(settings, RUN, suite)
    before = rows(run, "select count(*), max(evaluated_at) from evaluation_scores")
    models.loaded.clear()
    for suite in ("lama", "perplexity"):
        assert evaluate_stage(settings, RUN, suite) == 0
    assert models.loaded == []
    assert rows(run, "select count(*), max(evaluated_at) from evaluation_scores") == before


def test_one_data_set_of_a_suite_is_evaluated_alone(settings: Settings, models: FakeModels, tmp_path: Path) -> None:
    published.write_all(tmp_path)
    run = start(settings, tmp_path, finetuned=False)
    assert evaluate_stage(settings, RUN, "math:gsm8k") == 1
    assert evaluate_stage(settings, RUN, "math:gsm8k") == 0
    assert [(score.suite, score.subset) for score in scores(run)] == [("math", "gsm8k")]
    (tmp_path / "triviaqa" / "triviaqa-unfiltered" / "unfiltered-web-dev.json").unlink()
    with pytest.raises(EvaluationDataError, match="triviaqa: expected"):
        evaluate_stage(settings, RUN, "qa:triviaqa")


def test_other_data_are_evaluated_again_and_the_newest_scores_count(
    settings: Settings, models: FakeModels, tmp_path: Path
) -> None:
    published.write_lama(tmp_path)
    run = start(settings, tmp_path, finetuned=False)
    evaluate_stage(settings, RUN, "lama")
    path = tmp_path / "lama" / "data" / "Squad" / "test.jsonl"
    path.write_text(path.read_text() * 2)
    evaluate_stage(settings, RUN, "lama")
    assert rows(run, "select inputs from evaluation_scores where subset = 'squad' order by 1") == [(1,), (2,)]
    assert [score.inputs for score in scores(run) if score.subset == "squad"] == [2]


def test_a_model_that_comes_later_is_evaluated_beside_those_that_are_known(
    settings: Settings, models: FakeModels, tmp_path: Path
) -> None:
    published.write_qa(tmp_path)
    run = start(settings, tmp_path, finetuned=False)
    assert evaluate_stage(settings, RUN, "qa") == 3
    with database.transaction(run.engine) as connection, database.raw_cursor(connection) as cursor:
        cursor.execute(MODELS)
    models.loaded.clear()
    assert evaluate_stage(settings, RUN, "qa") == 9
    assert [address for address, _ in models.loaded] == ["s3://b/models/tuned", "s3://b/models/plain"]
    assert {score.variant for score in scores(run)} == set(VARIANTS)


def test_perplexity_is_scored_with_calls_disabled_alone(settings: Settings, models: FakeModels, tmp_path: Path) -> None:
    published.write_texts(tmp_path)
    run = start(settings, tmp_path)
    assert evaluate_stage(settings, RUN, "perplexity") == 3 * 2 * 2  # three models, two data sets, by token and by byte
    assert {(score.variant, score.call_start_rank) for score in scores(run)} == {
        ("base", 0), ("without_calls", 0), ("disabled", 0),
    }  # fmt: skip
    assert rows(run, "select distinct inputs_uri from evaluation_scores") == [(None,)]


def test_only_the_first_inputs_are_asked_where_the_run_says_so(
    settings: Settings, models: FakeModels, tmp_path: Path
) -> None:
    published.write_lama(tmp_path)
    run = start(settings, tmp_path, evaluation_inputs=2)
    evaluate_stage(settings, RUN, "lama")
    assert {score.inputs for score in scores(run) if score.subset == "trex"} == {2}


def test_a_suite_whose_tool_is_down_writes_no_score(settings: Settings, models: FakeModels, tmp_path: Path) -> None:
    published.write_all(tmp_path)
    run = start(settings, tmp_path)
    models.down = ["QA"]
    with pytest.raises(ToolError, match="suite lama is not evaluated, since a tool is down: QA"):
        evaluate_stage(settings, RUN, "lama")
    assert models.loaded == [("s3://b/models/tuned", ("Calculator", "QA"))]  # no time is spent on the others
    assert scores(run) == []
    assert list(read_inputs(ObjectStore(settings), RUN)) == []
    evaluate_stage(settings, RUN, "qa")  # which may not use QA
    assert {score.suite for score in scores(run)} == {"qa"}


def test_data_on_s3_are_read(settings: Settings, models: FakeModels, tmp_path: Path) -> None:
    published.write_lama(tmp_path)
    store = ObjectStore(settings)
    for path in (tmp_path / "lama").rglob("*.jsonl"):
        store.put_if_absent(f"evaluation/{path.relative_to(tmp_path)}", path)
    run = start(settings, store.uri("evaluation/"), finetuned=False)
    assert evaluate_stage(settings, RUN, "lama") == 3
    outcome = Outcome()
    (local,) = load_suites(DataFolder(settings, str(tmp_path)), ["lama"], None, outcome)
    assert {score.data_sha256 for score in scores(run)} == {loaded.sha256 for loaded in local.questions}
    with pytest.raises(EvaluationDataError, match=r"expected JSON Lines.*s3://.*found nothing.*It can be had from"):
        evaluate_stage(settings, RUN, "qa")


def test_a_request_that_cannot_be_is_named(settings: Settings, models: FakeModels, tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="expected a started run, found 'run-1'"):
        evaluate_stage(settings, RUN, "lama")
    start(settings, "")
    with pytest.raises(ParameterError, match="expected evaluation_data"):
        evaluate_stage(settings, RUN, "lama")


def test_another_language_model_than_the_runs_is_refused(
    settings: Settings, models: FakeModels, tmp_path: Path
) -> None:
    published.write_qa(tmp_path)
    start(settings, tmp_path, finetuned=False)
    models.base_identity = "m@other"
    with pytest.raises(RecipeMismatchError, match="was started with the model m@1, found m@other"):
        evaluate_stage(settings, RUN, "qa")


def test_the_stage_is_a_command(settings: Settings, models: FakeModels, tmp_path: Path) -> None:
    published.write_qa(tmp_path)
    run = start(settings, tmp_path)
    found = CliRunner().invoke(app, ["stage", "evaluate", "--run", RUN, "--suite", "qa"])
    assert found.exit_code == 0, found.output
    assert len(scores(run)) == 12


def a_score(**changes: object) -> SuiteScore:
    score = SuiteScore(
        "math", "gsm8k", "m@1", "base", 0, 10, "share_correct", 0.5, 0.2, 0.8, {}, 0, None, 0.5, 1.5, "0" * 64
    )
    return dataclasses.replace(score, **changes)


def test_scores_come_back_as_they_were_written(settings: Settings, tmp_path: Path) -> None:
    run = start(settings, tmp_path)
    written = [
        a_score(),
        a_score(
            model="tuned", variant="with_tools", call_start_rank=10, call_shares={"Calculator": 0.3}, inputs_with_call=3,
            score_with_call=2 / 3,
        ),
    ]  # fmt: skip
    ids = {"m@1": None, "tuned": "tuned"}
    with database.transaction(run.engine) as connection:
        assert write_scores(connection, RUN, written, ids, {}) == 2
        assert write_scores(connection, RUN, written, ids, {}) == 0
    assert scores(run) == written
    another_day = a_score(calendar_date=datetime.date(2023, 2, 10))
    with database.transaction(run.engine) as connection:
        assert write_scores(connection, RUN, [another_day], ids, {}) == 1  # the key tells the days apart
    assert scores(run) == [another_day, written[1]]


def test_what_was_evaluated_on_another_day_is_evaluated_again(
    settings: Settings, models: FakeModels, tmp_path: Path
) -> None:
    published.write_qa(tmp_path)
    run = start(settings, tmp_path, finetuned=False)
    assert evaluate_stage(settings, RUN, "qa") == 3
    assert {score.calendar_date for score in scores(run)} == {CALENDAR_DATE}
    assert {one.date for one in read_inputs(ObjectStore(settings), RUN)} == {CALENDAR_DATE}
    with database.transaction(run.engine) as connection, database.raw_cursor(connection) as cursor:
        cursor.execute(
            "update evaluation_scores set calendar_date = '2022-11-20', evaluated_at = evaluated_at - interval '1 day'"
        )
    assert evaluate_stage(settings, RUN, "qa") == 3
    assert evaluate_stage(settings, RUN, "qa") == 0
    assert {score.calendar_date for score in scores(run)} == {CALENDAR_DATE}


@pytest.mark.parametrize(
    "changes",
    [
        {"score": 1.5},
        {"low": 0.9},
        {"call_start_rank": 10},
        {"inputs_with_call": 3},
        {"inputs": 0},
        {"variant": "other"},
        {"metric": "luck"},
        {"data_sha256": "0"},
        {"score_without_call": 2.0},
    ],
)
def test_postgres_refuses_a_score_that_cannot_be(
    settings: Settings, tmp_path: Path, changes: dict[str, object]
) -> None:
    run = start(settings, tmp_path, finetuned=False)
    with pytest.raises(DatabaseError), database.transaction(run.engine) as connection:
        write_scores(connection, RUN, [a_score(**changes)], {"m@1": None}, {})


def test_an_input_keeps_its_date_and_every_character(s3_settings: Settings) -> None:
    one = EvaluatedInput(
        "temporal", "dateset", "tuned", "with_tools", 10, 1, "What day\u2028is it?", ("Friday",), " [Calendar() -> …] Freitag\n",
        "Freitag", False, (made_call("Calendar", None, "not_a_date"),), datetime.date(2020, 11, 20),
    )  # fmt: skip
    store = ObjectStore(s3_settings)
    file = write_inputs(store, RUN, [one, one])
    assert list(read_inputs(store, RUN)) == [one, one]
    lines = store.get(store.key_of(file.uri)).decode().split("\n")
    assert len(lines) == 3  # two lines, whatever their texts hold
    assert json.loads(lines[0])["date"] == "2020-11-20"
