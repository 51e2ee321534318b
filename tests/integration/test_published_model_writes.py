"""A model that was published on S3 is fetched, checked against its manifest, and writes what its folder writes."""

import json
from pathlib import Path

import pytest
from sqlalchemy import text

from tests.annotated_runs import AnnotatedRun
from toolformer_ops.config import Settings
from toolformer_ops.decoding.model import WritingModel
from toolformer_ops.decoding.records import DecodingSettings, Prompt
from toolformer_ops.errors import EXIT_USAGE, CorruptObjectError, ModelError, exit_code
from toolformer_ops.storage import database
from toolformer_ops.storage.publication import ObjectStore

DECODING = DecodingSettings(max_new_tokens=6, call_start_rank=0)
PROMPT = [Prompt("The shop had 520 shirts and")]


def publish(settings: Settings, folder: Path) -> str:
    store = ObjectStore(settings)
    manifest = store.publish("models/tiny", {path.name: path for path in folder.iterdir() if path.is_file()})
    return store.uri(manifest.prefix)


def test_a_published_model_writes_what_its_folder_writes_and_is_fetched_again_if_it_was_damaged(
    settings: Settings, tiny_model_dir: Path
) -> None:
    uri = publish(settings, tiny_model_dir)
    published = WritingModel.load(settings, uri, tools=("Calculator",))
    local = WritingModel.load(settings, str(tiny_model_dir), tools=("Calculator",))
    [ours], [theirs] = published.write(PROMPT, DECODING), local.write(PROMPT, DECODING)
    assert ours.token_ids == theirs.token_ids
    assert published.identity == f"tiny@{local.identity.rpartition('@')[2]}"
    [config] = settings.cache_folder.glob("entries/*/config.json")
    whole = config.read_text(encoding="utf-8")
    config.write_text(json.dumps({"model_type": "nothing"}), encoding="utf-8")
    assert WritingModel.load(settings, uri + "/", tools=()).identity == published.identity
    assert config.read_text(encoding="utf-8") == whole


def test_a_model_that_is_not_the_registered_one_does_not_write(settings: Settings, tiny_model_dir: Path) -> None:
    uri = publish(settings, tiny_model_dir)
    run = AnnotatedRun(settings, {"Calculator": 0.5})
    with database.transaction(run.engine) as connection:
        connection.execute(
            text(
                "with released as (insert into dataset_releases (release_id, run_id, uri, manifest_sha256, documents, calls) "
                "values ('r', 'run-1', 's3://b/r', repeat('0', 64), 1, 1)) "
                "insert into finetuned_models (model_id, release_id, run_id, uri, manifest_sha256, definition, training_loss) "
                "values ('tiny', 'r', 'run-1', :uri, repeat('0', 64), '{}', 2.5)"
            ),
            {"uri": uri},
        )
    with pytest.raises(CorruptObjectError, match=r"that Postgres registered \(0000"):
        WritingModel.load(settings, f"{uri}/", tools=())


def test_an_address_without_a_model_is_a_wrong_request_that_says_what_was_looked_for(settings: Settings) -> None:
    ObjectStore(settings).ensure_bucket()
    with pytest.raises(ModelError, match="models/nothing") as raised:
        WritingModel.load(settings, f"s3://{settings.s3_bucket}/models/nothing")
    assert exit_code(raised.value) == EXIT_USAGE
