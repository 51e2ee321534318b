"""`stage report-evaluation` and `report`: from rows and files to one page on S3, made anew each time, and fetched."""

import fnmatch
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.annotated_runs import AnnotatedRun
from toolformer_ops.__main__ import app
from toolformer_ops.config import Settings
from toolformer_ops.decoding.records import MadeCall
from toolformer_ops.errors import EXIT_USAGE, CorruptObjectError, ObjectNotFoundError, ParameterError, exit_code
from toolformer_ops.evaluation.records import EvaluatedInput, SuiteScore, Variant
from toolformer_ops.evaluation.store import write_inputs, write_scores
from toolformer_ops.evaluation_report.contents import report_key
from toolformer_ops.evaluation_report.gathering import gather
from toolformer_ops.stages.evaluation_report import fetch_report, report_evaluation
from toolformer_ops.storage import database
from toolformer_ops.storage.object_store import ObjectStore
from toolformer_ops.storage.publication import Manifest

RUN = "run-1"
RELEASE = """
insert into dataset_releases (release_id, run_id, uri, manifest_sha256, documents, calls, lacking_tools) values
    ('release-1', 'run-1', 's3://b/releases/release-1', repeat('0', 64), 4, 7, '{QA}');
insert into run_releases (run_id, release_id) values ('run-1', 'release-1');
insert into finetuned_models (model_id, release_id, run_id, uri, manifest_sha256, definition, training_loss, without_calls) values
    ('tuned', 'release-1', 'run-1', %(tuned)s, %(tuned_sha256)s, '{"steps": 20}', 2.5, false),
    ('plain', 'release-1', 'run-1', %(plain)s, %(plain_sha256)s, '{"steps": 20}', 2.5, true);
insert into run_models (run_id, model_id, without_calls) values ('run-1', 'tuned', false), ('run-1', 'plain', true);
"""
CALL = MadeCall("Calculator", "20 - 10", "10", None, 7, 34, 0.02)
MODEL_OF: dict[Variant, str] = {"base": "m@1", "without_calls": "plain", "disabled": "tuned", "with_tools": "tuned"}


def publish_model(store: ObjectStore, folder: Path, name: str, *, logs: bool) -> Manifest:
    """A model whose loss went from 3 to 2 in 20 steps, as its files say."""
    files = {"model.safetensors": "weights"}
    if logs:
        files["training_log.jsonl"] = '{"step": 10, "loss": 3.0}\n{"step": 20, "loss": 2.0}\n'
        files["development_log.jsonl"] = '{"step": 20, "loss": 2.25, "perplexity": 9.49}\n'
    (folder / name).mkdir()
    paths = {}
    for file, content in files.items():
        paths[file] = folder / name / file
        paths[file].write_text(content)
    return store.publish(f"models/{name}", paths)


def answered(variant: Variant, right: tuple[bool, ...]) -> list[EvaluatedInput]:
    """Inputs 1, 2, ... of svamp; the model with tools calls the calculator."""
    with_tools = variant == "with_tools"
    return [
        EvaluatedInput(
            "math", "svamp", MODEL_OF[variant], variant, 10 if with_tools else 0, number, f"Question {number}?", ("10",),
            " It is [Calculator(20 - 10) -> 10] 10." if with_tools else " It is 10.", "10", correct, (CALL,) if with_tools else (),
        )
        for number, correct in enumerate(right, start=1)
    ]  # fmt: skip


def scored(inputs: list[EvaluatedInput]) -> SuiteScore:
    first, share = inputs[0], sum(one.correct for one in inputs) / len(inputs)
    with_tools = first.variant == "with_tools"
    return SuiteScore(
        "math", "svamp", first.model, first.variant, first.call_start_rank, len(inputs), "share_correct", share,
        max(0.0, share - 0.25), min(1.0, share + 0.25), {"Calculator": 1.0} if with_tools else {},
        len(inputs) if with_tools else 0, share if with_tools else None, None if with_tools else share, 1.0, "ab" * 32,
    )  # fmt: skip


def write(settings: Settings, run: AnnotatedRun, *inputs: list[EvaluatedInput]) -> None:
    store = ObjectStore(settings)
    scores = [scored(found) for found in inputs]
    files = {("math", found[0].variant, found[0].call_start_rank): write_inputs(store, RUN, found) for found in inputs}
    ids = {"m@1": None, "tuned": "tuned", "plain": "plain"}
    with database.transaction(run.engine) as connection:
        write_scores(connection, RUN, scores, ids, files)


@pytest.fixture
def run(settings: Settings, tmp_path: Path) -> AnnotatedRun:
    """A run with a release, two models, and answers of the language model and of the model with tools."""
    started = AnnotatedRun(
        settings, {"Calculator": 0.5}, RUN, "m", evaluation_suites=["math", "lama"], evaluation_data="data"
    )
    store = ObjectStore(settings)
    models = {name: publish_model(store, tmp_path, name, logs=name == "tuned") for name in ("tuned", "plain")}
    registered = {name: store.uri(manifest.prefix) for name, manifest in models.items()}
    registered |= {f"{name}_sha256": manifest.sha256 for name, manifest in models.items()}
    with database.transaction(started.engine) as connection, database.raw_cursor(connection) as cursor:
        cursor.execute(RELEASE, registered)
    write(
        settings,
        started,
        answered("base", (True, False, False, False)),
        answered("with_tools", (True, True, True, False)),
    )
    return started


def test_everything_about_a_run_is_gathered(settings: Settings, run: AnnotatedRun) -> None:
    contents = gather(settings, ObjectStore(settings), run.run_id)
    facts = contents.facts
    assert (facts.run_id, facts.release_id, facts.release_texts, facts.release_calls) == (RUN, "release-1", 4, 7)
    assert (facts.base_model, facts.lacking_tools, facts.asked_suites) == ("m@1", ("QA",), ("math", "lama"))
    assert [(model.variant, model.model_id, model.definition) for model in facts.models] == [
        ("with_tools", "tuned", {"steps": 20}), ("without_calls", "plain", {"steps": 20}),
    ]  # fmt: skip
    curve = facts.models[0].curve
    assert curve is not None
    assert (curve.training, curve.development) == (((10, 3.0), (20, 2.0)), ((20, 2.25),))
    assert facts.models[1].curve is None
    assert [(score.variant, score.score) for score in contents.scores] == [("base", 0.25), ("with_tools", 0.75)]
    assert len(contents.inputs) == 8
    [one] = contents.comparisons
    assert (one.call_start_rank, one.other, one.found.difference, one.inputs) == (10, "M", 0.5, 4)


def test_a_model_that_is_not_the_registered_one_or_lost_is_not_reported(settings: Settings, run: AnnotatedRun) -> None:
    store = ObjectStore(settings)
    log = "models/tuned/data-*/training_log.jsonl"
    [key] = [key for key in store.list("models/tuned") if fnmatch.fnmatch(key, log)]
    content = store.get(key)
    store.delete(key)
    with pytest.raises(ObjectNotFoundError, match="training_log"):
        gather(settings, store, run.run_id)
    store.put_if_absent(key, content)
    with database.transaction(run.engine) as connection, database.raw_cursor(connection) as cursor:
        cursor.execute("update finetuned_models set manifest_sha256 = repeat('0', 64) where model_id = 'tuned'")
    with pytest.raises(CorruptObjectError, match="that Postgres registered"):
        gather(settings, store, run.run_id)
    with database.transaction(run.engine) as connection, database.raw_cursor(connection) as cursor:
        cursor.execute("update finetuned_models set withdrawn_at = now() where model_id = 'tuned'")
    assert gather(settings, store, run.run_id).facts.models[0].curve is None


def test_the_page_is_written_and_written_again_when_a_suite_comes(settings: Settings, run: AnnotatedRun) -> None:
    store = ObjectStore(settings)
    uri = report_evaluation(settings, RUN)
    assert uri == f"s3://{settings.s3_bucket}/reports/run-1/index.html"
    page = store.get(report_key(RUN)).decode("utf-8")
    assert "<strong>Not evaluated:</strong> lama." in page
    assert "M, finetuned without calls" not in page.partition("<main>")[2].partition('id="origin"')[0]
    assert ">[Calculator(20 - 10) -&gt; 10]</mark>" in page
    report_evaluation(settings, RUN)
    assert store.get(report_key(RUN)).decode("utf-8") == page

    write(settings, run, answered("without_calls", (True, True, False, False)))
    report_evaluation(settings, RUN)
    assert "M, finetuned without calls</th>" in store.get(report_key(RUN)).decode("utf-8")


def test_the_commands_print_the_address_of_an_html_page_and_fetch_it(
    settings: Settings, run: AnnotatedRun, tmp_path: Path
) -> None:
    early = CliRunner().invoke(app, ["report", "--run", RUN, "--out", str(tmp_path / "r.html")])
    assert early.exception is not None
    assert exit_code(early.exception) == EXIT_USAGE
    assert "Run `toolformer-ops stage report-evaluation --run run-1`" in str(early.exception)
    assert not (tmp_path / "r.html").exists()
    done = CliRunner().invoke(app, ["stage", "report-evaluation", "--run", RUN])
    assert json.loads(done.stdout) == {"uri": f"s3://{settings.s3_bucket}/reports/run-1/index.html"}
    head = ObjectStore(settings)._client.head_object(Bucket=settings.s3_bucket, Key=report_key(RUN))
    assert head["ContentType"] == "text/html; charset=utf-8"
    page = fetch_report(settings, RUN, tmp_path / "folder" / "r.html")
    assert page.read_bytes() == ObjectStore(settings).get(report_key(RUN))


def test_a_run_that_is_not_there_and_an_id_that_leads_elsewhere_are_refused(settings: Settings) -> None:
    with pytest.raises(ParameterError, match="expected a started run, found 'none'"):
        report_evaluation(settings, "none")
    for wrong in ("../models", "a/b", "..", "", "a\nb"):
        with pytest.raises(ParameterError, match="run id without slashes"):
            report_key(wrong)
