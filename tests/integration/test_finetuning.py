"""Finetuning a tiny model on a release, and publishing it: once, whole, and only where there is something to train on."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text as sql_text

from tests.annotated_runs import AnnotatedRun
from toolformer_ops import database
from toolformer_ops.config import Settings
from toolformer_ops.errors import ModelError, NothingToReleaseError, ParameterError, RecipeMismatchError
from toolformer_ops.finetuning.recipe import FinetuningRecipe
from toolformer_ops.finetuning.sequences import TokenSequences
from toolformer_ops.finetuning.training import TrainingError, load_base_model, train
from toolformer_ops.language_model import model_identity
from toolformer_ops.object_store import ObjectStore
from toolformer_ops.run_parameters import RunParameters
from toolformer_ops.stages import finetuning
from toolformer_ops.stages.finetuning import finetune, model_prefix, publish
from toolformer_ops.stages.release import release

SMALL = {
    "finetune_steps": 6,
    "finetune_batch": 4,
    "finetune_device_batch": 2,
    "finetune_length": 48,
    "finetune_learning_rate": 1e-3,
}


@pytest.fixture
def run(settings: Settings, tiny_model_dir: Path) -> AnnotatedRun:
    """Five texts with a call each, complete, with the tiny model as the run's model."""
    return _run(settings, tiny_model_dir)


def _run(settings: Settings, model: Path, run_id: str = "run-1", **parameters: object) -> AnnotatedRun:
    run = AnnotatedRun(settings, {"Calculator": 0.5}, run_id, str(model), **(SMALL | parameters))
    for number in range(5):
        document = run.add_text(f"The shop had {number + 9} shirts and sold {number}, so it has 9 left.")
        if run_id == "run-1":
            run.add_call("Calculator", document, " 9 left", f"{number + 9} - {number}", "9", saves=2.0)
    if run_id == "run-1":
        run.complete("Calculator")
    with database.transaction(run.engine) as connection:
        statement = "update annotation_runs set model_identity = :identity where run_id = :run_id"
        connection.execute(sql_text(statement), {"identity": model_identity(str(model)), "run_id": run_id})
    return run


def _rows(run: AnnotatedRun, statement: str) -> list[Any]:
    with database.transaction(run.engine) as connection:
        return list(connection.execute(sql_text(statement)).all())


def test_finetuned_model_is_published_whole_and_loads_with_transformers(
    settings: Settings, run: AnnotatedRun, tiny_model_dir: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    release_id = release(settings, run.run_id)
    model_id = finetune(settings, run.run_id)
    store = ObjectStore(settings)
    assert store.read_manifest(model_prefix(model_id)) is None  # trained is not published
    assert _rows(run, "select 1 from finetuned_models") == []
    assert publish(settings, run.run_id) == model_id

    manifest = store.fetch(model_prefix(model_id), tmp_path)
    names = {file.name for file in manifest.files}
    assert {
        "model.safetensors",
        "config.json",
        "tokenizer.json",
        "training_log.jsonl",
        "finetuning.json",
        "README.md",
    } <= names
    assert not any(name.endswith((".bin", ".pt", ".pkl")) for name in names)
    network = AutoModelForCausalLM.from_pretrained(tmp_path, use_safetensors=True)
    before = AutoModelForCausalLM.from_pretrained(tiny_model_dir, use_safetensors=True)
    assert any((a != b).any() for a, b in zip(network.parameters(), before.parameters(), strict=True))
    assert network.config.use_cache == before.config.use_cache
    text = "it has [Calculator(9 - 0) -> 9] 9 <s> left."
    ours, theirs = (AutoTokenizer.from_pretrained(folder)(text)["input_ids"] for folder in (tmp_path, tiny_model_dir))
    assert ours == theirs

    log = [json.loads(line) for line in (tmp_path / "training_log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in log] == [1, 2, 3, 4, 5, 6]
    assert log[-1]["loss"] < log[0]["loss"]
    record = json.loads((tmp_path / "finetuning.json").read_text())
    assert (record["release_id"], record["model_id"], record["texts"]) == (release_id, model_id, 5)
    [row] = _rows(run, "select * from finetuned_models")
    assert (row.model_id, row.release_id, row.run_id) == (model_id, release_id, "run-1")
    assert row.manifest_sha256 == manifest.sha256
    assert row.uri == f"s3://{settings.s3_bucket}/models/{model_id}"
    assert row.definition["learning_rate"] == 1e-3
    assert row.training_loss == pytest.approx(sum(line["loss"] for line in log[-5:]) / 5)
    assert _rows(run, "select run_id, model_id from run_models") == [("run-1", model_id)]
    assert list((settings.state_dir / "finetuning").glob("*/")) == []  # nothing is left on the machine
    assert not store.exists(f"{model_prefix(model_id)}/draft.json")


def test_second_finetune_of_one_release_finds_the_model_and_does_nothing(
    settings: Settings, run: AnnotatedRun, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = _run(settings, tiny_model_dir, "run-2", finetune_device_batch=4)
    assert release(settings, "run-1") == release(settings, "run-2")
    model_id = finetune(settings, "run-1")
    monkeypatch.setattr(finetuning, "_train", _must_not_train)
    assert finetune(settings, "run-2") == model_id  # trained, not yet published
    publish(settings, "run-1")
    keys = list(ObjectStore(settings).list("models/"))
    assert finetune(settings, "run-1") == finetune(settings, "run-2") == model_id
    assert publish(settings, "run-2") == publish(settings, "run-1") == model_id
    assert list(ObjectStore(settings).list("models/")) == keys
    assert len(_rows(other, "select 1 from finetuned_models")) == 1
    assert len(_rows(other, "select 1 from run_models")) == 2


def _must_not_train(*_: object) -> dict[str, Path]:
    raise AssertionError("expected no training")


def test_two_machines_that_train_at_once_end_as_one_model(
    settings: Settings, run: AnnotatedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release(settings, run.run_id)
    elsewhere = settings.model_copy(update={"state_dir": tmp_path / "elsewhere"})
    real = finetuning._train
    first: list[str] = []

    def train_while_the_other_does(*arguments: Any) -> dict[str, Path]:
        monkeypatch.setattr(finetuning, "_train", real)
        first.append(finetune(elsewhere, run.run_id))
        files = real(*arguments)
        files["README.md"].write_text("another bytes of the same model")
        return files

    monkeypatch.setattr(finetuning, "_train", train_while_the_other_does)
    assert finetune(settings, run.run_id) == first[0] == publish(settings, run.run_id)
    ObjectStore(settings).fetch(model_prefix(first[0]), tmp_path / "model")
    assert (tmp_path / "model" / "README.md").read_text().startswith("# Finetuned model")


def test_training_that_was_killed_starts_anew_and_leaves_nothing_of_the_first(
    settings: Settings, run: AnnotatedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    release(settings, run.run_id)

    def killed(_: Path) -> float:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("toolformer_ops.finetuning.training.training_loss", killed)
        with pytest.raises(KeyboardInterrupt):
            finetune(settings, run.run_id)
    [folder] = (settings.state_dir / "finetuning").glob("*/")
    (folder / "model" / "model-00001-of-00002.safetensors").write_bytes(b"half of the weights")
    assert list(ObjectStore(settings).list("models/")) == []
    model_id = finetune(settings, run.run_id)
    publish(settings, run.run_id)
    manifest = ObjectStore(settings).read_manifest(model_prefix(model_id))
    assert manifest is not None
    assert [file.name for file in manifest.files if file.name.endswith(".safetensors")] == ["model.safetensors"]


def test_publish_that_was_killed_after_the_manifest_goes_on(settings: Settings, run: AnnotatedRun) -> None:
    release(settings, run.run_id)
    model_id = finetune(settings, run.run_id)
    store = ObjectStore(settings)
    prefix = model_prefix(model_id)
    store.put_if_absent(f"{prefix}/manifest.json", store.get(f"{prefix}/draft.json"))
    publish(settings, run.run_id)
    assert len(_rows(run, "select 1 from finetuned_models")) == 1


def test_nothing_to_train_on_publishes_no_model(settings: Settings, run: AnnotatedRun) -> None:
    with pytest.raises(NothingToReleaseError, match="expected a release with texts to train on, found none"):
        finetune(settings, run.run_id)
    with pytest.raises(NothingToReleaseError):
        publish(settings, run.run_id)
    release(settings, run.run_id)
    with database.transaction(run.engine) as connection:
        connection.execute(sql_text("update dataset_releases set documents = 0"))
    with pytest.raises(NothingToReleaseError, match="found one without texts"):
        finetune(settings, run.run_id)
    assert list(ObjectStore(settings).list("models/")) == []


def test_publishing_what_was_not_trained_is_refused(settings: Settings, run: AnnotatedRun) -> None:
    release(settings, run.run_id)
    with pytest.raises(ParameterError, match="stage finetune --run run-1"):
        publish(settings, run.run_id)
    with pytest.raises(ParameterError, match="'nobody'"):
        finetune(settings, "nobody")


def test_base_model_that_changed_since_the_run_started_is_refused(
    settings: Settings, tiny_gpt2_dir: Path, tmp_path: Path
) -> None:
    model = Path(shutil.copytree(tiny_gpt2_dir, tmp_path / "model"))
    run = _run(settings, model)
    release(settings, run.run_id)
    (model / "config.json").write_text((model / "config.json").read_text() + "\n")
    with pytest.raises(RecipeMismatchError, match="Put the first one back"):
        finetune(settings, run.run_id)
    shutil.rmtree(model)
    with pytest.raises(ModelError):
        finetune(settings, run.run_id)


# The training itself


def _trained(
    settings: Settings,
    model: Path,
    folder: Path,
    at_most: int,
    edit: Callable[[Any], None] = lambda base: None,
    **changes: object,
) -> tuple[list[dict[str, float]], Any]:
    from transformers import AutoModelForCausalLM

    parameters = RunParameters(corpus="c", model=str(model), **(SMALL | changes))
    recipe = FinetuningRecipe.of(parameters, "0" * 16, "tiny@1")
    base = load_base_model(settings, str(model), None)
    edit(base)
    sequences = TokenSequences()
    for text in ("The shop had 520 shirts.", "It sold 187", "of them, so it has 333 left and that is it.", "Done."):
        sequences.append((*base.tokenization.start_ids, *base.tokenization.ids(text)))
    trained = train(settings, recipe, base, sequences, folder, at_most)
    log = [json.loads(line) for line in (trained.directory / "training_log.jsonl").read_text().splitlines()]
    return log, AutoModelForCausalLM.from_pretrained(trained.directory)


def test_splitting_a_batch_changes_neither_losses_nor_weights(
    s3_settings: Settings, tiny_model_dir: Path, tmp_path: Path
) -> None:
    whole, one = _trained(s3_settings, tiny_model_dir, tmp_path / "whole", at_most=4)
    split, two = _trained(s3_settings, tiny_model_dir, tmp_path / "split", at_most=1)
    assert [line["loss"] for line in split] == pytest.approx([line["loss"] for line in whole], abs=1e-4)
    assert [line["tokens"] for line in split] == [line["tokens"] for line in whole]
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        assert (a - b).abs().max() < 2e-3  # Adam turns rounding of near-zero gradients into small steps


def test_first_loss_is_the_mean_over_the_tokens_of_the_text_alone(
    s3_settings: Settings, tiny_model_dir: Path, tmp_path: Path
) -> None:
    import torch

    log, _ = _trained(s3_settings, tiny_model_dir, tmp_path, at_most=2, finetune_steps=1)
    base = load_base_model(s3_settings, str(tiny_model_dir), None)
    total, tokens = 0.0, 0
    for text in ("The shop had 520 shirts.", "It sold 187", "of them, so it has 333 left and that is it.", "Done."):
        ids = torch.tensor([[*base.tokenization.start_ids, *base.tokenization.ids(text)]])
        with torch.no_grad():
            log_probs = base.network(ids).logits.log_softmax(-1)[0, :-1]  # (position, vocabulary)
        total -= log_probs.gather(1, ids[0, 1:, None]).sum().item()
        tokens += ids.shape[1] - 1
    assert log[0]["loss"] == pytest.approx(total / tokens, abs=2e-4)


def test_learning_rate_rises_over_the_first_tenth_and_then_stays(
    s3_settings: Settings, tiny_model_dir: Path, tmp_path: Path
) -> None:
    log, _ = _trained(s3_settings, tiny_model_dir, tmp_path, at_most=4, finetune_steps=20, finetune_batch=1)
    rates = [line["learning_rate"] for line in log]
    assert rates[:3] == pytest.approx([0.0, 5e-4, 1e-3])  # 2 warm-up steps, each logged with the rate that it used
    assert rates[3:] == [1e-3] * 17


def test_same_seed_gives_the_same_losses_and_another_seed_others(
    s3_settings: Settings, tiny_model_dir: Path, tmp_path: Path
) -> None:
    first, again, other = (
        [
            line["loss"]
            for line in _trained(s3_settings, tiny_model_dir, tmp_path / name, 2, finetune_batch=2, seed=seed)[0]
        ]
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert first == again
    assert first != other


def test_diverged_training_is_an_error_and_not_a_model(
    s3_settings: Settings, tiny_model_dir: Path, tmp_path: Path
) -> None:
    def poison(base: Any) -> None:
        base.network.lm_head.weight.data[0, 0] = math.nan

    with pytest.raises(TrainingError, match="expected a finite training loss"):
        _trained(s3_settings, tiny_model_dir, tmp_path, 2, poison)
