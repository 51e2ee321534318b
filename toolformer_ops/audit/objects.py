"""Checks of what was published on S3, of what nothing names there, and of folders that were left on this machine.

Every object of a publication is read whole and hashed: what S3 says of an object proves nothing of its bytes. A Parquet file is
then read row group by row group, and compared with `release_calls` and with the texts' ids. One file at a time is on disk.
"""

import hashlib
import itertools
import json
import shutil
import tempfile
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Row

from toolformer_ops.audit.auditing import Auditing, Check, Finding, Kind, Page
from toolformer_ops.errors import CorruptObjectError
from toolformer_ops.records import document_id_of
from toolformer_ops.release.format import ROW_GROUP_TEXTS, ReleasedText, read_file
from toolformer_ops.runs.recipes import id_of_content
from toolformer_ops.stages import finetuning
from toolformer_ops.stages import release as release_stage
from toolformer_ops.storage import database, queries
from toolformer_ops.storage.publication import MANIFEST, Manifest, require_registered

LEFT_FOLDERS = ("release-", "check-release-", "audit-")
"""Beginnings of the names of temporary folders in the state folder."""


@dataclass
class Content:
    """What the texts of a release say, read file by file."""

    texts: int = 0
    calls: int = 0
    findings: list[Finding] = field(default_factory=list)
    digest: "hashlib._Hash | None" = None
    """Of the release's id; None if that cannot be computed again."""


def releases(auditing: Auditing, release_id: str, _: str) -> Page:
    """A release's manifest, the bytes of its objects, its texts and calls, and its id."""
    row = next(row for row in auditing.subjects.releases if row.release_id == release_id)
    repair = {"action": "release", "release_id": release_id, "run_id": row.run_id}
    remedy = f"Make it again from Postgres: `toolformer-ops stage release --run {row.run_id}` (--repair)."
    page = Page()
    content = Content()
    if row.definition is not None:
        content.digest = hashlib.sha256(json.dumps(row.definition, sort_keys=True).encode("ascii"))

    def compare(path: Path) -> None:
        texts = read_file(path)
        while some := list(itertools.islice(texts, ROW_GROUP_TEXTS)):
            _compare_texts(auditing, row, some, content)

    manifest = _check_objects(auditing, row.uri, row.manifest_sha256, remedy, page, repair=repair, read=compare)
    if manifest is None or page.findings:  # they explain what else is missing
        return page
    page.findings += content.findings
    page.items += content.calls
    with database.transaction(auditing.engine) as connection:
        [registered] = database.fetch_all(connection, queries.audited_rows.release_calls, release_id=release_id)
    if registered.calls > content.calls and not content.findings:
        page.findings.append(_wrong_calls(row, release_id, "doubled", f"{content.calls} calls", registered.calls))
    if (row.documents, row.calls) != (content.texts, content.calls):
        what = f"expected {content.texts} texts and {content.calls} calls, as in its files, found {row.documents} and {row.calls}"
        page.findings.append(_wrong_row("dataset_releases", release_id, what))
    if content.digest is None:
        page.unprovable += 1
    elif (hashed := content.digest.hexdigest()[:16]) != release_id:
        what = f"expected a definition and texts whose hash is the id, found the hash {hashed}"
        page.findings.append(_wrong_row("dataset_releases", f"{release_id} definition", what))
    return page


def _wrong_row(table: str, place: str, what: str) -> Finding:
    return Finding("changed", table, place, what, "Restore the row from a backup.")


def _compare_texts(auditing: Auditing, row: Row[Any], texts: Sequence[ReleasedText], content: Content) -> None:
    """Compare some texts of a release with their own ids and with `release_calls`."""
    with database.transaction(auditing.engine) as connection:
        rows = database.fetch_all(
            connection,
            queries.audited_rows.released,
            release_id=row.release_id,
            run_id=row.run_id,
            document_ids=[text.document_id for text in texts],
        )
    known = {found.document_id: found for found in rows}
    for text in texts:
        content.texts += 1
        content.calls += len(text.calls)
        found = known[text.document_id]
        place = f"{text.document_id} in {row.release_id}"
        tools = sorted({call.tool for call in text.calls})
        gives_text_back = text.gives_text_back(tools, chained=row.is_chained)
        if document_id_of(text.plain_text) != text.document_id or not gives_text_back:
            what = "expected a text whose hash is its id and that its calls can be taken out of, found another"
            remedy = "The release was wrong when it was made: withdraw it (`toolformer-ops forget --release`)."
            content.findings.append(Finding("changed", "release", place, what, remedy))
        if found.variant_id is not None and text.url != found.url:
            what = f"expected the url {found.url!r:.200}, as the run read it, found {text.url!r:.200}"
            remedy = "Compare the corpus with both; if the release is wrong, withdraw it (`toolformer-ops forget --release`)."
            content.findings.append(Finding("changed", "release", place, what, remedy))
        released = sorted(f"{call.call_id} {call.tool} {call.scoring_recipe_id}" for call in text.calls)
        if released != sorted(found.calls):
            less = len(found.calls) - len(released)
            kind: Kind = "lost" if less < 0 else "doubled" if less > 0 else "changed"
            expected = f"the {len(released)} calls of its files"
            content.findings.append(_wrong_calls(row, place, kind, expected, len(found.calls)))
        if found.variant_id is None:  # forgotten since, or its corpus is gone
            content.digest = None
        if content.digest is not None:
            content.digest.update(text.document_id.bytes)
            if found.variant_id != text.document_id:
                content.digest.update(found.variant_id.bytes)
            content.digest.update(b"".join(uuid.UUID(call.call_id).bytes for call in text.calls))


def _wrong_calls(row: Row[Any], place: str, kind: Kind, expected: str, found: int) -> Finding:
    what, remedy = (
        f"expected {expected}, found {found} in Postgres",
        "Write them again from the release's files (--repair).",
    )
    repair = {"action": "release_calls", "release_id": row.release_id}
    return Finding(kind, "release_calls", place, what, remedy, repair=repair)


def models(auditing: Auditing, model_id: str, _: str) -> Page:
    """A model's id, its manifest and the bytes of its objects."""
    row = next(row for row in auditing.subjects.models if row.model_id == model_id)
    page = Page(items=1)
    hashed = id_of_content(row.definition)
    if hashed != model_id:
        what = f"expected the definition that the id is the hash of, found one with the hash {hashed}"
        page.findings.append(_wrong_row("finetuned_models", model_id, what))
    remedy = (
        f"Train it again: `toolformer-ops stage finetune --run {row.run_id}`, then `publish` with the same arguments."
    )
    _check_objects(auditing, row.uri, row.manifest_sha256, remedy, page)
    return page


def artifacts(auditing: Auditing, uri: str, _: str) -> Page:
    """A published model or index: its manifest and the bytes of its objects."""
    row = next(row for row in auditing.subjects.artifacts if row.uri == uri)
    page = Page(items=1)
    remedy = "Publish it again from what it was made from (published_artifacts.source)."
    manifest = _check_objects(auditing, uri, row.manifest_sha256, remedy, page)
    stated = None if manifest is None else (manifest.kind, manifest.identity, manifest.size)
    if stated not in (None, found := (row.kind, row.identity, row.bytes)):
        what = "expected {} {} of {} bytes, as its manifest says, found {} {} of {}".format(*stated, *found)
        page.findings.append(
            Finding("changed", "published_artifacts", uri, what, "Publish it again: that writes the row.")
        )
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
    """Add what is wrong with a publication's manifest and objects; returns the manifest if it is the registered one.

    `read` takes a copy of each Parquet file, as long as nothing is wrong.
    """
    store = auditing.store

    def add(kind: Kind, key: str, what: str) -> None:
        of_key = {**repair, "keys": [key]} if repair else None
        page.findings.append(Finding(kind, "object", store.uri(key), what, remedy, repair=of_key))

    # 1. The manifest is there, and the registered one.
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
    auditing.settings.state_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="audit-", dir=auditing.settings.state_dir) as folder:
        for file in manifest.files:
            page.items += 1
            copy = Path(folder) / "object" if read and file.name.endswith(".parquet") else None
            if found := store.found_instead(manifest, file, copy):
                what = f"expected {file.size} bytes with the hash {file.sha256}, found {found}"
                add("lost" if found == "nothing" else "changed", manifest.key_of(file), what)
            elif read and copy and not page.findings:
                read(copy)
    return manifest


def orphaned_objects(auditing: Auditing, _: str, __: str) -> Page:
    """Objects in the folders of publications that no publication names: of killed ones, and of those that were made anew."""
    subjects, store = auditing.subjects, auditing.store
    page = Page()
    rows = (*subjects.releases, *subjects.models, *subjects.artifacts)
    withdrawn = {store.key_of(row.uri) for row in (*subjects.releases, *subjects.models) if row.is_withdrawn}
    named = {store.key_of(row.uri): row.manifest_sha256 for row in rows}
    tops = sorted(
        {f"{release_stage.PREFIX}/", f"{finetuning.PREFIX}/", *(f"{prefix.split('/')[0]}/" for prefix in named)}
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
            too_new = datetime.now(UTC) - auditing.ages.orphans_after
            if any(modified is None or modified > too_new for _, modified in files):
                page.unprovable += 1
                continue
            page.findings += _orphans(
                auditing, prefix, [key for key, _ in files], None if prefix in withdrawn else named.get(prefix)
            )
    return page


def _orphans(auditing: Auditing, prefix: str, keys: Sequence[str], registered: str | None) -> list[Finding]:
    """The objects of one publication's folder that it does not name, folder by folder."""
    draft, manifest_key = f"{prefix}/{finetuning.DRAFT}", f"{prefix}/{MANIFEST}"
    if registered is None:
        what = f"expected a row in Postgres for what is published here, found none; {len(keys)} objects"
        repair = {"action": "delete_objects", "prefix": prefix, "keys": list(keys[:50])}
        remedy = "Nothing reads them: delete them (--repair)."
        if draft in keys:
            remedy = "A trained model waits here: publish it (`toolformer-ops stage publish --run RUN`), or delete it by hand."
        elif manifest_key in keys:
            remedy = "It was published: restore its row from a backup, or delete it by hand."
        kept = draft in keys or manifest_key in keys
        return [
            Finding("orphaned", "object", auditing.store.uri(prefix), what, remedy, repair=None if kept else repair)
        ]
    try:
        manifest = auditing.store.read_manifest(prefix)
    except CorruptObjectError:
        manifest = None
    if manifest is None or manifest.sha256 != registered:  # found by its own check; which objects it has is not known
        return []
    own = {manifest.key, *(manifest.key_of(file) for file in manifest.files)}
    extra = sorted(key for key in keys if key not in own)
    findings = []
    for folder, inside in itertools.groupby(extra, key=lambda key: key.rpartition("/")[0]):
        group = list(inside)
        place = folder if folder not in (prefix, manifest.folder) and len(group) > 1 else group[0]
        what = f"expected nothing that the manifest does not name, found {len(group)} objects, such as {group[0]}"
        repair = {"action": "delete_objects", "prefix": "", "keys": group}
        remedy = "Nothing reads them: delete them (--repair)."
        findings.append(Finding("orphaned", "object", auditing.store.uri(place), what, remedy, repair=repair))
    return findings


def left_folders(auditing: Auditing, _: str, __: str) -> Page:
    """Temporary folders of killed processes in the state folder, and folders of trainings whose model is published."""
    state = auditing.settings.state_dir
    page = Page()
    published = {row.model_id for row in auditing.subjects.models}
    folders = [path for path in state.glob("*") if path.name.startswith(LEFT_FOLDERS)]
    folders += [path for path in (state / "finetuning").glob("*") if path.name in published]
    before = datetime.now(UTC) - auditing.ages.orphans_after
    for path in sorted(path for path in folders if path.is_dir()):
        page.items += 1
        if datetime.fromtimestamp(path.stat().st_mtime, UTC) <= before:
            what, repair = (
                "expected no folder of a process that has ended, found one",
                {"action": "delete_folder", "path": str(path)},
            )
            page.findings.append(Finding("orphaned", "folder", str(path), what, "Delete it (--repair).", repair=repair))
    return page


def delete_folder(auditing: Auditing, path: str) -> None:
    """Delete a folder that `left_folders` found, and no other."""
    found = Path(path)
    state = auditing.settings.state_dir
    if found.parent in (state, state / "finetuning"):
        shutil.rmtree(found, ignore_errors=True)


OBJECT_CHECKS = (
    Check(
        "releases",
        lambda auditing: [row.release_id for row in auditing.subjects.releases if not row.is_withdrawn],
        releases,
    ),
    Check(
        "models", lambda auditing: [row.model_id for row in auditing.subjects.models if not row.is_withdrawn], models
    ),
    Check("artifacts", lambda auditing: [row.uri for row in auditing.subjects.artifacts], artifacts),
    Check("orphaned objects", lambda auditing: [""] if auditing.subjects.is_all else [], orphaned_objects),
    Check("left folders", lambda auditing: [""] if auditing.subjects.is_all else [], left_folders),
)
