"""A training whose disk is gone continues from its newest whole checkpoint on S3, and from nothing less than whole."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import killed_training
from tests.finetuning_jobs import DEV_TEXTS, largest_difference, recipe_of, write_release
from toolformer_ops.config import REPOSITORY, Settings
from toolformer_ops.finetuning.checkpoints import Checkpoints, Snapshots
from toolformer_ops.finetuning.recipe import TrainingJob
from toolformer_ops.finetuning.release_training import train_on_release
from toolformer_ops.storage.objects.publication import MANIFEST, ObjectStore


def steps_on_s3(store: ObjectStore) -> list[int]:
    """Steps of the snapshots whose manifest is there."""
    return [
        int(key.split("/")[2].partition("-")[0])
        for key in store.list("checkpoints/")
        if key.endswith(MANIFEST)
    ]


@pytest.mark.slow
def test_training_that_lost_its_disk_while_it_sent_a_checkpoint_ends_as_an_undisturbed_one(
    s3_settings, tiny_gpt2_dir, tmp_path
):
    recipe, release = recipe_of(**killed_training.CHOICES), write_release(tmp_path / "release")
    of_model = (recipe, str(tiny_gpt2_dir), release, DEV_TEXTS)
    store = ObjectStore(s3_settings)
    train_on_release(s3_settings, TrainingJob(*of_model, tmp_path / "one-machine"))
    assert list(store.list("checkpoints/")) == []  # on one machine they stay in the state folder
    # A pod trains with other threads than one machine, and sums round otherwise: pods are compared.
    on_s3 = s3_settings.model_copy(update={"runner": "kubernetes"})
    undisturbed = train_on_release(on_s3, TrainingJob(*of_model, tmp_path / "undisturbed"))
    Snapshots(on_s3, recipe.model_id).forget()

    places = (str(tiny_gpt2_dir), str(release), str(tmp_path / "killed"))
    command = [sys.executable, "-m", "tests.killed_training", *places, "sending-8"]
    environment = dict(os.environ) | {"OMP_NUM_THREADS": "1", "TOOLFORMER_RUNNER": "kubernetes"}
    subprocess.run(command, cwd=REPOSITORY, env=environment, check=True)
    shutil.rmtree(tmp_path / "killed")
    # The checkpoints of the steps 4 and 6 (an evaluation) were sent before; that of step 8 has its files
    # there and no manifest.
    assert steps_on_s3(store) == [6]
    logs = [
        content
        for key in store.list("checkpoints/")
        if b'"learning_rate"' in (content := store.get(key))[:200]
    ]

    resumed = train_on_release(on_s3, TrainingJob(*of_model, tmp_path / "new-disk"))
    # The lines of the first steps have the times of the first try: they were not trained again.
    assert (resumed.directory / "training_log.jsonl").read_bytes().startswith(min(logs, key=len))
    assert largest_difference(resumed.directory, undisturbed.directory) < 1e-5
    assert resumed.best == undisturbed.best
    assert steps_on_s3(store)[-1] > 6  # which is the last depends on how long the one before was sent
    Snapshots(on_s3, recipe.model_id).forget()
    assert list(store.list("checkpoints/")) == []


@pytest.fixture
def folder(tmp_path):
    """A training's folder after step 8: a checkpoint, the best weights of step 4, a log."""
    for name, content in {
        "checkpoints/checkpoint-8/model.safetensors": b"weights of step 8",
        "checkpoints/checkpoint-8/whole.json": b"{}",
        "checkpoints/best-4/model.safetensors": b"weights of step 4",
        "training_log.jsonl": b"{}\n",
    }.items():
        (tmp_path / "training" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "training" / name).write_bytes(content)
    return tmp_path / "training"


def send(settings: Settings, folder: Path, step: int) -> None:
    files = {
        path.relative_to(folder / "checkpoints").as_posix(): path
        for path in (folder / "checkpoints").rglob("*.*")
    }
    snapshots = Snapshots(settings, "model")
    snapshots.send(
        step, "key", files | {"training_log.jsonl": folder / "training_log.jsonl"}, folder / "sent"
    )
    snapshots.wait()
    assert not (folder / "sent").exists()


def restored(settings: Settings, place: Path, newest_here: int | None = None) -> dict[str, bytes]:
    """The files that are restored into a folder with a whole checkpoint of a step, or with none."""
    place.mkdir(exist_ok=True)
    if newest_here is not None:
        here = Checkpoints(place / "checkpoints", "key")
        here.path(newest_here).mkdir(parents=True)
        here.conclude(newest_here, None)
    Snapshots(settings, "model").restore(place)
    return {
        path.relative_to(place).as_posix(): path.read_bytes() for path in place.rglob("*") if path.is_file()
    }


def test_checkpoint_that_is_not_whole_on_s3_is_never_used(s3_settings, folder, tmp_path, monkeypatch):
    store = ObjectStore(s3_settings)
    send(s3_settings, folder, 8)
    content = {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }
    assert restored(s3_settings, tmp_path / "empty") == content
    (left := tmp_path / "left" / "fetched" / "checkpoint-4").mkdir(
        parents=True
    )  # of a restore that was killed
    (left / "model.safetensors").write_bytes(bytes(17))
    assert restored(s3_settings, tmp_path / "left") == content
    assert restored(s3_settings, tmp_path / "as-new", newest_here=8).keys() == {
        "checkpoints/checkpoint-8/whole.json"
    }
    before = set(store.list("checkpoints/"))

    # A second snapshot, beside the first as where a kill came before the first one went: only what changed is
    # sent.
    (folder / "checkpoints" / "checkpoint-8").rename(folder / "checkpoints" / "checkpoint-12")
    (folder / "checkpoints" / "checkpoint-12" / "model.safetensors").write_bytes(b"weights of step 12")
    with monkeypatch.context() as killed:
        killed.setattr(ObjectStore, "delete", lambda *_: None)
        send(s3_settings, folder, 12)
    manifest, weights = sorted(set(store.list("checkpoints/")) - before)
    assert manifest.endswith(MANIFEST)
    assert store.get(weights) == b"weights of step 12"
    assert "checkpoints/checkpoint-12/model.safetensors" in restored(
        s3_settings, tmp_path / "newest", newest_here=8
    )
    store.put(weights, b"weights of step 13", "application/octet-stream")
    assert restored(s3_settings, tmp_path / "older") == content
    store.delete(weights)
    assert restored(s3_settings, tmp_path / "still-older") == content
    for key in before:
        if not key.endswith(MANIFEST):
            store.put(key, b"damaged", "application/octet-stream")
    assert restored(s3_settings, tmp_path / "nothing") == {}

    (folder / "checkpoints" / "checkpoint-12").rename(folder / "checkpoints" / "checkpoint-16")
    send(s3_settings, folder, 16)  # whole again, and alone
    assert steps_on_s3(store) == [16]
    assert "checkpoints/checkpoint-16/whole.json" in restored(s3_settings, tmp_path / "whole")


def test_training_continues_where_s3_takes_no_checkpoint(s3_settings, folder, caplog):
    send(s3_settings.model_copy(update={"s3_bucket": "no-such-bucket"}), folder, 8)
    assert "the checkpoint of step 8 could not be sent to S3, the training continues" in caplog.text
