"""Whether a stage could run here: Postgres, S3, the device, the folders that it writes to.

Asks each, and says what is missing.

`toolformer-ops doctor` prints it, on a machine or in a pod (`airflow_tasks/kubernetes/doctor.py` starts one).
Writes one object of a few bytes to S3 and a file to each folder, and removes them.
"""

import math
import tempfile
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from toolformer_ops.config import Settings
from toolformer_ops.errors import ConfigurationError, ToolformerError, UnseenError

SESSIONS_AT_ONCE = 20
"""Stages, pages and people that ask Postgres at the same time."""
BYTES_PER_BUFFER_BYTE = 32
"""A database may be so many times as large as shared_buffers: the upper levels of its indexes and a night's
rows fit."""
BUFFERS_OF_MEMORY = 8
"""Postgres' buffers need not be more than this part of its machine's memory, the rest of which caches its
files, too."""
GIB = 2**30

State = Literal["ok", "missing", "unknown"]


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's."""

    state: State
    """`unknown`: it cannot be seen with the present rights; nothing need be wrong."""
    subject: str
    detail: str
    """What exists; or what is missing, with the remedy."""

    def __str__(self) -> str:
        return f"{self.state:8}{self.subject}: {self.detail}"


def looked(subject: str, look: Callable[[], str]) -> Finding:
    """What a look shows: it returns what exists, and raises what is missing, with the remedy."""
    try:
        return Finding("ok", subject, look())
    except UnseenError as error:
        return Finding("unknown", subject, str(error))
    except ToolformerError as error:
        return Finding("missing", subject, str(error))


def findings(settings: Settings) -> Iterator[Finding]:
    """A line for each thing that a stage needs here."""
    yield looked("Postgres", partial(_postgres, settings))
    yield looked("Postgres locks", partial(_locks, settings))
    yield looked("Postgres memory", partial(_memory, settings))
    yield looked("S3", partial(_object_store, settings))
    yield looked("device", partial(device, settings))
    yield looked("state folder", partial(_folder, settings.state_dir))
    yield looked("cache folder", partial(_folder, settings.cache_dir or settings.state_dir / "cache"))


def _postgres(settings: Settings) -> str:
    from toolformer_ops.storage.postgres import database, dependent_views, schema

    engine = database.connect(settings)
    missing = schema.not_applied(engine)
    lost = [] if missing else dependent_views.lost_views(engine)
    engine.dispose()
    if missing:
        raise ConfigurationError(
            f"answers, and lacks {len(missing)} files of its tables, the first {missing[0]}. Run "
            "`toolformer-ops migrate`."
        )
    waiting = f"; views of people that wait in lost_views: {', '.join(lost)}" if lost else ""
    return f"answers, and has this version's tables{waiting}"


def _locks(settings: Settings) -> str:
    """Whether several sessions can ask views at once: each then locks every partition with its indexes."""
    from toolformer_ops.storage.postgres import database, partitions, queries

    engine = database.connect(settings)
    seen = database.fetch_one(engine, queries.schema.lock_room, tables=list(partitions.PARTITIONED_TABLES))
    engine.dispose()
    sessions = seen.slots // max(1, seen.locks_of_a_question)
    described = f"{seen.slots:,} locks; a question to the views takes up to {seen.locks_of_a_question:,}"
    if sessions < SESSIONS_AT_ONCE:
        wanted = math.ceil(SESSIONS_AT_ONCE * seen.locks_of_a_question / seen.connections)
        raise ConfigurationError(
            f"{described}, so that {sessions} sessions that ask at once fill them (out of shared memory). "
            f"Set max_locks_per_transaction to {wanted:,} or more in postgresql.conf and restart Postgres, "
            "or drop old recipes with `toolformer-ops retention`."
        )
    return described


def _memory(settings: Settings) -> str:
    """Whether Postgres' buffers are of the size of the database, and its sessions of that of its machine, if that is this one."""
    import psutil

    from toolformer_ops.storage.postgres import database, queries

    engine = database.connect(settings)
    seen = database.fetch_one(engine, queries.schema.memory)
    engine.dispose()
    memory = psutil.virtual_memory().total if seen.is_here else None
    described = (
        f"{seen.shared_buffers / GIB:.2f} GiB of shared_buffers for {seen.database_bytes / GIB:.2f} GiB of "
        f"data; {seen.work_mem / 2**20:.0f} MiB of work_mem for each sort of {seen.connections} sessions"
    )
    buffers = seen.database_bytes / BYTES_PER_BUFFER_BYTE
    if memory is not None:
        buffers = min(buffers, memory / BUFFERS_OF_MEMORY)
    if seen.shared_buffers < buffers:
        raise ConfigurationError(
            f"{described}. Set shared_buffers to {math.ceil(buffers / 2**20):,}MB or more in postgresql.conf "
            "and restart Postgres."
        )
    if memory is not None and seen.work_mem * seen.connections > memory / 2:
        raise ConfigurationError(
            f"{described}: together more than half of this machine's {memory / GIB:.1f} GiB. Set work_mem to "
            f"{math.floor(memory / 2 / seen.connections / 2**20):,}MB or less, or max_connections to fewer."
        )
    return described


def _object_store(settings: Settings) -> str:
    from toolformer_ops.storage.objects.publication import ObjectStore

    key = f"doctor/{uuid.uuid4().hex}"
    store = ObjectStore(settings)
    store.require_bucket()
    store.put(key, b"doctor", "text/plain")
    content = store.get(key)
    store.delete(key)
    if content != b"doctor":
        raise ConfigurationError(f"expected the bytes that were written to {key}, found {content!r:.60}.")
    return f"the bucket {settings.s3_bucket} can be read and written"


def device(settings: Settings) -> str:
    """The GPUs, with their memory and the versions of CUDA.

    Raises:
        ToolformerError: there is none, or other processes hold some of its memory.
    """
    if settings.device == "cpu":
        return "cpu, as set"
    from toolformer_ops.language_model.devices import MAKE_ROOM, cuda_versions, gpus, require_gpu

    require_gpu(settings.device)
    cards = gpus()
    described = f"GPU {', '.join(map(str, cards))}; {cuda_versions()}"
    if any(gpu.held_by_others for gpu in cards):
        raise ConfigurationError(f"{described}. {MAKE_ROOM}")
    return described


def _folder(folder: Path) -> str:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigurationError(
            f"expected to write to {folder}, found: {error.strerror}. Mount a volume there."
        ) from error
    return f"{folder} can be written"
