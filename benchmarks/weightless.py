"""A model without weights, tools with one answer, and a bucket in a folder: what is left is the database's work."""

import contextlib
import math
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from toolformer_ops.config import Settings
from toolformer_ops.records import (
    CallLosses,
    CallPosition,
    LossWithResult,
    PlacedCall,
    SampledContinuation,
    TokenLogProbabilities,
)
from toolformer_ops.runs import models
from toolformer_ops.stages import release
from toolformer_ops.storage.history import history, history_queries
from toolformer_ops.storage.machine.shared_files import file_sha256
from toolformer_ops.storage.objects.publication import Manifest
from toolformer_ops.storage.objects.s3 import ListedFile
from toolformer_ops.tools.base import ToolOutput
from toolformer_ops.tools.registry import BUILT_IN_TOOLS, get_tool

CALLS_PER_DOCUMENT = 4


class FolderObjects:
    """What the history asks of S3, in a folder."""

    folder: Path

    def __init__(self, _: Settings) -> None:
        self.folder.mkdir(exist_ok=True)

    def _path(self, key: str) -> Path:
        return self.folder / key.replace("/", "@")

    def require_bucket(self) -> None:
        """The folder is there."""

    def uri(self, key: str) -> str:
        """As of S3."""
        return f"s3://folder/{key}"

    def key_of(self, uri: str) -> str:
        """The key of an address."""
        return uri.removeprefix("s3://folder/")

    def put(self, key: str, content: bytes, _: str) -> None:
        """Write an object."""
        self._path(key).write_bytes(content)

    def put_if_absent(self, key: str, path: Path) -> bool:
        """Write an object from a file."""
        shutil.copyfile(path, self._path(key))
        return True

    def get(self, key: str) -> bytes:
        """The content of an object."""
        return self._path(key).read_bytes()

    def sha256(self, key: str, copy: Path) -> str:
        """The hash of an object, and a copy of it."""
        shutil.copyfile(self._path(key), copy)
        return file_sha256(copy)

    def delete(self, key: str) -> None:
        """Remove an object."""
        self._path(key).unlink(missing_ok=True)

    def list_objects(self, _: str) -> Iterator[ListedFile]:
        """All objects."""
        for path in self.folder.iterdir():
            yield ListedFile(self.uri(path.name.replace("@", "/")), path.stat().st_size)


@dataclass
class WeightlessModel:
    """Proposes the same call at the last words of a text, and finds every second one useful."""

    tool: str

    def find_positions(self, prompt: object, texts: Sequence[str], **_: Any) -> list[list[CallPosition]]:
        """The last words of each text."""
        starts = [[at for at, character in enumerate(content) if character == " "] for content in texts]
        return [
            [CallPosition(len(of_text) - CALLS_PER_DOCUMENT + n, at, 0.5) for n, at in enumerate(of_text[-CALLS_PER_DOCUMENT:])]
            for of_text in starts
        ]  # fmt: skip

    def tokenize(self, content: str) -> object:
        """A run with chains asks for this; none is measured."""
        raise NotImplementedError

    number_format = "float32"
    read_tokens = 1_000

    def report(self, *_: object) -> None:
        """Nobody reads it."""

    def surely_below(self, bound: float, prune_below: float, keep_rule: str = "paper") -> bool:
        """As a model in float32, without its rounding."""
        return bound < prune_below

    def losses_with_result(
        self, texts: Sequence[tuple[str, Sequence[PlacedCall]]], **_: Any
    ) -> list[list[LossWithResult]]:
        """Losses by which another result says less than the call's own."""
        return [[LossWithResult(2.25) for _ in calls] for _, calls in texts]

    def start_sampling(self, prompt: object, *, samples: int, **_: Any) -> mock.Mock:
        """A sampler that writes the same so many times at each position."""
        call = SampledContinuation("Calendar()" if self.tool == "Calendar" else f"{self.tool}(2 + 3)", True)
        counts: list[int] = []
        return mock.Mock(
            add=lambda _, tokens, __: counts.append(len(tokens)),
            finish=lambda: [[[call] * samples] * count for count in counts],
        )

    def score_texts(
        self, texts: Sequence[tuple[str, Sequence[PlacedCall]]], **_: Any
    ) -> list[list[CallLosses]]:
        """Losses by which a call at an even token is kept."""
        terms = tuple(-math.sqrt(place) / 7 for place in range(1, 16))
        few = TokenLogProbabilities(terms[:5], terms[5:10], terms[10:])
        found = {
            token: CallLosses(2.0, 2.5, 1.75 if token % 2 else 0.5, token_log_probabilities=few)
            for token in (0, 1)
        }
        return [[found[call.token % 2] for call in calls] for _, calls in texts]


@contextlib.contextmanager
def weightless() -> Iterator[None]:
    """Stages load a model, tools with one answer, and a bucket that takes everything and keeps nothing."""
    bucket = mock.Mock(
        publish=lambda prefix, _: Manifest(prefix, ()), key_of=str, uri="s3://nowhere/{}".format
    )
    for question, answer in (("read_manifest", None), ("published", None), ("lacking", [])):
        getattr(bucket, question).return_value = answer
    opened = mock.Mock(spec=["run"], run=lambda inputs: [ToolOutput.of("5")] * len(inputs))
    patches: list[Any] = [
        mock.patch("toolformer_ops.language_model.models.model_identity", return_value="weightless@1"),
        mock.patch.object(release, "ObjectStore", return_value=bucket),
        mock.patch.object(models, "load_run_model", lambda _, run, *__: WeightlessModel(run.tool)),
        mock.patch.object(history, "Objects", FolderObjects),
        mock.patch.object(history_queries, "Objects", FolderObjects),
    ]
    for kind in {type(get_tool(name)) for name in BUILT_IN_TOOLS}:
        patches.append(mock.patch.object(kind, "version", return_value="benchmark"))
        patches.append(mock.patch.object(kind, "open", return_value=opened))
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield
