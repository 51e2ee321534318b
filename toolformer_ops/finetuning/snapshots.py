"""Checkpoints of a training on S3, for machines whose disk ends with them: pods that are evicted, nodes that go.

    checkpoints/<training>/00000400-9f3c2a71/manifest.json    a snapshot, written last: the checkpoint of a step, the best step's
                                                              weights, the logs
    checkpoints/<training>/files/<sha256>                     their files, named by content: what did not change is not sent again

A snapshot is sent by a thread while the training continues, from links to the checkpoint's files, so that the next checkpoint may
replace them meanwhile. Once it is whole, all others go. A snapshot without a manifest, or whose files are not all there with their
hashes, is never used. Where S3 fails the training continues, and the next checkpoint is sent.
"""

import logging
import posixpath
import shutil
import threading
import uuid
from collections.abc import Mapping
from pathlib import Path

from toolformer_ops.config import Settings
from toolformer_ops.errors import CorruptObjectError, ObjectNotFoundError, ToolformerError
from toolformer_ops.finetuning.checkpoints import link
from toolformer_ops.storage.publication import CHECKPOINTS, MANIFEST, Manifest, ObjectStore, PublishedFile

logger = logging.getLogger(__name__)

KIND = "checkpoint"


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
        """Send the state after a step, in the background; not where the state before is still being sent.

        `key` names what decides the training; `files` are paths by name; `links` is a folder for links to them.
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
            (shutil.copyfile if path.suffix == ".jsonl" else link)(path, linked[name])  # the logs grow meanwhile
        self._sending = threading.Thread(target=self._send, args=(step, key, linked, links), daemon=True)
        self._sending.start()

    def wait(self) -> None:
        """Return when nothing is being sent."""
        if self._sending:
            self._sending.join()

    def _send(self, step: int, key: str, files: Mapping[str, Path], links: Path) -> None:
        try:
            manifest = SnapshotManifest.of(f"{self._root}/{step:08d}-{uuid.uuid4().hex[:8]}", files, KIND, key)
            self._store.upload(manifest, files)
            self._store.conclude(manifest, read=False)
            kept = {manifest.key, *(manifest.key_of(file) for file in manifest.files)}
            self._remove(besides=kept)
            logger.info("the checkpoint of step %d is on S3: %s", step, self._store.uri(manifest.prefix))
        except (ToolformerError, OSError) as error:
            logger.warning("the checkpoint of step %d could not be sent to S3, the training continues: %s", step, error)
        finally:
            shutil.rmtree(links, ignore_errors=True)

    def restore(self, folder: Path, newest_here: int | None) -> None:
        """Fetch the newest whole snapshot into the training's folder, unless the folder has a checkpoint that is as new.

        `newest_here`: the step of that checkpoint, None where there is none.

        Raises:
            ObjectStoreError: S3 cannot be reached.
        """
        manifests = [key for key in self._store.list(f"{self._root}/") if key.endswith(f"/{MANIFEST}")]
        for key in sorted(manifests, reverse=True):
            prefix = posixpath.dirname(key)
            step = int(posixpath.basename(prefix).partition("-")[0])
            if newest_here is not None and newest_here >= step:
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
            for source in sorted(place.iterdir(), key=lambda path: path.name == f"checkpoint-{step}"):
                target = folder / source.name if source.is_file() else folder / "checkpoints" / source.name
                if target.is_dir():
                    shutil.rmtree(target)
                target.parent.mkdir(parents=True, exist_ok=True)
                source.replace(target)
            place.rmdir()
            logger.info("the training continues from step %d: fetched %s", step, self._store.uri(prefix))
            return

    def forget(self) -> None:
        """Remove all snapshots: the training is done."""
        self._remove(besides=set())

    def _remove(self, besides: set[str]) -> None:
        keys = [key for key in self._store.list(f"{self._root}/") if key not in besides]
        # Manifests first: what they name is no snapshot any more.
        for key in sorted(keys, key=lambda key: not key.endswith(f"/{MANIFEST}")):
            self._store.delete(key)
