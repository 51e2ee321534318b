"""Whether a stage could run here: Postgres, S3, the device, the folders that it writes to. Asks each, and says what is missing.

`toolformer-ops doctor` prints it, on a machine or in a pod (`airflow_tasks/doctor.py` starts one). Writes one object of a few bytes
to S3 and a file to each folder, and removes them.
"""

import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from toolformer_ops.config import Settings
from toolformer_ops.errors import ToolformerError

State = Literal["ok", "missing", "unknown"]


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's."""

    state: State
    """`unknown`: it cannot be seen with the rights that there are; nothing need be wrong."""
    subject: str
    detail: str
    """What is there; or what is missing, with the remedy."""

    def __str__(self) -> str:
        return f"{self.state:8}{self.subject}: {self.detail}"


def findings(settings: Settings) -> Iterator[Finding]:
    """A line for each thing that a stage needs here."""
    yield _postgres(settings)
    yield _object_store(settings)
    yield _device(settings)
    for subject, folder in (
        ("state folder", settings.state_dir),
        ("cache folder", settings.cache_dir or settings.state_dir / "cache"),
    ):
        yield _folder(subject, folder)


def _postgres(settings: Settings) -> Finding:
    from toolformer_ops.storage import database, schema

    try:
        engine = database.connect(settings)
        missing = schema.not_applied(engine)
        engine.dispose()
    except ToolformerError as error:
        return Finding("missing", "Postgres", str(error))
    if missing:
        return Finding(
            "missing",
            "Postgres",
            f"answers, and lacks {len(missing)} files of its tables, the first {missing[0]}. Run `toolformer-ops migrate`.",
        )
    return Finding("ok", "Postgres", "answers, and has this version's tables")


def _object_store(settings: Settings) -> Finding:
    from toolformer_ops.storage.publication import ObjectStore

    key = f"doctor/{uuid.uuid4().hex}"
    try:
        store = ObjectStore(settings)
        store.require_bucket()
        store.put(key, b"doctor", "text/plain")
        found = store.get(key)
        store.delete(key)
    except ToolformerError as error:
        return Finding("missing", "S3", str(error))
    if found != b"doctor":
        return Finding("missing", "S3", f"expected the bytes that were written to {key}, found {found!r:.60}.")
    return Finding("ok", "S3", f"the bucket {settings.s3_bucket} can be read and written")


def _device(settings: Settings) -> Finding:
    if settings.device == "cpu":
        return Finding("ok", "device", "cpu, as set")
    from toolformer_ops.language_model.models.gpus import MAKE_ROOM, cuda_versions, gpus, require_gpu

    try:
        require_gpu(settings.device)
        found = gpus()
    except ToolformerError as error:
        return Finding("missing", "device", str(error))
    described = f"GPU {', '.join(map(str, found))}; {cuda_versions()}"
    if any(gpu.held_by_others for gpu in found):
        return Finding("missing", "device", f"{described}. {MAKE_ROOM}")
    return Finding("ok", "device", described)


def _folder(subject: str, folder: Path) -> Finding:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return Finding(
            "missing", subject, f"expected to write to {folder}, found: {error.strerror}. Mount a volume there."
        )
    return Finding("ok", subject, f"{folder} can be written")
