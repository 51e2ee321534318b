"""Checkpoints that a kill in mid-write cannot harm, and the weights of the best step.

    checkpoints/checkpoint-400/     as transformers' Trainer writes it: weights, random states, optimiser (not the last one)
    checkpoints/checkpoint-400/whole.json   written last: the checkpoint's files with their sizes, and what it is a checkpoint of
    checkpoints/best-300/           the weights with the lowest development perplexity so far

A checkpoint without `whole.json`, or whose files are not those that it lists, is none and is removed. An older checkpoint goes only
when the next one is whole. transformers loads what `torch.save` wrote with `weights_only=True` alone.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from toolformer_ops.storage.shared_files import replace_file

WHOLE = "whole.json"
WEIGHTS = "*.safetensors"
CONFIGURATION = "*.json"
NOT_WEIGHTS = ("trainer_state.json", WHOLE)


class Checkpoints:
    """The checkpoints of one training in one folder; only one process writes."""

    def __init__(self, folder: Path, key: str) -> None:
        """`key` names what decides the training: a checkpoint of another key is never resumed from."""
        self.folder = folder
        self._key = key

    def path(self, step: int) -> Path:
        """Where Trainer writes the checkpoint of a step."""
        return self.folder / f"checkpoint-{step}"

    @staticmethod
    def newest(folder: Path) -> int | None:
        """The step of the newest whole checkpoint of any training in a folder of checkpoints; None where there is none."""
        whole = (path for path in folder.glob("checkpoint-*") if _mark(path).get("files") == _sizes(path))
        return max((_step(path) for path in whole), default=None)

    def files(self, step: int, best_step: int | None) -> dict[str, Path]:
        """The files of the checkpoint of a step and of the best step's weights, by their names below the folder."""
        folders = [self.path(step), *([self._best(best_step)] if best_step is not None else [])]
        files = (file for folder in folders for file in folder.rglob("*") if file.is_file())
        return {file.relative_to(self.folder).as_posix(): file for file in files}

    @property
    def key(self) -> str:
        """What decides the training."""
        return self._key

    def last_step(self) -> int | None:
        """The step of the newest whole checkpoint; None where there is none."""
        whole = [path for path in self.folder.glob("checkpoint-*") if self._is_whole(path)]
        return max((_step(path) for path in whole), default=None)

    def forget_broken(self) -> None:
        """Remove checkpoints that are not whole, or not of this training."""
        for path in self.folder.glob("checkpoint-*"):
            if not self._is_whole(path):
                shutil.rmtree(path)

    def conclude(self, step: int, best_step: int | None) -> None:
        """Declare the checkpoint of `step` whole, keep the weights of the best step, and remove all others."""
        path = self.path(step)
        if best_step == step:
            best = self._best(step)
            partial = best.with_name(f"{best.name}.partial")
            for stale in (best, partial):
                shutil.rmtree(stale, ignore_errors=True)
            copy_weights(path, partial)
            partial.replace(best)
        replace_file(path / WHOLE, json.dumps({"key": self._key, "files": _sizes(path)}))
        for other in [*self.folder.glob("checkpoint-*"), *self.folder.glob("best-*")]:
            if other not in (path, self._best(best_step)):
                shutil.rmtree(other)

    def weights(self, best_step: int | None) -> Path:
        """The folder with weights and configuration to publish: of the best step, or of the last where none was evaluated."""
        return self._best(best_step) if best_step is not None else self.path(self.last_step() or 0)

    def _best(self, step: int | None) -> Path:
        return self.folder / f"best-{step}"

    def _is_whole(self, path: Path) -> bool:
        return _mark(path) == {"key": self._key, "files": _sizes(path)}


def _step(path: Path) -> int:
    return int(path.name.rpartition("-")[2])


def _mark(path: Path) -> dict[str, Any]:
    """What `whole.json` says; nothing where it is not there or was cut off."""
    try:
        value = json.loads((path / WHOLE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def link(source: Path, target: Path) -> None:
    """Give a file a second name, or copy it where the file system has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def copy_weights(source: Path, target: Path) -> None:
    """Copy weights and configuration of a model folder; the weights as links where the file system has them."""
    target.mkdir(parents=True, exist_ok=True)
    for path in source.glob(WEIGHTS):
        link(path, target / path.name)
    for path in source.glob(CONFIGURATION):
        if path.name not in NOT_WEIGHTS:
            shutil.copyfile(path, target / path.name)


def _sizes(path: Path) -> dict[str, int]:
    files = (file for file in path.rglob("*") if file.is_file() and not file.name.startswith(WHOLE))
    return {str(file.relative_to(path)): file.stat().st_size for file in files}
