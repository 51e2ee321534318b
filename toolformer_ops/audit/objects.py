"""Checks of publications and orphans on S3, and of folders that were left on this machine.

Every object of a publication is read whole and hashed: what S3 says of an object proves nothing of its bytes.
A Parquet file is then read row group by row group, and compared with `release_calls`, with the rows that its
calls were taken from (`released_calls.py`), and with the texts' ids. One file at a time is on disk.
"""

import hashlib
import itertools
import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Row

from toolformer_ops.audit.auditing import Auditing, Check, Finding, Kind, Page
from toolformer_ops.audit.released_calls import ComparedCall, compare_calls
from toolformer_ops.errors import CorruptObjectError
from toolformer_ops.records import document_id_of
from toolformer_ops.release.format import ROW_GROUP_TEXTS, ReleasedText, read_file
from toolformer_ops.runs.models import FINETUNING
from toolformer_ops.runs.recipes import id_of_content
from toolformer_ops.stages import finetuning
from toolformer_ops.stages import release as release_stage
from toolformer_ops.storage.machine.temporary_folders import left_in, temporary_folder
from toolformer_ops.storage.objects.publication import MANIFEST, Manifest, ObjectStore, require_registered
from toolformer_ops.storage.postgres import database, queries
from toolformer_ops.tools.retrieval import wiki_index

URLS_SINCE = 3
"""The `release_version` from which on a release's id is a hash of the urls of its texts. Before, it was one of the ids
of variants, which the corpus has."""
RESTORE = "Restore the row from a backup."
TRAINING_RECORD = {
    "training_loss": "training_loss_nats_per_token",
    "best_step": "best_step",
    "development_perplexity": "development_perplexity",
}
"""Columns of `finetuned_models` that the model's own record of its training holds, by their names there."""


@dataclass
class ReleasedContent:
    """What the texts of a release say, read file by file."""

    auditing: Auditing
    row: Row[Any]
    """A row of `dataset_releases`."""
    digest: "hashlib._Hash | None"
    """Digest from which the release's id follows; None if that cannot be computed again."""
    texts: int = 0
    calls: int = 0
    calls_without_rows: int = 0
    """Calls whose rows were deleted, by `forget` or by hand: their results and losses are not provable."""
    wrong_texts: list[Finding] = field(default_factory=list)
    """What the files hold and should not."""
    wrong_calls: list[Finding] = field(default_factory=list)
    """What `release_calls` holds and the files do not, or the other way round."""

    def read(self, path: Path) -> None:
        """Compare the texts of a file with their own ids and with `release_calls`, some texts at a time."""
        all_texts = read_file(path)
        while texts := list(itertools.islice(all_texts, ROW_GROUP_TEXTS)):
            rows = database.fetch_all(
                self.auditing.engine,
                queries.audited_rows.released,
                release_id=self.row.release_id,
                run_id=self.row.run_id,
                document_ids=[text.document_id for text in texts],
            )
            stored_texts = {row.document_id: row for row in rows}
            compared = compare_calls(self.auditing.engine, self.row.definition, texts)
            differing: dict[uuid.UUID, ComparedCall] = {}
            for call in compared:
                self.calls_without_rows += not call.has_rows and call.difference is None
                if call.difference is not None:
                    differing.setdefault(call.document_id, call)
            for text in texts:
                self._compare(text, stored_texts[text.document_id], differing.get(text.document_id))

    def _compare(self, text: ReleasedText, stored: Row[Any], differing: ComparedCall | None) -> None:
        self.texts += 1
        self.calls += len(text.calls)
        place = f"{text.document_id} in {self.row.release_id}"
        tools = sorted({call.tool for call in text.calls})
        gives_text_back = text.gives_text_back(tools, chained=self.row.is_chained)
        if document_id_of(text.plain_text) != text.document_id or not gives_text_back:
            self._add_wrong_text(
                place,
                "expected a text whose hash is its id and that its calls can be taken out of, found another",
            )
        elif not text.has_its_own_columns():
            self._add_wrong_text(
                place, "expected tools and call_spans that follow from the text and its calls, found others"
            )
        if stored.variant_id is not None and text.url != stored.url:
            self._add_wrong_text(
                place, f"expected the url {stored.url!r:.200}, as the run read it, found {text.url!r:.200}"
            )
        if differing is not None:
            what = f"call {differing.call_id}: {differing.difference}"
            self._add_wrong_text(place, what, explained_by=differing.place)
        released = sorted(f"{call.call_id} {call.tool} {call.scoring_recipe_id}" for call in text.calls)
        if released != sorted(stored.calls):
            more = len(stored.calls) - len(released)
            kind: Kind = "lost" if more < 0 else "doubled" if more > 0 else "changed"
            self.add_wrong_calls(kind, place, f"the {len(released)} calls of its files", len(stored.calls))
        if self.digest is not None and self.row.definition["release_version"] >= URLS_SINCE:
            self.digest.update(text.hashed)
        elif self.digest is not None and stored.variant_id is not None:
            self.digest.update(text.document_id.bytes)
            if stored.variant_id != text.document_id:
                self.digest.update(stored.variant_id.bytes)
            self.digest.update(b"".join(uuid.UUID(call.call_id).bytes for call in text.calls))
        else:  # forgotten since, or its corpus is gone
            self.digest = None

    def _add_wrong_text(self, place: str, what: str, *, explained_by: str | None = None) -> None:
        """Add a finding about a text of the files.

        `explained_by` is the place of rows that may be the wrong ones.
        """
        remedy = (
            f"`toolformer-ops audit --run {self.row.run_id} --sample 1000` says whether the rows are right. "
            "If they are, withdraw the release (`toolformer-ops forget --release`) and make it again "
            f"(`toolformer-ops stage release --run {self.row.run_id}`); else restore the rows from a backup."
        )
        unless = None if explained_by is None else {"unless": explained_by}
        self.wrong_texts.append(
            Finding(kind="changed", relation="release", place=place, what=what, remedy=remedy, repair=unless)
        )

    def add_wrong_calls(self, kind: Kind, place: str, expected: str, count: int) -> None:
        """Add a finding: `release_calls` holds other calls than the files."""
        what = f"expected {expected}, found {count} in Postgres"
        self.wrong_calls.append(Finding(kind, "release_calls", place, what, ""))

    def findings(self) -> list[Finding]:
        """What is wrong with the files and with `release_calls`, which only files that are proved are a repair of.

        Files are proved by the release's id, if nothing else speaks against them.
        """
        repair, remedy = None, "Restore the rows from a backup: the release's files are not proved by its id."
        if self.hashed_id == self.row.release_id and not self.wrong_texts:
            repair = {"action": "release_calls", "release_id": self.row.release_id}
            remedy = "Write them again from the release's files (--repair)."
        calls = [replace(finding, remedy=remedy, repair=repair) for finding in self.wrong_calls]
        return [*self.wrong_texts, *calls]

    @property
    def hashed_id(self) -> str | None:
        """The id that follows from the definition, the texts and the calls.

        It is None if it cannot be computed again.
        """
        return None if self.digest is None else self.digest.hexdigest()[:16]


def releases(auditing: Auditing, release_id: str, _: str) -> Page:
    """A release's manifest, the bytes of its objects, its texts and calls against their rows, and its id."""
    row = next(row for row in auditing.subjects.releases if row.release_id == release_id)
    repair = {"action": "release", "release_id": release_id, "run_id": row.run_id}
    remedy = f"Make it again from Postgres: `toolformer-ops stage release --run {row.run_id}` (--repair)."
    digest = None
    if row.definition is not None:
        digest = hashlib.sha256(json.dumps(row.definition, sort_keys=True).encode("ascii"))
    content = ReleasedContent(auditing, row, digest)
    page = Page()
    manifest = _check_objects(
        auditing, row.uri, row.manifest_sha256, remedy, page, repair=repair, read=content.read
    )
    if manifest is None or page.findings:  # they explain what else is missing
        return page
    page.items += content.calls
    registered = database.fetch_one(
        auditing.engine, queries.audited_rows.release_calls, release_id=release_id
    )
    if registered.calls > content.calls and not content.findings():
        content.add_wrong_calls("doubled", release_id, f"{content.calls} calls", registered.calls)
    page.findings += content.findings()
    page.unprovable += content.calls_without_rows
    if (row.documents, row.calls) != (content.texts, content.calls):
        what = f"expected {content.texts} texts and {content.calls} calls, as in its files, found {row.documents} and {row.calls}"
        page.add("changed", "dataset_releases", release_id, what, RESTORE)
    if content.hashed_id is None:
        page.unprovable += 1
    elif content.hashed_id != release_id:
        what = f"expected a definition and texts whose hash is the id, found the hash {content.hashed_id}"
        page.add("changed", "dataset_releases", f"{release_id} definition", what, RESTORE)
    return page


def models(auditing: Auditing, model_id: str, _: str) -> Page:
    """A model's id, its manifest and the bytes of its objects."""
    row = next(row for row in auditing.subjects.models if row.model_id == model_id)
    page = Page(items=1)
    hashed = id_of_content(row.definition)
    if hashed != model_id:
        what = f"expected the definition that the id is the hash of, found one with the hash {hashed}"
        page.add("changed", "finetuned_models", model_id, what, RESTORE)
    remedy = f"Train it again: `toolformer-ops stage finetune --run {row.run_id}`, then `publish` with the same arguments."
    manifest = _check_objects(auditing, row.uri, row.manifest_sha256, remedy, page)
    if manifest is None or page.findings:
        return page
    record = auditing.store.read_file(manifest, FINETUNING)
    if record is None:
        page.unprovable += 1
        return page
    stated = json.loads(record)
    for column, name in TRAINING_RECORD.items():
        if getattr(row, column) != stated[name]:
            what = f"expected {column} {stated[name]}, as the model's {FINETUNING} says, found {getattr(row, column)}"
            page.add("changed", "finetuned_models", f"{model_id} training", what, RESTORE)
    return page


def artifacts(auditing: Auditing, uri: str, _: str) -> Page:
    """A published model or index: its manifest and the bytes of its objects."""
    row = next(row for row in auditing.subjects.artifacts if row.uri == uri)
    page = Page(items=1)
    remedy = "Publish it again from what it was made from (published_artifacts.source)."
    manifest = _check_objects(auditing, uri, row.manifest_sha256, remedy, page)
    stated = None if manifest is None else (manifest.kind, manifest.identity, manifest.size)
    if stated not in (None, registered := (row.kind, row.identity, row.bytes)):
        what = "expected {} {} of {} bytes, as its manifest says, found {} {} of {}".format(
            *stated, *registered
        )
        page.add("changed", "published_artifacts", uri, what, "Publish it again: that writes the row.")
    return page


def _check_objects(
    auditing: Auditing,
    uri: str,
    sha256: str,
    remedy: str,
    page: Page,
    *,
    repair: dict[str, Any] | None = None,
    read: Callable[[Path], None] | None = None,
) -> Manifest | None:
    """Add what is wrong with a publication's manifest and objects.

    Returns the manifest if it is the registered one. `read` takes a copy of each Parquet file, as long as
    nothing is wrong.
    """
    store = auditing.store

    def add(kind: Kind, key: str, what: str) -> None:
        repair_of_key = {**repair, "keys": [key]} if repair else None
        page.add(kind, "object", store.uri(key), what, remedy, repair=repair_of_key)

    # 1. The manifest exists, and the registered one.
    prefix = store.key_of(uri)
    page.items += 1
    try:
        manifest = store.read_manifest(prefix)
        if manifest is not None:
            require_registered(manifest, sha256)
    except CorruptObjectError as error:
        add("changed", f"{prefix}/{MANIFEST}", str(error))
        return None
    if manifest is None:
        add("lost", f"{prefix}/{MANIFEST}", "expected a manifest, found none")
        return None
    # 2. Every object has the bytes that it names.
    with temporary_folder(auditing.settings.state_dir, "audit") as folder:
        for file in manifest.files:
            page.items += 1
            copy = folder / "object" if read and file.name.endswith(".parquet") else None
            if content := store.found_instead(manifest, file, copy):
                what = f"expected {file.size} bytes with the hash {file.sha256}, found {content}"
                add("lost" if content == "nothing" else "changed", manifest.key_of(file), what)
            elif read and copy and not page.findings:
                read(copy)
    return manifest


def orphaned_objects(auditing: Auditing, _: str, __: str) -> Page:
    """Objects in the folders of publications that no manifest names, left by killed or repeated ones."""
    subjects, store = auditing.subjects, auditing.store
    page = Page()
    rows = (*subjects.releases, *subjects.models, *subjects.artifacts)
    withdrawn = {store.key_of(row.uri) for row in (*subjects.releases, *subjects.models) if row.is_withdrawn}
    named = {store.key_of(row.uri): row.manifest_sha256 for row in rows}
    tops = sorted(
        {
            f"{release_stage.PREFIX}/",
            f"{finetuning.PREFIX}/",
            f"{wiki_index.PREFIX.split('/')[0]}/",
            *(f"{prefix.split('/')[0]}/" for prefix in named),
        }
    )

    def publication_of(key: str) -> str:
        parts = key.split("/")
        prefixes = ("/".join(parts[:count]) for count in range(len(parts) - 1, 0, -1))
        return next((prefix for prefix in prefixes if prefix in named), "/".join(parts[:2]))

    for top in tops:
        keyed = ((store.key_of(file.uri), file.modified) for file in store.list_objects(top))  # sorted by key
        for prefix, listed in itertools.groupby(keyed, key=lambda file: publication_of(file[0])):
            files = list(listed)
            page.items += len(files)
            too_new = datetime.now(UTC) - auditing.orphans_after
            if any(modified is None or modified > too_new for _, modified in files):
                page.unprovable += 1
                continue
            registered = None if prefix in withdrawn else named.get(prefix)
            _add_orphans(page, auditing.store, prefix, [key for key, _ in files], registered)
    return page


def _add_orphans(
    page: Page, store: ObjectStore, prefix: str, keys: Sequence[str], registered: str | None
) -> None:
    """Add the objects of one publication's folder that it does not name, folder by folder."""
    draft, manifest_key = f"{prefix}/{finetuning.DRAFT}", f"{prefix}/{MANIFEST}"
    unread = "Nothing reads them: delete them (--repair)."
    if registered is None:
        what = f"expected a row in Postgres for what is published here, found none; {len(keys)} objects"
        repair: dict[str, Any] | None = None
        if draft in keys:
            remedy = "A trained model waits here: publish it (`toolformer-ops stage publish --run RUN`), or delete it by hand."
        elif manifest_key in keys:
            artifact = _artifact(store, prefix)
            if artifact is not None:
                what = f"expected a row for the {artifact.kind} {artifact.identity} that is published here, found none"
                remedy = "Publish it again, which writes the row; or delete it by hand."
                page.add("lost", "published_artifacts", store.uri(prefix), what, remedy)
                return
            remedy = "It was published: restore its row from a backup, or delete it by hand."
        else:
            remedy, repair = unread, {"action": "delete_objects", "prefix": prefix, "keys": list(keys[:50])}
        page.add("orphaned", "object", store.uri(prefix), what, remedy, repair=repair)
        return
    try:
        manifest = store.read_manifest(prefix)
    except CorruptObjectError:
        return
    if (
        manifest is None or manifest.sha256 != registered
    ):  # found by its own check; which objects it has is not known
        return
    named = {manifest.key, *(manifest.key_of(file) for file in manifest.files)}
    extra = sorted(key for key in keys if key not in named)
    for folder, inside in itertools.groupby(extra, key=lambda key: key.rpartition("/")[0]):
        group = list(inside)
        place = folder if folder not in (prefix, manifest.folder) and len(group) > 1 else group[0]
        what = f"expected nothing that the manifest does not name, found {len(group)} objects, such as {group[0]}"
        repair = {"action": "delete_objects", "prefix": "", "keys": group}
        page.add("orphaned", "object", store.uri(place), what, unread, repair=repair)


def _artifact(store: ObjectStore, prefix: str) -> Manifest | None:
    """The manifest of a published model or index.

    It is None if there is none, or one of a release or a finetuned model.
    """
    try:
        manifest = store.read_manifest(prefix)
    except CorruptObjectError:
        return None
    return manifest if manifest is not None and manifest.kind else None


def left_folders(auditing: Auditing, _: str, __: str) -> Page:
    """Temporary folders of killed processes in the state folder, and folders of trainings whose model is published."""
    state = auditing.settings.state_dir
    page = Page()
    published = {row.model_id for row in auditing.subjects.models}
    folders = left_in(state)
    folders += [path for path in (state / "finetuning").glob("*") if path.name in published]
    before = datetime.now(UTC) - auditing.orphans_after
    for path in sorted(path for path in folders if path.is_dir()):
        page.items += 1
        if datetime.fromtimestamp(path.stat().st_mtime, UTC) <= before:
            what = "expected no folder of a process that has ended, found one"
            repair = {"action": "delete_folder", "path": str(path)}
            page.add("orphaned", "folder", str(path), what, "Delete it (--repair).", repair=repair)
    return page


OBJECT_CHECKS = (
    Check(
        "releases",
        lambda auditing: [row.release_id for row in auditing.subjects.releases if not row.is_withdrawn],
        releases,
    ),
    Check(
        "models",
        lambda auditing: [row.model_id for row in auditing.subjects.models if not row.is_withdrawn],
        models,
    ),
    Check("artifacts", lambda auditing: [row.uri for row in auditing.subjects.artifacts], artifacts),
    Check(
        "orphaned objects",
        lambda auditing: [""] if auditing.subjects.scope == "all" else [],
        orphaned_objects,
    ),
    Check("left folders", lambda auditing: [""] if auditing.subjects.scope == "all" else [], left_folders),
)
