"""Releases and models on a hub and in a folder, by a server that speaks the hub's API."""

import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from huggingface_hub import RepoCard
from huggingface_hub import constants as hub_constants

from tests.annotated_runs import AnnotatedRun, release
from tests.hub_server import TOKEN, Repository, running_hub
from tests.servers import flip_a_byte
from toolformer_ops import errors
from toolformer_ops.config import Settings
from toolformer_ops.errors import ConfigurationError, InfrastructureError, ToolformerError, UsageError
from toolformer_ops.release.format import read_release
from toolformer_ops.release.hub import MANIFEST_ON_HUB, Described, download, published, push
from toolformer_ops.storage.objects.publication import ObjectStore

REPO = "a-team/sums"


@pytest.fixture
def hub(monkeypatch):
    """An empty hub, to which this process writes."""
    with running_hub() as server:
        monkeypatch.setattr(hub_constants, "ENDPOINT", server.url)
        monkeypatch.setattr(hub_constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(
            hub_constants, "HF_HUB_OFFLINE", False
        )  # another test of this process may have said so
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr(time, "sleep", lambda _: None)  # between the library's own tries
        yield server


def released(settings: Settings, *sums: tuple[int, int]) -> str:
    """The id of a release of a text a sum."""
    run = AnnotatedRun(settings, {"Calculator": 0.5}, run_id=f"run-{sums[0][0]}")
    for total, part in sums:
        document = run.add_text(
            f"Out of {total} people, {part} passed, that is {part / total:.2f} of them all."
        )
        run.add_call(
            "Calculator", document, " of them", f"{part} / {total}", f"{part / total:.2f}", saves=1.25
        )
    run.complete("Calculator")
    run.engine.dispose()
    return release(settings, run.run_id)


def published_model(settings: Settings, folder: Path) -> str:
    """The name of a model on S3, with weights of random bytes."""
    record = {"definition": {"base_model": f"someone/small@{'a' * 40}"}}
    contents = {f"model-0000{number}.safetensors": os.urandom(5000) for number in (1, 2)}
    contents |= {"finetuning.json": json.dumps(record).encode(), "README.md": b"# Finetuned model\n"}
    folder.mkdir()
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    ObjectStore(settings).publish("models/tuned", {name: folder / name for name in contents})
    return "tuned"


def test_a_release_is_pushed_whole_with_its_card(settings, hub, tmp_path):
    release_id = released(settings, (1400, 700), (1500, 300))
    # 1. By the command line, to the hub that HF_ENDPOINT names.
    words = ["push", release_id, REPO, "--license", "cc-by-sa-4.0"]
    environment = os.environ | {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1"}
    command = [sys.executable, "-m", "toolformer_ops", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    repository = hub.repositories[f"datasets/{REPO}"]
    assert done.stdout == f"{hub.url}/datasets/{REPO}\nrevision {repository.head}\n"
    assert TOKEN not in done.stderr + done.stdout
    # 2. All of it in one commit, private; the files are those of S3.
    assert (repository.private, len(repository.commits)) == (True, 2)
    manifest = published(settings, release_id)
    assert repository.files.keys() == {
        ".gitattributes",
        "README.md",
        MANIFEST_ON_HUB,
        "data/part-00000.parquet",
    }
    assert repository.files[MANIFEST_ON_HUB] == manifest.to_bytes()
    copy = tmp_path / "copy"
    assert download(settings, release_id, copy, Described(licence="cc-by-sa-4.0")) == manifest
    assert repository.files["data/part-00000.parquet"] == (copy / "data" / "part-00000.parquet").read_bytes()
    # 3. The card.
    text = repository.files["README.md"].decode()
    card = RepoCard(text)
    data = card.data.to_dict()
    assert (data["license"], data["language"], data["size_categories"]) == ("cc-by-sa-4.0", ["en"], ["n<1K"])
    assert data["configs"] == [
        {"config_name": "default", "data_files": [{"split": "train", "path": "data/part-*.parquet"}]}
    ]
    assert (copy / "README.md").read_text(encoding="utf-8") == text  # a copy in a folder says the same
    assert any(f"````text\n{read.text}\n````" in card.text for read in read_release(copy))
    # 4. The same again is no new commit.
    assert push(settings, release_id, REPO, Described(licence="cc-by-sa-4.0")).revision == repository.head
    assert len(repository.commits) == 2
    # 5. Another release takes its place, and leaves no file of the one before.
    repository.commits["1" * 40] = repository.files | {"data/part-00001.parquet": b"of a larger release"}
    push(settings, released(settings, (90, 9)), REPO, Described(languages=("en",), sources=("a course",)))
    assert "data/part-00001.parquet" not in repository.files
    assert "- a course\n\nLicence: not said" in repository.files["README.md"].decode()


def test_a_push_that_broke_off_shows_nothing_before_it_continues(s3_settings, hub, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    name = published_model(s3_settings, tmp_path / "model")
    hub.uploads_before_break = 1
    with pytest.raises(InfrastructureError, match=r"503.*the same command continues") as broken:
        push(s3_settings, name, REPO, Described())
    repository = hub.repositories[f"models/{REPO}"]
    assert repository.files.keys() == {".gitattributes"}
    hub.uploads_before_break = None
    pushed = push(
        s3_settings, f"s3://{s3_settings.s3_bucket}/models/tuned", REPO, Described(licence="apache-2.0")
    )
    assert (pushed.address, pushed.revision) == (f"{hub.url}/{REPO}", repository.head)
    assert len(hub.uploads) == len(set(hub.uploads)) == 2  # the first was not sent again
    assert (
        repository.files["model-00002.safetensors"]
        == (tmp_path / "model" / "model-00002.safetensors").read_bytes()
    )
    assert RepoCard(repository.files["README.md"].decode()).data["base_model"] == "someone/small"
    said = caplog.text + str(broken.value)
    assert TOKEN not in said
    assert "X-Amz-Signature" not in said


@pytest.fixture
def refused(s3_settings, hub, tmp_path):
    """Pushes a model, and returns the message of the error of this kind."""
    name = published_model(s3_settings, tmp_path / "model")

    def refused_push(kind: type[ToolformerError], repo: str = REPO, publication: str = name) -> str:
        with pytest.raises(kind) as caught:
            push(s3_settings, publication, repo, Described())
        return str(caught.value)

    return refused_push


def test_a_wrong_request_to_push_is_refused_before_the_hub_is_asked(s3_settings, refused):
    assert "such as owner/name" in refused(UsageError, "a/b/../c")
    assert "nothing published at s3://" in refused(UsageError, publication="0123")
    assert "neither. An index" in refused(
        UsageError, publication=f"s3://{s3_settings.s3_bucket}/indices/wiki"
    )


def test_a_token_without_rights_is_refused_without_being_shown(refused, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_of_somebody_else")
    assert "hf_of_somebody_else" not in refused(ConfigurationError)
    monkeypatch.setenv("HF_TOKEN", TOKEN)


def test_a_repository_that_is_not_ours_to_replace_is_refused(hub, refused):
    hub.repositories["models/a-team/thesis"] = Repository(True, {"1" * 40: {"thesis.pdf": b"a year of work"}})
    assert "such as thesis.pdf" in refused(UsageError, "a-team/thesis")
    hub.repositories["models/a-team/open"] = Repository(private=False)
    assert "--public" in refused(UsageError, "a-team/open")


def test_a_push_whose_repository_holds_another_file_at_its_end_is_an_error(hub, refused):
    # Another client commits meanwhile; a .gitignore of the repository leaves a file out.
    hub.moves_meanwhile = True
    assert "found another commit" in refused(errors.BusyError)
    hub.moves_meanwhile = False
    hub.ignored = "finetuning.json"
    assert "found none or another finetuning.json" in refused(InfrastructureError)


def test_a_hub_that_cannot_be_reached_is_told_with_the_remedy(s3_settings, refused, monkeypatch):
    # No network, and a deployment that asks no hub.
    monkeypatch.setattr(hub_constants, "ENDPOINT", "http://127.0.0.1:9")
    assert "expected the hub to answer" in refused(InfrastructureError)
    with pytest.raises(ConfigurationError, match="TOOLFORMER_HUB_OFFLINE"):
        push(s3_settings.model_copy(update={"hub_offline": True}), "tuned", REPO, Described())


def test_a_download_continues_without_ever_mixing_folders(s3_settings, tmp_path):
    name = published_model(s3_settings, tmp_path / "model")
    folder = tmp_path / "copy"
    manifest = published(s3_settings, name)
    flip_a_byte(ObjectStore(s3_settings), manifest.key_of(manifest.files[-1]))
    with pytest.raises(errors.CorruptObjectError):
        download(s3_settings, name, folder, Described())
    assert not folder.exists()
    flip_a_byte(ObjectStore(s3_settings), manifest.key_of(manifest.files[-1]))
    for _ in range(2):
        download(s3_settings, name, folder, Described())
        assert {path.name for path in folder.iterdir()} == {
            MANIFEST_ON_HUB,
            *(file.name for file in manifest.files),
        }
    (folder / "model-00001.safetensors").write_bytes(b"another")
    with pytest.raises(UsageError, match=r"found another model-00001\.safetensors, or none"):
        download(s3_settings, name, folder, Described())
    assert (folder / "model-00001.safetensors").read_bytes() == b"another"
    assert not folder.with_name("copy.part").exists()
