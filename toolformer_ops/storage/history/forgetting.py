"""Forget texts: delete them and every row derived from them.

The releases and models that hold them are withdrawn from S3. Owns `forgotten_documents` and
`forgotten_inputs`, and the columns `withdrawn_at`. A text is marked first, so that no ingestion takes it
again, and then deleted in batches, each one transaction: forgetting may be killed and run again. The rows of
a release (hashes of texts and calls) stay as the record of where a text is. docs/corpora.md says what is
not deleted: write-ahead log, backups, older versions of S3 objects, logs, and the corpus's own files. Does
not change the stored numbers of finished runs; what the texts had of them is kept in `forgotten_numbers`,
which it owns, for later runs whose numbers follow from theirs.
"""

import json
import logging
import shutil
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import Connection, Engine, Row

from toolformer_ops.config import Settings
from toolformer_ops.errors import UsageError
from toolformer_ops.storage.corpora.addresses import corpus_id_of
from toolformer_ops.storage.history import history
from toolformer_ops.storage.machine.temporary_folders import left_in, remove_left
from toolformer_ops.storage.objects.publication import CHECKPOINTS, ObjectStore
from toolformer_ops.storage.postgres import database, queries
from toolformer_ops.storage.postgres.in_use import take_results, take_texts

logger = logging.getLogger(__name__)

TEXTS_PER_TRANSACTION = 500
QUOTED_CHARACTERS = 24
"""What was found in a refused record quotes a text where so many characters in a row are the same."""

TRAININGS = "finetuning"
"""The folder in the state folder where each training that has not ended has a folder, named after its
model."""

Kind = Literal["release", "model"]


@dataclass(frozen=True)
class Source:
    """A file from which texts were ingested."""

    uri: str
    texts: int
    line: int | None
    """The line of one of them, from 1."""


@dataclass(frozen=True)
class Place:
    """A release or a model that holds forgotten texts."""

    kind: Kind
    publication_id: str
    uri: str
    run_id: str
    """The run that made it first."""
    withdrawn: bool
    """Whether its files were deleted from S3."""


@dataclass(frozen=True)
class OtherTexts:
    """A record with texts, of other versions of it, that are not forgotten with this one."""

    corpus: str
    """The corpus's address."""
    record_id: str
    texts: int


@dataclass
class Forgotten:
    """What was forgotten, or with a dry run would be."""

    texts: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    """Rows by table: deleted, or (quality_results, rejected_documents) rid of what they quoted."""
    sources: list[Source] = field(default_factory=list)
    """Where the texts came from: these files still hold them."""
    other_texts: list[OtherTexts] = field(default_factory=list)
    """Other texts of the same records; `record_ids` forgets them."""
    trainings: list[Path] = field(default_factory=list)
    """Folders of this machine, deleted, of trainings that did not end, with a release that holds one of the
    texts."""
    left_folders: list[Path] = field(default_factory=list)
    """Temporary folders of this machine, deleted, of processes that were killed: they may hold a text."""
    places: list[Place] = field(default_factory=list)
    history_files: int = 0
    """Files of the history that were written anew without the texts."""


def forget(
    settings: Settings,
    document_ids: Sequence[uuid.UUID] = (),
    corpus: str = "",
    *,
    record_ids: Sequence[str] = (),
    reason: str = "",
    dry_run: bool = False,
    texts_per_transaction: int = TEXTS_PER_TRANSACTION,
) -> Forgotten:
    """Forget these documents, what this corpus alone holds, or texts of these records of the corpus.

    Of the records they are all texts that they ever had. Returns what that was and where S3 still holds it.
    What an interrupted call left undone is done as well. Without documents and corpus that is all, and the
    places are those of every text that was ever forgotten.

    Raises:
        UsageError: a document, the corpus or a record is not there, or an unfinished run uses one of the
        texts, or was started over the corpus meanwhile.
        ObjectStoreError: the rows are deleted, and files of the history still hold the texts; the next call
        continues.
    """
    engine = database.connect(settings)
    corpus_id = corpus_id_of(corpus) if corpus and not record_ids else None
    with database.transaction(engine) as connection:
        # 1. Which texts, where they came from and in which releases they are.
        forgotten = _find(connection, document_ids, corpus, record_ids)
        forgotten.trainings = _trainings(settings, [place.publication_id for place in forgotten.places])
        if dry_run:
            forgotten.left_folders = left_in(settings.state_dir)
            _count(forgotten, database.fetch_all(connection, queries.forgetting.count))
            forgotten.rows["rejected_documents"] += len(_quoting_rejections(connection, except_of=corpus_id))
            if corpus_id:
                _count(
                    forgotten,
                    database.fetch_all(
                        connection, queries.forgetting.count_rest_of_corpus, corpus_id=corpus_id
                    ),
                )
            return forgotten
        # 2. No run may be at work on them. Mark them.
        _require_no_run(connection, corpus_id)
        if corpus_id or document_ids or record_ids:
            database.execute(connection, queries.forgetting.mark, reason=reason)
        if corpus_id:
            forgotten.rows["rejected_documents"] += database.execute(
                connection, queries.forgetting.rejections_of_corpus, corpus_id=corpus_id
            )
    for folder in forgotten.trainings:
        shutil.rmtree(folder, ignore_errors=True)
    # 3. Delete, in batches, while nothing is written into the history.
    with history.writing(engine):
        _delete(engine, forgotten, corpus_id, texts_per_transaction)
        forgotten.left_folders = remove_left(settings.state_dir)
        # 4. The files of the history that hold the texts are written anew without them.
        forgotten.history_files = history.take_out_forgotten(settings, engine)
    return forgotten


def _delete(engine: Engine, forgotten: Forgotten, corpus_id: str | None, texts_per_transaction: int) -> None:
    """Delete the texts that are marked, and what no text owns alone.

    What quotes a text is looked for while the text exists.
    """
    while True:
        with database.transaction(engine) as connection:
            take_texts(connection)
            database.execute(connection, queries.forgetting.texts_table)
            if not database.execute(
                connection, queries.forgetting.interrupted_texts, texts=texts_per_transaction
            ):
                break
            database.execute(connection, queries.forgetting.add_variants)
            for rejection in _quoting_rejections(connection):
                forgotten.rows["rejected_documents"] += database.execute(
                    connection, queries.forgetting.rejection, **rejection
                )
            for base in database.fetch_all(
                connection, queries.forgetting.bases, forgotten_corpus_id=corpus_id or ""
            ):
                subtract = queries.forgetting[f"subtract_{base.kind}"]
                database.execute(connection, subtract, **base._asdict())
            named = database.fetch_all(connection, queries.forgetting.release_texts)
            _count(forgotten, [*database.fetch_all(connection, queries.forgetting.delete), *named])
            database.execute(connection, queries.forgetting.mark_removed)
        logger.info(
            "forgotten so far: %s",
            ", ".join(f"{rows} {table}" for table, rows in forgotten.rows.items() if rows),
        )
    with database.transaction(engine) as connection:
        take_results(connection)
        _count(forgotten, database.fetch_all(connection, queries.forgetting.results))
    if corpus_id:
        with database.transaction(engine) as connection:
            database.execute(connection, queries.forgetting.texts_table)
            _require_no_run(connection, corpus_id)
            _count(
                forgotten, database.fetch_all(connection, queries.forgetting.memberships, corpus_id=corpus_id)
            )


def _require_no_run(connection: Connection, corpus_id: str | None) -> None:
    """Refuse to forget the texts of texts_to_forget, or the corpus, while a run uses them.

    No run is registered until the transaction ends.

    Raises:
        UsageError: names the runs.
    """
    take_texts(connection)
    runs = database.fetch_all(
        connection, queries.forgetting.runs_of_texts, corpus_id=corpus_id or "", run_id=""
    )
    if runs:
        raise UsageError(
            "expected texts that no unfinished run uses, found "
            f"{', '.join(row.run_id for row in runs)}. Wait for its end; a run that was given up ends "
            "by `toolformer-ops stage finish-run --run RUN --state failed`."
        )


def withdraw(settings: Settings, kind: Kind, publication_id: str, *, dry_run: bool = False) -> list[str]:
    """Delete a release's or model's files from S3 and mark its row; returns the keys of the files.

    Doing it twice is doing it once.

    Raises:
        UsageError: there is no such release or model, or an unfinished run works with it.
        ObjectStoreError, DatabaseError: what is left is deleted by the next call.
    """
    engine = database.connect(settings)
    store = ObjectStore(settings)
    store.require_bucket()
    rows = database.fetch_all(
        engine, queries.forgetting.publication, kind=kind, publication_id=publication_id
    )
    if not rows:
        table = "dataset_releases" if kind == "release" else "finetuned_models"
        raise UsageError(
            f"--{kind}: expected the id of a {kind}, found {publication_id!r}. The table {table} lists them."
        )
    [row] = rows
    if row.running and not dry_run:
        raise UsageError(
            f"{kind} {publication_id}: expected no unfinished run to use it, found {', '.join(row.running)}."
        )
    prefix = store.key_of(row.uri)
    keys = list(store.list(f"{prefix}/"))
    keys += store.list(
        f"{CHECKPOINTS}/{publication_id}/"
    )  # of a later training of the same model that was interrupted
    if not dry_run:
        store.remove(keys)
        for folder in _trainings(settings, [publication_id]):
            shutil.rmtree(folder, ignore_errors=True)
        database.execute(engine, queries.forgetting[f"withdraw_{kind}"], publication_id=publication_id)
        logger.info("withdrew %s %s: %d files deleted below %s", kind, publication_id, len(keys), row.uri)
    return keys


def training_release(release_id: str) -> str:
    """The folder, in that of a training, with the training's copy of the release."""
    return f"release-{release_id}"


def _trainings(settings: Settings, publication_ids: Sequence[str]) -> list[Path]:
    """Folders of this machine of trainings that did not end, of these models or on these releases."""
    folder = settings.state_dir / TRAININGS
    folders: set[Path] = set()
    for name in publication_ids:
        folders.update(path.parent for path in folder.glob(f"*/{training_release(name)}"))
    return sorted(folders | {folder / name for name in publication_ids if (folder / name).is_dir()})


def _find(
    connection: Connection, document_ids: Sequence[uuid.UUID], corpus: str, record_ids: Sequence[str]
) -> Forgotten:
    """Write the texts into the temporary table texts_to_forget.

    Returns them with their sources and places, without rows.
    """
    database.execute(connection, queries.forgetting.texts_table)
    if corpus:
        corpus_id = corpus_id_of(corpus)
        if not database.fetch_all(connection, queries.corpora.by_id, corpus_id=corpus_id):
            raise UsageError(
                f"--corpus: expected an ingested corpus, found {corpus}. The table corpora lists them."
            )
        if record_ids:
            rows = database.fetch_all(
                connection,
                queries.forgetting.texts_of_records,
                corpus_id=corpus_id,
                record_ids=list(record_ids),
            )
            if lacking := sorted({*record_ids} - {row.record_id for row in rows}):
                raise UsageError(
                    f"--record: expected ids of records of {corpus} (the column corpus_documents.record_id), "
                    f"found {', '.join(map(repr, lacking))}."
                )
        else:
            database.execute(connection, queries.forgetting.texts_of_corpus, corpus_id=corpus_id)
    elif document_ids:
        database.execute(connection, queries.forgetting.named_texts, document_ids=list(document_ids))
    else:
        database.execute(connection, queries.forgetting.all_forgotten_texts)
    database.execute(connection, queries.forgetting.add_variants)
    at_hand = database.fetch_one(
        connection, queries.forgetting.texts_at_hand, document_ids=list(document_ids)
    )
    if at_hand.missing:
        missing = ", ".join(map(str, at_hand.missing))
        raise UsageError(
            f"--document: expected ids of texts (the column documents.document_id), found {missing}."
        )
    # The releases that hold one of the texts, each followed by the models that were trained on it.
    releases = database.fetch_all(connection, queries.forgetting.releases)
    ids = [release.release_id for release in releases]
    models = database.fetch_all(connection, queries.forgetting.models, release_ids=ids)
    places: list[Place] = []
    for release in releases:
        places.append(_place("release", release.release_id, release))
        places += [
            _place("model", model.model_id, model)
            for model in models
            if model.release_id == release.release_id
        ]
    return Forgotten(
        texts=at_hand.texts,
        sources=[
            Source(uri=row.file_uri, texts=row.texts, line=row.line)
            for row in database.fetch_all(connection, queries.forgetting.sources)
        ],
        other_texts=[
            OtherTexts(corpus=row.uri, record_id=row.record_id, texts=row.texts)
            for row in database.fetch_all(connection, queries.forgetting.same_records)
        ]
        if document_ids
        else [],
        places=places,
    )


def _count(forgotten: Forgotten, rows: Sequence[Row[Any]]) -> None:
    forgotten.rows.update({row.table_name: row.rows for row in rows})


def _place(kind: Kind, name: str, row: Row[Any]) -> Place:
    return Place(
        kind=kind, publication_id=name, uri=row.uri, run_id=row.run_id, withdrawn=row.withdrawn_at is not None
    )


def _quoting_rejections(connection: Connection, except_of: str | None = None) -> list[dict[str, Any]]:
    """Keys of the refused records, in the corpora of the texts at hand, that quote one of the texts.

    Those of the corpus `except_of` are left out.
    """
    statement = queries.forgetting.rejections_of_corpora
    quoting: dict[str, list[Row[Any]]] = {}
    for row in database.fetch_all(connection, statement, characters=QUOTED_CHARACTERS):
        if row.corpus_id != except_of:
            for start in range(len(row.detail) - QUOTED_CHARACTERS + 1):
                quoting.setdefault(row.detail[start : start + QUOTED_CHARACTERS], []).append(row)
    if not quoting:
        return []
    rejections: dict[tuple[str, str, int], Row[Any]] = {}
    for [text] in database.fetch_all(connection, queries.forgetting.texts_of_batch):
        # As a refused line is quoted (storage/corpora/records.py): the bytes of JSON, with and without
        # escapes.
        written = (text, repr(json.dumps(text).encode()), repr(json.dumps(text, ensure_ascii=False).encode()))
        for form in written:
            for start in range(len(form) - QUOTED_CHARACTERS + 1):
                for row in quoting.get(form[start : start + QUOTED_CHARACTERS], ()):
                    rejections[row.corpus_id, row.file_uri, row.line] = row
    return [
        {"corpus_id": corpus_id, "file_uri": file_uri, "line": line}
        for corpus_id, file_uri, line in rejections
    ]
