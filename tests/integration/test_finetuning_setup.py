"""A run that finetunes on a release that is there already."""

import json
import shutil
from pathlib import Path

import pytest

from tests.annotated_runs import release
from tests.integration.test_finetuning import annotated_run
from toolformer_ops.errors import ConfigurationError, ModelError, UsageError
from toolformer_ops.stages.finetuning import finetune, publish
from toolformer_ops.stages.run_setup import finish_run, start_finetuning
from toolformer_ops.storage.history.forgetting import forget


@pytest.fixture
def model(tiny_gpt2_dir, tmp_path):
    return Path(shutil.copytree(tiny_gpt2_dir, tmp_path / "model"))


@pytest.fixture
def annotated(settings, model):
    return annotated_run(settings, model, more_texts=("It rained all day.",))


@pytest.fixture
def release_id(settings, annotated):
    return release(settings, annotated.run_id)


def test_a_run_takes_the_parameters_of_the_releases_run_but_for_those_chosen_anew(
    settings, annotated, release_id
):
    chosen = json.dumps({"finetune_steps": 2, "finetune_baseline": True, "finetune_length": None})
    parameters = start_finetuning(settings, "tuned-1", release_id, chosen)
    assert (parameters.finetune_steps, parameters.finetune_baseline, parameters.finetune_length) == (
        2,
        True,
        48,
    )
    assert parameters.tools == ("Calculator",)
    first, second = annotated.rows("select * from annotation_runs order by run_id")
    assert (second.run_id, second.state) == ("tuned-1", "running")
    assert second.parameters == first.parameters | {"finetune_steps": 2, "finetune_baseline": True}
    for field in ("corpus_id", "corpus_uri", "tools", "model_identity"):
        assert getattr(second, field) == getattr(first, field)
    assert annotated.rows("select run_id from run_releases order by 1") == [("run-1",), ("tuned-1",)]


def test_a_run_finetunes_a_release_by_its_id_alone(settings, annotated, release_id):
    start_finetuning(settings, "tuned-1", release_id, '{"finetune_steps": 2}')
    assert finetune(settings, "tuned-1") == publish(settings, "tuned-1")
    finish_run(settings, "tuned-1", "success")
    [row] = annotated.rows("select release_id, run_id, best_step from finetuned_models")
    assert (row.release_id, row.run_id) == (release_id, "tuned-1")
    assert row.best_step == 2  # one document is outside the release
    assert annotated.rows("select state from annotation_runs where run_id = 'tuned-1'") == [("success",)]


def test_a_run_finetunes_a_release_by_its_address(settings, annotated, release_id):
    [(address,)] = annotated.rows("select uri from dataset_releases")
    start_finetuning(settings, "tuned-1", f"{address}/", "{}")
    assert annotated.rows("select release_id from run_releases where run_id = 'tuned-1'") == [(release_id,)]


def test_what_cannot_be_chosen_is_named(settings, annotated, release_id):
    for chosen_release, parameters, message in (
        ("nothing", "{}", "the id or the address of a registered release, found 'nothing'"),
        (release_id, "{", "expected a JSON object"),
        (release_id, "[1]", "expected a JSON object"),
        (release_id, '{"seed": 3, "tools": ["QA"]}', "found seed, tools"),
        (release_id, '{"finetune_steps": 0}', "finetune_steps"),
        (release_id, '{"finetune_speed": 1}', "finetune_speed"),
    ):
        with pytest.raises(UsageError, match=message):
            start_finetuning(settings, "tuned-1", chosen_release, parameters)
    assert len(annotated.rows("select 1 from annotation_runs")) == 1


def test_a_run_starts_once_with_its_parameters(settings, annotated, release_id):
    for _ in range(2):
        start_finetuning(settings, "tuned-1", release_id, '{"finetune_steps": 2}')
    assert len(annotated.rows("select 1 from annotation_runs")) == 2
    for taken in ("tuned-1", "run-1"):
        with pytest.raises(ConfigurationError, match="Take another run id"):
            start_finetuning(settings, taken, release_id, '{"finetune_steps": 3}')
    assert len(annotated.rows("select 1 from run_releases")) == 2


def test_adapters_that_the_model_cannot_have_are_refused_when_the_run_starts(settings, annotated, release_id):
    chosen = {"finetune_method": "lora", "finetune_lora_rank": 33}
    with pytest.raises(UsageError, match="expected at most 32, the width"):
        start_finetuning(settings, "tuned-1", release_id, json.dumps(chosen))
    assert len(annotated.rows("select 1 from annotation_runs")) == 1


def test_a_run_that_was_started_on_another_release_is_refused(settings, annotated, release_id):
    other = "f" * 16
    copied = (
        "insert into dataset_releases select (jsonb_populate_record(release, jsonb_build_object('release_id', "
        "cast(:other as text), 'uri', release.uri || '-2'))).* from dataset_releases release"
    )
    annotated.change(copied, other=other)
    start_finetuning(settings, "tuned-1", release_id, "{}")
    with pytest.raises(ConfigurationError, match="run tuned-1 was started on another release"):
        start_finetuning(settings, "tuned-1", other, "{}")
    held = annotated.rows("select release_id from run_releases where run_id = 'tuned-1'")
    assert held == [(release_id,)]


def test_model_that_changed_or_is_gone_is_said_before_anything_is_written(
    settings, annotated, release_id, model
):
    (model / "config.json").write_text((model / "config.json").read_text() + "\n")
    for error in (ConfigurationError, ModelError):
        with pytest.raises(error):
            start_finetuning(settings, "tuned-1", release_id, "{}")
        with pytest.raises(error):
            finetune(settings, "run-1")
        shutil.rmtree(model, ignore_errors=True)
    assert len(annotated.rows("select 1 from annotation_runs")) == 1


def test_a_release_with_a_forgotten_text_is_refused(settings, annotated, release_id):
    annotated.change("update annotation_runs set state = 'success', finished_at = now()")
    forget(settings, [annotated.documents[0].document_id])
    with pytest.raises(UsageError, match="expected a release without forgotten texts, found 1 in "):
        start_finetuning(settings, "tuned-1", release_id, "{}")
    assert annotated.rows("select run_id from annotation_runs where run_id = 'tuned-1'") == []
