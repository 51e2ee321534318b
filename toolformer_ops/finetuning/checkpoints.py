"""Checkpoints that a kill in mid-write cannot harm, the best step's weights, and snapshots of both on S3.

    checkpoints/checkpoint-400/             as transformers' Trainer writes it: weights, random states,
                                            optimiser (not the last one)
    checkpoints/checkpoint-400/whole.json   written last: the checkpoint's files with their sizes, and what it
                                            is a checkpoint of
    checkpoints/best-300/                   the weights with the lowest development perplexity so far

A checkpoint without `whole.json`, or whose files are not those that it lists, is removed. An older checkpoint
goes only when the next one is whole. transformers loads what `torch.save` wrote with `weights_only=True`
alone.

Snapshots are for machines whose disk ends with them: pods that are evicted, nodes that go.

    checkpoints/<training>/00000400-9f3c2a71/manifest.json    a snapshot, written last: the checkpoint of a
                                                              step, the best step's weights, the logs
    checkpoints/<training>/files/<sha256>                     their files, named by content: what did not
                                                              change is not sent again

A snapshot is sent by a thread while the training continues, from links to the checkpoint's files, so that the
next checkpoint may replace them meanwhile. Once it is whole, all others go. A snapshot without a manifest, or
whose files are not all there with their hashes, is never used. If S3 fails the training continues, and the
next checkpoint is sent.
"""

import itertools
import json
import logging
import os
import posixpath
import shutil
import threading
import uuid
from collections.abc import Collection, Mapping
from pathlib import Path

from toolformer_ops.config import Settings
from toolformer_ops.errors import CorruptObjectError, ObjectNotFoundError, ToolformerError
from toolformer_ops.storage.machine.shared_files import replace_file
from toolformer_ops.storage.objects.publication import (
    CHECKPOINTS,
    MANIFEST,
    Manifest,
    ObjectStore,
    PublishedFile,
)

logger = logging.getLogger(__name__)

KIND = "checkpoint"
WHOLE = "whole.json"
WEIGHTS = "*.safetensors"
CONFIGURATION = "*.json"
NOT_WEIGHTS = ("trainer_state.json", WHOLE)


class Checkpoints:
    """The checkpoints of one training in one folder; only one process writes."""

    def __init__(self, folder: Path, key: str) -> None:
        """`key` names what decides the training: a checkpoint of another key is never resumed from."""
        self.folder = folder
        self.key = key

    def path(self, step: int) -> Path:
        """Where Trainer writes the checkpoint of a step."""
        return self.folder / f"checkpoint-{step}"

    def files(self, step: int, best_step: int | None) -> dict[str, Path]:
        """The files of a step's checkpoint and of the best step's weights, by their names in the folder."""
        folders = [self.path(step), *([self._best(best_step)] if best_step is not None else [])]
        paths = itertools.chain.from_iterable(folder.rglob("*") for folder in folders)
        return {path.relative_to(self.folder).as_posix(): path for path in paths if path.is_file()}

    def last_step(self) -> int | None:
        """The step of the newest whole checkpoint; None if there is none."""
        return max(whole_steps(self.folder, self.key), default=None)

    def forget_broken(self) -> None:
        """Remove checkpoints that are not whole, or not of this training."""
        whole = whole_steps(self.folder, self.key)
        for path in self.folder.glob("checkpoint-*"):
            if _step(path) not in whole:
                shutil.rmtree(path)

    def conclude(self, step: int, best_step: int | None) -> None:
        """Declare the checkpoint of `step` whole, keep the best step's weights, and remove all others."""
        path = self.path(step)
        if best_step == step:
            best = self._best(step)
            partial = best.with_name(f"{best.name}.partial")
            for stale in (best, partial):
                shutil.rmtree(stale, ignore_errors=True)
            copy_weights(path, partial)
            partial.replace(best)
        replace_file(path / WHOLE, json.dumps({"key": self.key, "files": _sizes(path)}))
        for other in [*self.folder.glob("checkpoint-*"), *self.folder.glob("best-*")]:
            if other not in (path, self._best(best_step)):
                shutil.rmtree(other)

    def weights(self, best_step: int | None) -> Path:
        """The folder with weights and configuration to publish.

        They are those of the best step, or of the last if none was evaluated.
        """
        return self._best(best_step) if best_step is not None else self.path(self.last_step() or 0)

    def _best(self, step: int | None) -> Path:
        return self.folder / f"best-{step}"


def whole_steps(folder: Path, key: str | None = None) -> list[int]:
    """The steps of the whole checkpoints in a folder: of the training that `key` names, or of any."""
    steps = []
    for path in folder.glob("checkpoint-*"):
        try:
            mark = json.loads((path / WHOLE).read_text(encoding="utf-8"))
            if mark == {"key": mark["key"] if key is None else key, "files": _sizes(path)}:
                steps.append(_step(path))
        except (OSError, ValueError, TypeError, KeyError):  # not there, or cut off
            continue
    return steps


def _step(path: Path) -> int:
    return int(path.name.rpartition("-")[2])


def link(source: Path, target: Path) -> None:
    """Give a file a second name, or copy it if the file system has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def copy_weights(source: Path, target: Path) -> None:
    """Copy weights and configuration of a model folder; the weights as links if the file system has them."""
    target.mkdir(parents=True, exist_ok=True)
    for path in source.glob(WEIGHTS):
        link(path, target / path.name)
    for path in source.glob(CONFIGURATION):
        if path.name not in NOT_WEIGHTS:
            shutil.copyfile(path, target / path.name)


def _sizes(path: Path) -> dict[str, int]:
    files = (file for file in path.rglob("*") if file.is_file() and not file.name.startswith(WHOLE))
    return {str(file.relative_to(path)): file.stat().st_size for file in files}


class SnapshotManifest(Manifest):
    """The manifest of a snapshot, whose files it shares with the others of its training."""

    @property
    def folder(self) -> str:
        """Key of the folder with the files of all snapshots of the training."""
        return f"{posixpath.dirname(self.prefix)}/files"

    def key_of(self, file: PublishedFile) -> str:
        """Key of one file, by its content."""
        return f"{self.folder}/{file.sha256}"


class Snapshots:
    """The snapshots of one training. At most one is being sent."""

    def __init__(self, settings: Settings, training: str) -> None:
        self._store = ObjectStore(settings)
        self._root = f"{CHECKPOINTS}/{training}"
        self._sending: threading.Thread | None = None

    def send(self, step: int, key: str, files: Mapping[str, Path], links: Path) -> None:
        """Send the state after a step, in the background; not if the state before is still being sent.

        `key` names what decides the training; `files` are paths by name; `links` is a folder for links to
        them.
        """
        if self._sending and self._sending.is_alive():
            logger.warning(
                "the checkpoint of step %d stays on this disk: the one before is still being sent to S3", step
            )
            return
        shutil.rmtree(links, ignore_errors=True)
        linked: dict[str, Path] = {}
        for name, path in files.items():
            linked[name] = links / name
            linked[name].parent.mkdir(parents=True, exist_ok=True)
            (shutil.copyfile if path.suffix == ".jsonl" else link)(
                path, linked[name]
            )  # the logs grow meanwhile
        self._sending = threading.Thread(target=self._send, args=(step, key, linked, links), daemon=True)
        self._sending.start()

    def wait(self) -> None:
        """Return when nothing is being sent."""
        if self._sending:
            self._sending.join()

    def _send(self, step: int, key: str, files: Mapping[str, Path], links: Path) -> None:
        try:
            manifest = SnapshotManifest.of(
                f"{self._root}/{step:08d}-{uuid.uuid4().hex[:8]}", files, KIND, key
            )
            self._store.upload(manifest, files)
            self._store.conclude(manifest, uploaded=True)
            self.forget({manifest.key, *(manifest.key_of(file) for file in manifest.files)})
            logger.info("the checkpoint of step %d is on S3: %s", step, self._store.uri(manifest.prefix))
        except (ToolformerError, OSError) as error:
            logger.warning(
                "the checkpoint of step %d could not be sent to S3, the training continues: %s", step, error
            )
        finally:
            shutil.rmtree(links, ignore_errors=True)

    def restore(self, folder: Path) -> None:
        """Fetch the newest whole snapshot into the training's folder.

        The folder stays as it is if it has a checkpoint that is as new.

        Raises:
            ObjectStoreError: S3 cannot be reached.
        """
        newest_here = max(whole_steps(folder / "checkpoints"), default=-1)
        manifests = [key for key in self._store.list(f"{self._root}/") if key.endswith(f"/{MANIFEST}")]
        for key in sorted(manifests, reverse=True):
            prefix = posixpath.dirname(key)
            step = int(posixpath.basename(prefix).partition("-")[0])
            if newest_here >= step:
                return
            place = folder / "fetched"
            try:
                manifest = SnapshotManifest.from_bytes(prefix, self._store.get(key))
                self._store.download(manifest, place)
            except (CorruptObjectError, ObjectNotFoundError) as error:
                logger.warning("a checkpoint on S3 is not used, since it is not whole: %s", error)
                shutil.rmtree(place, ignore_errors=True)
                continue
            # The checkpoint itself comes last: with it there is something to resume from.
            tops = {file.name.partition("/")[0] for file in manifest.files}
            for source in (
                place / name for name in sorted(tops, key=lambda name: name == f"checkpoint-{step}")
            ):
                target = folder / source.name if source.is_file() else folder / "checkpoints" / source.name
                if target.is_dir():
                    shutil.rmtree(target)
                target.parent.mkdir(parents=True, exist_ok=True)
                source.replace(target)
            shutil.rmtree(place)  # a try before this one may have left files of another snapshot
            logger.info("the training continues from step %d: fetched %s", step, self._store.uri(prefix))
            return

    def forget(self, besides: Collection[str] = ()) -> None:
        """Remove the objects of all snapshots, such as when the training is done, except for these keys."""
        self._store.remove(key for key in self._store.list(f"{self._root}/") if key not in besides)
