"""Finetuning a tiny model on a run's release, and publishing it: once, whole, and only where there is something to train on."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests.annotated_runs import AnnotatedRun, release
from tests.finetuning_jobs import SMALL
from tests.servers import flip_a_byte
from toolformer_ops.config import Settings
from toolformer_ops.errors import CorruptObjectError, NoResultError, ObjectNotFoundError, UsageError
from toolformer_ops.finetuning import release_training
from toolformer_ops.language_model.models import model_identity
from toolformer_ops.language_model.models.publishing import publish_model
from toolformer_ops.stages import finetuning
from toolformer_ops.stages.finetuning import finetune, model_prefix, publish
from toolformer_ops.storage.objects.publication import ObjectStore


@pytest.fixture
def run(settings, tiny_model_dir):
    """Five texts with a call each, released, with the tiny model as the run's model."""
    run = annotated_run(settings, tiny_model_dir)
    release(settings, run.run_id)
    return run


@pytest.fixture
def store(settings):
    return ObjectStore(settings)


def published(store: ObjectStore, model_id: str, name: str) -> str:
    """A file of a model on S3."""
    manifest = store.read_manifest(model_prefix(model_id))
    assert manifest is not None
    return store.get(f"{manifest.folder}/{name}").decode()


def annotated_run(
    settings: Settings,
    model: Path,
    run_id: str = "run-1",
    more_texts: tuple[str, ...] = (),
    **parameters: object,
) -> AnnotatedRun:
    """Five texts with a call each, and more without; calls, and rows of their stages, are those of the first run."""
    run = AnnotatedRun(settings, {"Calculator": 0.5}, run_id, str(model), **(SMALL | parameters))
    for number in range(5):
        document = run.add_text(f"The shop had {number + 9} shirts and sold {number}, so it has 9 left.")
        if run_id == "run-1":
            run.add_call("Calculator", document, " 9 left", f"{number + 9} - {number}", "9", saves=2.0)
    for text in more_texts:
        run.add_text(text)
    if run_id == "run-1":
        run.complete("Calculator")
    statement = "update annotation_runs set model_identity = :identity where run_id = :run_id"
    run.change(statement, identity=model_identity(str(model)), run_id=run_id)
    return run


def test_a_finetuned_model_is_published_whole_for_transformers(
    settings, store, run, tiny_model_dir, tmp_path
):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    [(release_id,)] = run.rows("select release_id from dataset_releases")
    address = publish_model(
        settings, str(tiny_model_dir), name="tiny"
    ).address  # the run's model is the same on S3
    on_s3 = "parameters = parameters || jsonb_build_object('model', cast(:address as text))"
    run.change(f"update annotation_runs set {on_s3}", address=address)
    model_id = finetune(settings.model_copy(update={"runner": "kubernetes"}), run.run_id)
    assert list(store.list("checkpoints/")) == []
    assert store.read_manifest(model_prefix(model_id)) is None  # trained is not published
    assert run.rows("select 1 from finetuned_models") == []
    assert publish(settings, run.run_id) == model_id

    manifest = store.fetch(model_prefix(model_id), tmp_path)
    names = {file.name for file in manifest.files}
    assert {"model.safetensors", "tokenizer.json", "training_log.jsonl", "README.md", "curves.png"} <= names
    assert not {Path(name).suffix for name in names} & {".bin", ".pt", ".pth", ".pkl"}
    network = AutoModelForCausalLM.from_pretrained(tmp_path, use_safetensors=True)
    before = AutoModelForCausalLM.from_pretrained(tiny_model_dir, use_safetensors=True)
    assert any((a != b).any() for a, b in zip(network.parameters(), before.parameters(), strict=True))
    text = "it has [Calculator(9 - 0) -> 9] 9 <s> left."
    ours, theirs = (
        AutoTokenizer.from_pretrained(folder)(text)["input_ids"] for folder in (tmp_path, tiny_model_dir)
    )
    assert ours == theirs

    log = [json.loads(line) for line in (tmp_path / "training_log.jsonl").read_text().splitlines()]
    assert log[-1]["loss"] < log[0]["loss"]
    record = json.loads((tmp_path / "finetuning.json").read_text())
    assert (record["release_id"], record["model_id"], record["texts"]) == (release_id, model_id, 5)
    [row] = run.rows("select * from finetuned_models")
    assert (row.model_id, row.release_id, row.run_id) == (model_id, release_id, "run-1")
    assert (row.manifest_sha256, row.uri) == (manifest.sha256, f"s3://{settings.s3_bucket}/models/{model_id}")
    assert row.training_loss == pytest.approx(sum(line["loss"] for line in log[-5:]) / 5)
    assert run.rows("select run_id, model_id, without_calls from run_models") == [("run-1", model_id, False)]
    assert list((settings.state_dir / "finetuning").glob("*/")) == []  # nothing is left on the machine
    folder = tmp_path.rename(tmp_path.with_name(model_id))
    assert model_identity(row.uri, settings=settings) == model_identity(
        str(folder)
    )  # a run can take it at once


@pytest.mark.usefixtures("run")
def test_of_two_finetunes_of_one_release_even_at_once_one_model_remains(
    settings, tiny_model_dir, tmp_path, monkeypatch
):
    other = annotated_run(settings, tiny_model_dir, "run-2", finetune_device_batch=4)
    release(settings, "run-2")
    # 1. Two machines train at once.
    elsewhere = settings.model_copy(update={"state_dir": tmp_path / "elsewhere"})
    real = finetuning.trained_files
    first: list[str] = []

    def train_while_the_other_does(*arguments: Any) -> dict[str, Path]:
        monkeypatch.setattr(finetuning, "trained_files", real)
        first.append(finetune(elsewhere, "run-1"))
        files = real(*arguments)
        files["README.md"].write_text("another bytes of the same model")
        return files

    monkeypatch.setattr(finetuning, "trained_files", train_while_the_other_does)
    [model_id] = {finetune(settings, "run-1"), *first}
    # 2. Nobody trains again.
    monkeypatch.setattr(finetuning, "trained_files", lambda *_: pytest.fail("trained"))
    assert finetune(settings, "run-2") == model_id  # trained, not yet published
    publish(settings, "run-1")
    keys = list(ObjectStore(settings).list("models/"))
    assert finetune(settings, "run-2") == publish(settings, "run-2") == publish(settings, "run-1") == model_id
    assert list(ObjectStore(settings).list("models/")) == keys
    assert len(other.rows("select 1 from finetuned_models")) == 1
    assert len(other.rows("select 1 from run_models")) == 2
    ObjectStore(settings).fetch(model_prefix(model_id), tmp_path / "model")
    assert (tmp_path / "model" / "README.md").read_text().startswith("---\nbase_model: ")


def test_a_finetune_that_was_killed_at_its_end_goes_on_without_anything_half_written(
    settings, store, run, monkeypatch
):
    with monkeypatch.context() as patched:
        patched.setattr(release_training, "write_curves", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            finetune(settings, run.run_id)
    [folder] = (settings.state_dir / "finetuning").glob("*/")
    log = (folder / "training_log.jsonl").read_text()
    (folder / "model" / "model-00001-of-00002.safetensors").write_bytes(b"half of the weights")
    assert list(store.list("models/")) == []
    model_id = finetune(settings, run.run_id)
    prefix = model_prefix(model_id)
    store.put_if_absent(
        f"{prefix}/manifest.json", store.get(f"{prefix}/draft.json")
    )  # a killed `publish` left it
    publish(settings, run.run_id)
    assert len(run.rows("select 1 from finetuned_models")) == 1
    assert [Path(key).name for key in store.list("models/") if "safetensors" in key] == ["model.safetensors"]
    assert published(store, model_id, "training_log.jsonl") == log  # its times, too: no step was taken again


# Development documents


HELD_OUT = tuple(
    f"On day {number} it rained in the north, and {number + 2} boats stayed in." for number in range(4)
)


def test_documents_outside_the_release_choose_the_step_of_both_models(settings, store, tiny_model_dir):
    run = annotated_run(
        settings, tiny_model_dir, finetune_eval_steps=2, finetune_dev_documents=3, more_texts=HELD_OUT
    )
    release(settings, run.run_id)
    baseline = finetune(settings, run.run_id, without_calls=True)
    models = [finetune(settings, run.run_id), baseline]
    assert models[0] != baseline
    for model_id, without_calls in zip(models, (False, True), strict=True):
        assert publish(settings, run.run_id, without_calls=without_calls) == model_id
        [row] = run.rows(f"select * from finetuned_models where model_id = '{model_id}'")
        record = json.loads(published(store, model_id, "finetuning.json"))
        log = [json.loads(line) for line in published(store, model_id, "development_log.jsonl").splitlines()]
        assert [line["step"] for line in log] == [2, 4, 6]
        lowest = min(log, key=lambda line: line["perplexity"])
        assert (row.best_step, row.development_perplexity) == (
            lowest["step"],
            pytest.approx(lowest["perplexity"]),
        )
        assert (record["best_step"], record["development_documents"]) == (lowest["step"], 3)
        assert row.without_calls is ("finetuned without calls" in published(store, model_id, "README.md"))
        assert row.without_calls is without_calls
    assert run.rows("select model_id from run_models order by without_calls") == [
        (model,) for model in models
    ]


def test_the_development_texts_are_the_same_for_the_baseline(settings, store, tiny_model_dir):
    run = annotated_run(
        settings, tiny_model_dir, finetune_eval_steps=2, finetune_dev_documents=3, more_texts=HELD_OUT
    )
    release(settings, run.run_id)

    def chosen(*, without_calls: bool = False, **changes: int) -> tuple[str, ...]:
        recipe = finetuning.load_finetuning_run(settings, store, "run-1", without_calls=without_calls).recipe
        choices = recipe.choices.model_copy(update=changes)
        return tuple(finetuning.development_texts(settings, recipe.model_copy(update={"choices": choices})))

    assert chosen() == chosen(without_calls=True)
    assert len(set(chosen())) == 3
    assert {*chosen(finetune_dev_documents=1000)} == {*HELD_OUT}
    assert len({chosen(seed=seed, finetune_dev_documents=2) for seed in range(12)}) > 3
    later = run.add_text("A text of a later version of the corpus.")
    run.change("update corpus_documents set first_version = 2 where document_id = :id", id=later.document_id)
    assert later.text not in chosen(finetune_dev_documents=1000)


def test_a_release_or_model_that_is_not_the_registered_one_is_refused(settings, store, run, tmp_path):
    (tmp_path / "other").write_text("something else")

    def replace(prefix: str) -> bytes:
        first = store.get(f"{prefix}/manifest.json")
        store.delete(f"{prefix}/manifest.json")
        store.publish(prefix, {"finetuning.json": tmp_path / "other"})
        return first

    released = f"releases/{release(settings, run.run_id)}"
    registered = replace(released)
    with pytest.raises(CorruptObjectError, match="that Postgres registered"):
        finetune(settings, run.run_id)
    store.put(f"{released}/manifest.json", registered, "application/json")
    model_id = finetune(settings, run.run_id)
    prefix = model_prefix(model_id)
    [weights] = [key for key in store.list(prefix) if key.endswith("model.safetensors")]
    first = store.get(weights)
    for is_published in (False, True):
        store.delete(weights)
        with pytest.raises(ObjectNotFoundError, match=r"model.safetensors .*: found nothing"):
            publish(settings, run.run_id)
        assert (store.read_manifest(prefix) is not None) is is_published
        assert finetune(settings, run.run_id) == publish(settings, run.run_id) == model_id
        [row] = run.rows("select manifest_sha256, withdrawn_at from finetuned_models")
        assert row.withdrawn_at is None
        again = tmp_path / f"again-{is_published}"
        store.fetch(prefix, again, row.manifest_sha256)
        assert (again / "model.safetensors").read_bytes() == first
    [weights] = [key for key in store.list(prefix) if key.endswith("model.safetensors")]
    flip_a_byte(store, weights)
    with pytest.raises(CorruptObjectError, match=r"model.safetensors .* Run `toolformer-ops stage finetune"):
        publish(settings, run.run_id)
    replace(prefix)
    for stage in (finetune, publish):
        with pytest.raises(CorruptObjectError, match="that Postgres registered"):
            stage(settings, run.run_id)
    store.delete(f"{prefix}/manifest.json")
    assert finetune(settings, run.run_id) == publish(settings, run.run_id)  # as the message says


def test_nothing_to_train_on_publishes_no_model(settings, tiny_model_dir):
    unreleased = annotated_run(settings, tiny_model_dir)
    for stage in (finetune, publish):
        with pytest.raises(NoResultError, match="expected a release with texts to train on, found none"):
            stage(settings, unreleased.run_id)
    release(settings, unreleased.run_id)
    with pytest.raises(UsageError, match="stage finetune --run run-1"):
        publish(settings, unreleased.run_id)
    unreleased.change("update dataset_releases set documents = 0")
    with pytest.raises(NoResultError, match="found one without texts"):
        finetune(settings, unreleased.run_id)
    assert list(ObjectStore(settings).list("models/")) == []
