"""A model on S3 is the model that was published: the same identity, recipes, losses; folders are used where they are."""

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from toolformer_ops.__main__ import app
from toolformer_ops.config import load_settings
from toolformer_ops.decoding.model import WritingModel
from toolformer_ops.decoding.records import DecodingSettings, Prompt
from toolformer_ops.errors import (
    EXIT_USAGE,
    AlreadyPublishedError,
    CorruptObjectError,
    ModelError,
    UsageError,
    exit_code,
)
from toolformer_ops.language_model.model import LanguageModel
from toolformer_ops.language_model.models import model_identity
from toolformer_ops.language_model.models.publishing import publish_model
from toolformer_ops.storage.objects.publication import ObjectStore

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TEXT = "There were 2 cats and 3 dogs, a total of 5 animals."


def test_model_is_published_once_with_the_identity_of_its_folder(settings, tiny_model_dir, tmp_path):
    folder = Path(shutil.copytree(tiny_model_dir, tmp_path / "tiny-llama"))
    for name in ("pytorch_model.bin", "modeling_tiny.py", "train.log"):
        (folder / name).write_bytes(b"not for S3")
    for _ in range(2):
        printed = CliRunner().invoke(app, ["publish-model", str(folder)], catch_exceptions=False).stdout
        assert printed == f"s3://{settings.s3_bucket}/models/tiny-llama\n"
    address = printed.strip()
    names = {key.rpartition("/")[2] for key in ObjectStore(settings).list("models/")}
    assert names >= {"model.safetensors", "config.json", "tokenizer.json", "manifest.json"}
    assert not names & {"pytorch_model.bin", "modeling_tiny.py", "train.log", ".content_hashes.json"}

    identity = model_identity(str(folder))
    assert (
        model_identity(address, settings=settings)
        == model_identity(f"{address}/", settings=settings)
        == identity
    )
    assert not settings.cache_folder.exists()  # the manifest alone was read
    renamed = publish_model(settings, str(folder), name="other-name")
    assert model_identity(renamed.address, settings=settings) == identity
    here, there = LanguageModel.load(str(folder)), LanguageModel.load(address, settings=settings)
    assert there.identity == here.identity == identity
    assert there.text_losses([TEXT]) == here.text_losses([TEXT])
    writing = WritingModel.load(settings, f"{address}/", tools=("Calculator",))
    settings_of_six = DecodingSettings(max_new_tokens=6, call_start_rank=0)
    assert writing.write([Prompt("The shop had 520 shirts and")], settings_of_six)

    (folder / "config.json").write_text((folder / "config.json").read_text() + "\n")
    with pytest.raises(AlreadyPublishedError, match="--name"):
        publish_model(settings, str(folder))


def test_hub_model_keeps_its_identity_on_s3(settings, tiny_model_dir, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("TOOLFORMER_HUB_OFFLINE", "true")
    load_settings.cache_clear()
    shutil.copytree(tiny_model_dir, tmp_path / "hub" / "models--owner--model" / "snapshots" / COMMIT)
    offline = settings.model_copy(update={"hub_offline": True})
    address = publish_model(offline, "owner/model", COMMIT).address
    assert address.endswith("/models/model")
    assert model_identity(address, settings=offline) == f"owner/model@{COMMIT}"
    assert LanguageModel.load(address, settings=offline).identity == f"owner/model@{COMMIT}"
    with pytest.raises(ModelError, match="expected a local folder, or a hub id with a revision"):
        publish_model(offline, "owner/model")


def test_what_is_no_model_with_safetensors_is_not_published(settings, tiny_model_dir, tmp_path):
    folder = Path(shutil.copytree(tiny_model_dir, tmp_path / "pickled"))
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"found no \*\.safetensors"):
        publish_model(settings, str(folder))
    with pytest.raises(UsageError, match="which is on S3"):
        publish_model(settings, f"s3://{settings.s3_bucket}/models/x")
    with pytest.raises(UsageError, match="--name"):
        publish_model(settings, str(tiny_model_dir), name="../releases/x")
    store = ObjectStore(settings)
    assert list(store.list("")) == []
    # Nor is such a publication used, or one that says another identity.
    (tmp_path / "config.json").write_text("{}")
    release = store.publish("releases/one", {"config.json": tmp_path / "config.json"})
    with pytest.raises(ModelError, match=r"found no \*\.safetensors"):
        model_identity(store.uri(release.prefix), settings=settings)
    files = {path.name: path for path in tiny_model_dir.iterdir() if path.is_file() and path.name[0] != "."}
    store.publish("models/false", files, kind="model", identity=f"tiny@{'0' * 16}")
    with pytest.raises(CorruptObjectError, match="found tiny@0000"):
        model_identity(store.uri("models/false"), settings=settings)
    with pytest.raises(ModelError, match="publish-model") as nothing:
        model_identity(store.uri("models/nothing"), settings=settings)
    assert exit_code(nothing.value) == EXIT_USAGE
