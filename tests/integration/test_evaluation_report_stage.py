"""`stage report-evaluation` and `report`: from rows and files to one page on S3, made anew each time, and fetched."""

import json

import pytest
from typer.testing import CliRunner

from tests.integration.test_evaluation import RUN, data, models, start
from toolformer_ops.__main__ import app
from toolformer_ops.errors import CorruptObjectError, ObjectNotFoundError, UsageError
from toolformer_ops.evaluation.store import report_key
from toolformer_ops.stages.evaluation import evaluate_stage
from toolformer_ops.stages.evaluation_report import gather, report_evaluation
from toolformer_ops.storage.objects.publication import ObjectStore
from toolformer_ops.storage.postgres import database

__all__ = ["data", "models"]  # fixtures

RELEASE = """
insert into dataset_releases (release_id, run_id, uri, manifest_sha256, documents, calls, lacking_tools) values
    ('release-1', 'run-1', 's3://b/releases/release-1', repeat('0', 64), 4, 7, '{QA}');
insert into run_releases (run_id, release_id) values ('run-1', 'release-1');
insert into finetuned_models (model_id, release_id, run_id, uri, manifest_sha256, definition, training_loss, without_calls) values
    ('tuned', 'release-1', 'run-1', %(tuned)s, %(tuned_sha256)s, '{"steps": 20}', 2.5, false),
    ('plain', 'release-1', 'run-1', %(plain)s, %(plain_sha256)s, '{"steps": 20}', 2.5, true);
insert into run_models (run_id, model_id, without_calls) values ('run-1', 'tuned', false), ('run-1', 'plain', true);
"""


@pytest.fixture
def run(settings, models, data, tmp_path):
    """A run with a release and two models, of which one suite of two is evaluated."""
    started = start(settings, data, finetuned=False, evaluation_suites=["lama", "qa"])
    store = ObjectStore(settings)
    registered = {}
    for name, logs in (
        ("plain", {}),
        ("tuned", {
            "training_log.jsonl": '{"step": 10, "loss": 3.0}\n{"step": 20, "loss": 2.0}\n',
            "development_log.jsonl": '{"step": 20, "loss": 2.25, "perplexity": 9.49}\n',
        }),
    ):  # fmt: skip
        paths = {}
        for file, content in {"model.safetensors": "weights", **logs}.items():
            paths[file] = tmp_path / f"{name}-{file}"
            paths[file].write_text(content)
        manifest = store.publish(f"models/{name}", paths)
        registered |= {name: store.uri(manifest.prefix), f"{name}_sha256": manifest.sha256}
    with database.transaction(started.engine) as connection, database.raw_cursor(connection) as cursor:
        cursor.execute(RELEASE, registered)
    evaluate_stage(settings, RUN, "lama")
    return started


def test_everything_about_a_run_is_gathered(settings, run):
    contents = gather(settings, ObjectStore(settings), run.run_id)
    assert (contents.run_id, contents.base_model, contents.asked_suites) == (RUN, "m@1", ("lama", "qa"))
    released = (contents.release_id, contents.release_texts, contents.release_calls, contents.lacking_tools)
    assert released == ("release-1", 4, 7, ("QA",))
    assert [(model.variant, model.model_id, model.definition) for model in contents.models] == [
        ("with_tools", "tuned", {"steps": 20}), ("without_calls", "plain", {"steps": 20}),
    ]  # fmt: skip
    assert [(model.training, model.development) for model in contents.models] == [
        (((10, 3.0), (20, 2.0)), ((20, 2.25),)), ((), ()),
    ]  # fmt: skip
    google_re = {score.variant: score.score for score in contents.scores if score.subset == "google_re"}
    assert google_re == {"base": 0.0, "without_calls": 0.0, "disabled": 0.5, "with_tools": 0.5}
    assert len(contents.inputs) == 4 * 6
    found = {(one.subset, one.other): one for one in contents.comparisons}["google_re", "M"]
    assert (found.call_start_rank, found.paired.difference, found.inputs) == (10, 0.5, 2)


def test_a_model_that_is_not_the_registered_one_or_lost_is_not_reported(settings, run):
    store = ObjectStore(settings)
    [key] = [key for key in store.list("models/tuned") if key.endswith("training_log.jsonl")]
    content = store.get(key)
    store.delete(key)
    with pytest.raises(ObjectNotFoundError, match="training_log"):
        gather(settings, store, run.run_id)
    store.put_if_absent(key, content)
    run.change("update finetuned_models set manifest_sha256 = repeat('0', 64) where model_id = 'tuned'")
    with pytest.raises(CorruptObjectError, match="that Postgres registered"):
        gather(settings, store, run.run_id)
    run.change("update finetuned_models set withdrawn_at = now() where model_id = 'tuned'")
    assert gather(settings, store, run.run_id).models[0].training == ()


def test_the_page_of_a_run_is_a_web_page_on_s3(settings, run):
    done = CliRunner().invoke(app, ["stage", "report-evaluation", "--run", RUN])
    assert json.loads(done.stdout) == {"uri": f"s3://{settings.s3_bucket}/reports/run-1/index.html"}
    store = ObjectStore(settings)
    head = store._client.head_object(Bucket=settings.s3_bucket, Key=report_key(RUN))
    assert head["ContentType"] == "text/html; charset=utf-8"
    page = store.get(report_key(RUN))
    assert b"Not evaluated:" in page
    report_evaluation(settings, RUN)
    assert store.get(report_key(RUN)) == page


def test_the_page_is_written_again_when_a_suite_comes(settings, run):
    store = ObjectStore(settings)
    report_evaluation(settings, RUN)
    assert b"Not evaluated:" in store.get(report_key(RUN))
    evaluate_stage(settings, RUN, "qa")
    report_evaluation(settings, RUN)
    assert b"Not evaluated:" not in store.get(report_key(RUN))


def test_neither_an_unknown_run_nor_an_id_that_leads_elsewhere_is_taken(settings):
    with pytest.raises(UsageError, match="expected a started run, found 'none'"):
        report_evaluation(settings, "none")
    for wrong in ("../models", "a/b", "", "a\nb"):
        with pytest.raises(UsageError, match="run id without slashes"):
            report_key(wrong)
