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
    ConfigurationError,
    DatabaseError,
    EvaluationDataError,
    ToolError,
    UsageError,
)
from toolformer_ops.evaluation.data_files import DataFolder
from toolformer_ops.evaluation.records import CALENDAR_DATE, VARIANTS, EvaluatedInput, SuiteScore
from toolformer_ops.evaluation.session import Outcome, load_suites
from toolformer_ops.evaluation.store import read_inputs, scores_of_run, write_inputs, write_scores
from toolformer_ops.stages.evaluation import evaluate_stage
from toolformer_ops.storage.objects.publication import ObjectStore
from toolformer_ops.storage.postgres import database

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
def models(monkeypatch):
    from toolformer_ops.decoding.model import WritingModel

    found = FakeModels()
    monkeypatch.setattr(WritingModel, "load", found.load)
    return found


@pytest.fixture
def data(tmp_path):
    return published.write(tmp_path)


def execute(run: AnnotatedRun, sql: str) -> list[tuple[Any, ...]]:
    with database.transaction(run.engine) as connection, database.raw_cursor(connection) as cursor:
        cursor.execute(sql)
        return cursor.fetchall() if cursor.description else []


def start(
    settings: Settings, data: Path | str, *, finetuned: bool = True, **parameters: object
) -> AnnotatedRun:
    run = AnnotatedRun(
        settings, {"Calculator": 0.5, "QA": 1.0}, RUN, "m", evaluation_data=str(data), **parameters
    )
    if finetuned:
        execute(run, MODELS)
    return run


def scores(run: AnnotatedRun) -> list[SuiteScore]:
    with database.transaction(run.engine) as connection:
        return scores_of_run(connection, RUN)


def test_all_models_of_a_run_are_evaluated_beside_the_language_model(settings, models, data):
    run = start(settings, data)
    outcome = CliRunner().invoke(app, ["stage", "evaluate", "--run", RUN, "--suite", "lama"])
    assert outcome.exit_code == 0, outcome.output
    # SQuAD asks one statement (blue), Google-RE two (one is Oslo), T-REx three (one is Oslo).
    by_name = {(score.variant, score.subset): score for score in scores(run)}
    assert {
        variant: [round(by_name[variant, subset].score, 3) for subset in ("squad", "google_re", "trex")]
        for variant in VARIANTS
    } == {
        "base": [0, 0, 0],
        "without_calls": [1, 0, 0],
        "disabled": [0, 0.5, 0.333],
        "with_tools": [0, 0.5, 0.333],
    }
    trex = by_name["with_tools", "trex"]
    assert (trex.model, trex.call_start_rank, trex.inputs, trex.call_shares) == ("tuned", 10, 3, {"QA": 1.0})
    assert (trex.score_with_call, trex.score_without_call) == (pytest.approx(1 / 3), None)
    assert by_name["base", "trex"].model == "m@1"
    tools = ("Calculator", "QA")
    assert models.loaded == [("s3://b/models/tuned", tools), ("s3://b/models/plain", tools), ("m", tools)]
    ids = execute(run, "select distinct variant, model_id from evaluation_scores order by 1")
    assert ids == [("base", None), ("disabled", "tuned"), ("with_tools", "tuned"), ("without_calls", "plain")]


def test_evaluated_inputs_are_on_s3_under_their_hash(settings, data, models):
    run = start(settings, data)
    evaluate_stage(settings, RUN, "lama")
    store = ObjectStore(settings)
    files = execute(run, "select distinct variant, inputs_uri, inputs_sha256 from evaluation_scores")
    ranks = {"base": 0, "without_calls": 0, "disabled": 0, "with_tools": 10}
    assert {variant: uri for variant, uri, _ in files} == {
        variant: store.uri(f"reports/run-1/inputs/lama/{variant}-k{rank}.jsonl")
        for variant, rank in ranks.items()
    }
    for _, uri, sha256 in files:
        assert hashlib.sha256(store.get(store.key_of(uri))).hexdigest() == sha256
    inputs = list(read_inputs(store, RUN))
    assert len(inputs) == 4 * 6
    prompt = "Please complete the following text so that it is factually correct: Ada Holm was born in"
    oslo = EvaluatedInput(
        "lama", "google_re", "tuned", "with_tools", 10, 1, prompt, ("Oslo",), " [QA(input) -> Oslo] Oslo", "Oslo", True,
        (made_call("QA", "Oslo"),), CALENDAR_DATE,
    )  # fmt: skip
    assert oslo in inputs


def test_a_second_evaluation_loads_no_model(settings, models, data):
    run = start(settings, data)
    evaluate_stage(settings, RUN, "lama")
    before = execute(run, "select count(*), max(evaluated_at) from evaluation_scores")
    models.loaded.clear()
    assert (evaluate_stage(settings, RUN, "lama"), models.loaded) == (0, [])
    assert execute(run, "select count(*), max(evaluated_at) from evaluation_scores") == before


def test_a_variant_that_lacks_the_score_of_one_data_set_is_evaluated_again(settings, models, data):
    run = start(settings, data)
    evaluate_stage(settings, RUN, "lama")
    lost = "delete from evaluation_scores where variant = 'base' and subset = 'trex' returning 1"
    assert len(execute(run, lost)) == 1
    models.loaded.clear()
    assert evaluate_stage(settings, RUN, "lama") > 0
    assert [address for address, _ in models.loaded] == ["m"]
    assert ("base", "trex") in {(score.variant, score.subset) for score in scores(run)}


def test_perplexity_is_scored_with_calls_disabled_alone(settings, data, models):
    run = start(settings, data)
    assert (
        evaluate_stage(settings, RUN, "perplexity") == 3 * 2 * 2
    )  # three models, two data sets, by token and by byte
    found = execute(
        run, "select distinct variant, call_start_rank, inputs_uri from evaluation_scores order by 1"
    )
    assert found == [("base", 0, None), ("disabled", 0, None), ("without_calls", 0, None)]


def test_perplexity_is_scored_once(settings, models, data):
    start(settings, data)
    evaluate_stage(settings, RUN, "perplexity")
    models.loaded.clear()
    assert (evaluate_stage(settings, RUN, "perplexity"), models.loaded) == (0, [])


def test_other_data_are_evaluated_again_for_scores_that_count(settings, data, models):
    run = start(settings, data, finetuned=False)
    assert evaluate_stage(settings, RUN, "lama:squad") == 1
    path = data / "lama" / "data" / "Squad" / "test.jsonl"
    path.write_text(path.read_text() * 2)
    assert evaluate_stage(settings, RUN, "lama:squad") == 1
    assert execute(run, "select inputs from evaluation_scores order by 1") == [(1,), (2,)]
    assert [(score.inputs, score.calendar_date) for score in scores(run)] == [(2, CALENDAR_DATE)]


def test_another_day_is_evaluated_again(settings, data, models):
    run = start(settings, data, finetuned=False)
    evaluate_stage(settings, RUN, "lama:squad")
    another_day = "update evaluation_scores set calendar_date = '2022-11-20', evaluated_at = evaluated_at - interval '1 day'"
    execute(run, another_day)
    assert evaluate_stage(settings, RUN, "lama:squad") == 1
    assert evaluate_stage(settings, RUN, "lama:squad") == 0
    assert [score.calendar_date for score in scores(run)] == [CALENDAR_DATE]


def test_a_run_that_is_not_there_lacks_data_or_has_another_model_is_refused(settings, models, data):
    with pytest.raises(UsageError, match="expected a started run, found 'run-1'"):
        evaluate_stage(settings, RUN, "lama")
    run = start(settings, "", finetuned=False)
    with pytest.raises(UsageError, match="expected evaluation_data"):
        evaluate_stage(settings, RUN, "lama")
    named = {"evaluation_data": str(data)}
    run.change(
        "update annotation_runs set parameters = parameters || cast(:named as jsonb)", named=json.dumps(named)
    )
    models.base_identity = "m@other"
    with pytest.raises(ConfigurationError, match="was started with the model m@1, found m@other"):
        evaluate_stage(settings, RUN, "qa")


def test_a_model_that_comes_later_is_evaluated_beside_those_that_are_known(settings, models, data):
    run = start(settings, data, finetuned=False)
    assert evaluate_stage(settings, RUN, "qa") == 3
    execute(run, MODELS)
    models.loaded.clear()
    assert evaluate_stage(settings, RUN, "qa") == 9
    assert [address for address, _ in models.loaded] == ["s3://b/models/tuned", "s3://b/models/plain"]
    assert {score.variant for score in scores(run)} == set(VARIANTS)


def test_a_suite_whose_tool_is_down_writes_no_score(settings, models, data):
    run = start(settings, data)
    models.down = ["QA"]
    with pytest.raises(ToolError, match="suite lama is not evaluated, since a tool is down: QA"):
        evaluate_stage(settings, RUN, "lama")
    assert models.loaded == [("s3://b/models/tuned", ("Calculator", "QA"))]  # no time is spent on the others
    assert scores(run) == []
    assert list(read_inputs(ObjectStore(settings), RUN)) == []
    evaluate_stage(settings, RUN, "qa")  # which may not use QA
    assert {score.suite for score in scores(run)} == {"qa"}


def test_postgres_keeps_scores_as_they_were_written_unless_they_cannot_be(settings):
    run = start(settings, "")

    def write(*written: SuiteScore) -> int:
        with database.transaction(run.engine) as connection:
            return write_scores(connection, RUN, written, {"m@1": None, "tuned": "tuned"}, {})

    a_score = SuiteScore(
        "math", "gsm8k", "m@1", "base", 0, 10, "share_correct", 0.5, 0.2, 0.8, {}, 0, None, 0.5, 1.5, "0" * 64
    )
    with_tools = dataclasses.replace(
        a_score, model="tuned", variant="with_tools", call_start_rank=10, call_shares={"Calculator": 0.3},
        inputs_with_call=3, score_with_call=2 / 3,
    )  # fmt: skip
    assert (write(a_score, with_tools), write(a_score, with_tools)) == (2, 0)
    assert scores(run) == [a_score, with_tools]
    another_day = dataclasses.replace(a_score, calendar_date=datetime.date(2023, 2, 10))
    assert write(another_day) == 1  # the key tells the days apart
    wrong: dict[str, Any]
    for wrong in (
        {"score": 1.5},
        {"low": 0.9},
        {"call_start_rank": 10},
        {"inputs_with_call": 3},
        {"variant": "other"},
    ):
        with pytest.raises(DatabaseError):
            write(dataclasses.replace(a_score, subset="svamp", **wrong))
    assert scores(run) == [another_day, with_tools]


def test_an_input_keeps_every_character_with_its_date(s3_settings):
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


def test_a_named_data_set_of_a_folder_on_s3_is_evaluated_alone_on_as_many_inputs_as_the_run_says(
    settings, models, data
):
    store = ObjectStore(settings)
    for path in (data / "lama").rglob("*.jsonl"):
        store.put_if_absent(f"evaluation/{path.relative_to(data)}", path)
    run = start(settings, store.uri("evaluation/"), finetuned=False, evaluation_inputs=2)
    assert evaluate_stage(settings, RUN, "lama:trex") == 1
    assert evaluate_stage(settings, RUN, "lama:trex") == 0
    [score] = scores(run)
    assert (score.suite, score.subset, score.inputs) == ("lama", "trex", 2)
    local = load_suites(DataFolder(settings, str(data)), ["lama:trex"], 2, Outcome())
    assert [score.data_sha256] == [loaded.sha256 for loaded in local["lama"]]
    with pytest.raises(EvaluationDataError, match=r"s3://.*found nothing.*It can be had from"):
        evaluate_stage(settings, RUN, "qa")
