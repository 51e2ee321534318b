"""Which model this is: a name that changes when weights, configuration or tokenizer change.

A local folder is named by the hash of its content (`SmolLM2-135M-Instruct@5f0c...`), a hub model by its
pinned revision (`HuggingFaceTB/SmolLM2-135M@93efa2f...`). A model on S3 has the name that its folder or hub
model has: its manifest holds what decides it. Imports neither torch nor transformers, so that a stage which
only registers a run stays cheap: it takes hashes from a file beside the weights, by the files' sizes and
times, and of a model on S3 it reads the manifest alone. For a process that loads the model its files are read
and hashed, once a node and day (1.4 s a GiB on a shared core; `storage/machine/shared_files.py` says what that
trusts): a byte that changed without a trace in sizes and times is refused then, and the model has another
name from then on.
"""

import contextlib
import errno
import hashlib
import json
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolformer_ops.config import Settings, load_settings
from toolformer_ops.errors import (
    ConfigurationError,
    CorruptObjectError,
    InfrastructureError,
    ModelError,
    ObjectNotFoundError,
    ToolformerError,
    causes,
    disk_full,
)
from toolformer_ops.language_model.models.sharing import require_sharing_config
from toolformer_ops.storage.corpora.local_paths import local_path, refusal
from toolformer_ops.storage.machine.shared_files import replace_file, verified_sha256

if TYPE_CHECKING:
    from toolformer_ops.storage.objects.artifacts import Artifact

CONTENT_FILES = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "model.safetensors.index.json",
)
"""Files beside `*.safetensors` that decide what the model computes."""

HASH_CACHE = ".content_hashes.json"
"""Beside the weights: SHA-256 by file name, size and times, so that not every task that names a model reads
its weights."""

S3 = "s3://"
"""With this begins the address of a published model."""

_COMMIT = re.compile(r"[0-9a-f]{40}")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")


def split_revision(model: str) -> tuple[str, str | None]:
    """A model as the form takes it, as (path, id or address, revision).

    The form takes a path, `hub/id@revision` or `s3://bucket/models/name`.
    """
    if model.startswith(S3):
        return model, None
    name, at, revision = model.rpartition("@")
    return (name, revision) if at and "/" not in revision else (model, None)


def hub_name(identity: str) -> str | None:
    """Return the name on the hub of a model with this identity, such as `org/name`.

    None for a model of a folder.
    """
    hub_identity = re.fullmatch(r"([^@/]+/[^@/]+)@[0-9a-f]{40}", identity)
    return hub_identity[1] if hub_identity else None


def model_identity(
    path_or_hub_id: str,
    revision: str | None = None,
    *,
    read: bool = False,
    annotates: bool = False,
    settings: Settings | None = None,
) -> str:
    """`name@content hash` of a model folder, or `hub id@revision`; the model is looked for but not loaded.

    Also takes the `s3://` address of a published model, whose identity is that of the folder or hub model it
    was published from.
    `read`: by the bytes of the files (`storage/machine/shared_files.py`), for a process that loads them, rather than
    by the hashes beside the weights or by the manifest alone.
    `annotates`: refuse a model of a folder or hub whose config.json says that the engine cannot use it
    (`sharing.py`); one on S3 is refused when it is loaded.
    `settings` (the deployment's where None) say where S3, the cache and the hub are.

    Raises:
        InfrastructureError: the hub does not answer, a disk is full, or the cache has no room for the files
        that are to be read.
        ConfigurationError: the local hub cache cannot be written.
        UsageError: this deployment allows no reading there.
        ModelError: there is no such folder, hub or published model, it lacks safetensors or a tokenizer, or a
        hub id has no pinned
            revision; or a file was read and is not what its stored hash says; or it cannot annotate.
        CorruptObjectError: the manifest or a file on S3 was changed or damaged.
        ObjectStoreError: S3 cannot be reached.
    """
    settings = settings or load_settings()
    if path_or_hub_id.startswith(S3):
        published = published_model(path_or_hub_id, settings)
        if read:
            _fetched(published, settings)
        # What the manifest says; of a finetuned model, which says nothing, by its files.
        content = _content_hash({file.name: file.sha256 for file in published.manifest.files})
        identity = published.manifest.identity or f"{published.name}@{content}"
        stated = identity.rpartition("@")[2]
        if stated != content and not _COMMIT.fullmatch(stated):
            raise CorruptObjectError(
                f"{published.address}: expected the identity of the files that its manifest names "
                f"(...@{content}), found {identity}. Publish the model again under another name."
            )
        return identity
    folder = local_folder(path_or_hub_id, settings)
    if folder is not None:
        if annotates:
            require_sharing_config(folder / "config.json")
        return f"{folder.name}@{_content_hash(_file_hashes(settings, folder, read))}"
    revision = require_hub_revision(path_or_hub_id, revision)
    config = _hub_config(path_or_hub_id, revision, settings)
    if annotates:
        require_sharing_config(config)
    if read:
        _require_downloaded(settings, config.parent)
    return f"{path_or_hub_id}@{revision}"


def model_config(model: str, settings: Settings) -> dict[str, Any]:
    """The content of a model's config.json; nothing else is fetched.

    Raises:
        ModelError: there is no such model, or its config.json is no JSON object.
        InfrastructureError, ConfigurationError, UsageError, CorruptObjectError, ObjectStoreError: as
        `model_identity`.
    """
    from toolformer_ops.storage.objects.publication import ObjectStore

    name, revision = split_revision(model)
    content: str | bytes | None
    if name.startswith(S3):
        content = ObjectStore(settings).read_file(published_model(name, settings).manifest, "config.json")
    elif (folder := local_folder(name, settings)) is not None:
        content = (folder / "config.json").read_text(encoding="utf-8")
    else:
        content = _hub_config(name, require_hub_revision(name, revision), settings).read_text(
            encoding="utf-8"
        )
    try:
        return dict(json.loads(content or ""))
    except (ValueError, TypeError) as error:
        raise ModelError(
            f"{model}: expected a JSON object in config.json, found: {error}. Download or save the model "
            "again."
        ) from error


def _hub_config(hub_id: str, revision: str, settings: Settings) -> Path:
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(hub_id, "config.json", **hub_options(revision, settings)))
    except (OSError, ValueError) as error:  # hub errors are OSErrors or ValueErrors
        raise hub_model_missing(hub_id, revision, error) from error


def local_folder(path_or_hub_id: str, settings: Settings | None = None) -> Path | None:
    """The folder that is meant, checked for what loading needs; None if a hub id is meant.

    For an `s3://` address this is the folder in the cache, which is filled if it does not hold the model yet.

    Raises:
        UsageError: this deployment allows no reading there.
        ModelError: a path or an address is meant, and it holds no model, or a link to a file that may not be
        read. CorruptObjectError, ObjectStoreError, InfrastructureError: as `model_identity`.
    """
    if path_or_hub_id.startswith(S3):
        return _fetched(published_model(path_or_hub_id, settings), settings)
    is_hub_id = _HUB_ID.fullmatch(path_or_hub_id) is not None
    if is_hub_id and not os.path.isdir(path_or_hub_id):  # noqa: PTH112 - which is False for any text
        return None
    settings = settings or load_settings()
    folder = local_path(settings, path_or_hub_id, "model")
    try:
        if not folder.is_dir():
            raise ModelError(
                "expected a model folder or a hub id such as HuggingFaceTB/SmolLM2-135M, found nothing at "
                f"{path_or_hub_id!r}. Give the folder that holds config.json."
            )
        for link in folder.rglob("*"):
            if link.is_symlink() and (reason := refusal(settings, link.resolve(), folder)):
                raise ModelError(
                    f"{link}: expected a file of the model, found a link to a file that {reason}. Remove the "
                    "link."
                )
        require_model(str(folder), {file.name for file in folder.iterdir() if file.is_file()})
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
        raise ModelError(
            f"{folder}: expected a model folder, found: {getattr(error, 'strerror', None) or error}."
        ) from error
    return folder


def require_model(place: str, names: Collection[str]) -> None:
    """Refuse files, given by their names, that lack what loading needs."""
    lacking = [] if "config.json" in names else ["config.json"]
    if not any(name.endswith(".safetensors") for name in names):
        lacking.append(
            "*.safetensors (other weight formats are not loaded: save the model with save_pretrained)"
        )
    if not any(name in names for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        lacking.append("tokenizer.json")
    if lacking:
        raise ModelError(f"{place}: expected a causal language model, found no {', no '.join(lacking)}.")


def published_model(address: str, settings: Settings | None = None) -> "Artifact":
    """The model that is published at an `s3://` address, by its manifest; its files are not read.

    Raises:
        ModelError: nothing is published there, or no model.
        CorruptObjectError: the manifest was changed, or is not what Postgres registered.
    """
    from toolformer_ops.storage.objects import artifacts

    try:
        published = artifacts.find(settings or load_settings(), address, "model")
    except ObjectNotFoundError as error:
        raise ModelError(
            f"expected a published model at {address}, found none: {error}. `toolformer-ops publish-model` "
            "puts one there."
        ) from error
    require_model(published.address, {file.name for file in published.manifest.files})
    return published


def _fetched(published: "Artifact", settings: Settings | None) -> Path:
    """The files of a published model in the cache, compared with their hashes."""
    from toolformer_ops.storage.objects import artifacts

    return artifacts.fetch(settings or load_settings(), published)


def require_hub_revision(hub_id: str, revision: str | None) -> str:
    """The revision; a hub model whose weights could change between two runs is refused.

    Raises:
        ModelError: `revision` is not a full commit hash.
    """
    if revision is None or not _COMMIT.fullmatch(revision):
        raise ModelError(
            f"{hub_id}: expected a local folder, or a hub id with a revision of 40 hexadecimal digits, found "
            f"revision {revision!r}. Copy the commit from the model's page and write {hub_id}@<commit>, or "
            "check the path."
        )
    return revision


def hub_options(revision: str, settings: Settings | None = None) -> dict[str, Any]:
    """The arguments with which every loader asks a model hub.

    It is asked at this revision, and never where `hub_offline` is set. The setting is that of the deployment
    if no settings are given. Then only models in the local hub cache are found.
    """
    offline = (settings or load_settings()).hub_offline
    if offline:
        from huggingface_hub import constants

        constants.HF_HUB_OFFLINE = (
            True  # the hub's client would ask for other things than models, once a process
        )
    return {"revision": revision, "local_files_only": offline}


def hub_model_missing(hub_id: str, revision: str | None, error: Exception) -> ToolformerError:
    """The error for a hub model that can neither be downloaded nor found among those downloaded before.

    An `InfrastructureError` if the hub did not answer or could not serve, or the disk is full; a
    `ConfigurationError` if the local hub cache cannot be written; a `ModelError` if the hub said that there
    is no such model.
    """
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if full := disk_full(error):
        return full
    if (refused := cache_refused(error)) is not None:
        return ConfigurationError(
            f"{hub_id}@{revision}: expected a local hub cache that can be read and written, found: "
            f"{refused}. Set HF_HOME to a folder of this user, or give this user the rights."
        )
    if hub_failed(error):
        return InfrastructureError(
            f"{hub_id}@{revision}: expected the model hub to answer, or a copy in the local hub cache, found "
            f"neither ({reason}). Try again when the hub can be reached, or publish the model on S3 from a "
            "machine with access (`toolformer-ops publish-model`)."
        )
    return ModelError(
        f"{hub_id}@{revision}: expected a hub model, or a copy of it in the local hub cache, found none "
        f"({reason}). Check id and revision, or publish it on S3 from a machine with access (`toolformer-ops "
        "publish-model`)."
    )


def cache_refused(error: BaseException) -> OSError | None:
    """The error of the file system that denies a file of the local hub cache: `error`, or a cause of it."""
    denied = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR}
    for cause in causes(error):
        if (
            isinstance(cause, OSError) and cause.filename and cause.errno in denied
        ):  # the hub's errors are OSErrors, too
            return cause
    return None


def hub_failed(error: BaseException) -> bool:
    """Whether `error`, or its cause, is a hub that does not answer (no connection, 408, 429, 5xx).

    A hub that was not asked, since this deployment is offline, has not failed.
    """
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    for cause in causes(error):
        if isinstance(cause, HfHubHTTPError):
            status = cause.response.status_code
            return status in (408, 429) or status >= 500
        if isinstance(cause, OfflineModeIsEnabled):
            return False
        if isinstance(cause, (httpx2.TransportError, ConnectionError, TimeoutError)):
            return True
    return False


def _require_downloaded(settings: Settings, snapshot: Path) -> None:
    """Refuse a file of the local hub cache that is not what was downloaded: the cache names each by its hash.

    Raises:
        ModelError: a file has changed.
    """
    for link in snapshot.rglob("*"):
        blob = link.resolve()
        if blob.parent.name != "blobs" or not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", blob.name):
            continue  # a copy, or a cache of another kind
        if len(blob.name) == 64:
            content_hash = verified_sha256(settings, blob)
        else:  # a small file: git's hash of it
            content = blob.read_bytes()
            content_hash = hashlib.sha1(
                b"blob %d\0%b" % (len(content), content), usedforsecurity=False
            ).hexdigest()
        if content_hash != blob.name:
            raise ModelError(
                f"{link}: expected the content that was downloaded ({blob.name}), found {content_hash}. It "
                f"was changed or damaged: delete {blob} and download the model again."
            )


def _content_hash(sha256_by_name: Mapping[str, str]) -> str:
    """16 digits: the hash of the files that decide what a model computes, by name with their SHA-256."""
    weights = (name for name in sha256_by_name if "/" not in name and name.endswith(".safetensors"))
    content = hashlib.sha256()
    for name in sorted({*weights, *(name for name in CONTENT_FILES if name in sha256_by_name)}):
        content.update(f"{name} {sha256_by_name[name]}\n".encode())
    return content.hexdigest()[:16]


def _file_hashes(settings: Settings, folder: Path, read: bool) -> dict[str, str]:
    """SHA-256 by name of the files that decide what a model computes, stored ones unless `read`."""
    names = {path.name for path in folder.glob("*.safetensors")}
    names.update(name for name in CONTENT_FILES if (folder / name).is_file())
    try:
        stored = {
            str(key): str(value) for key, value in json.loads((folder / HASH_CACHE).read_text()).items()
        }
    except (OSError, ValueError, AttributeError):  # absent, unreadable or damaged: hashed anew
        stored = {}
    hashes: dict[str, str] = {}
    hashes_by_name: dict[str, str] = {}
    changed: list[str] = []
    for name in sorted(names):
        status = (folder / name).stat()
        # The time of the inode's change, too: it cannot be set back, as the file's can.
        key = f"{name}|{status.st_size}|{status.st_mtime_ns}|{status.st_ctime_ns}"
        stored_hash = stored.get(key)
        hashes_by_name[name] = hashes[key] = (
            stored_hash if stored_hash and not read else verified_sha256(settings, folder / name)
        )
        changed += [name] if stored_hash not in (None, hashes_by_name[name]) else []
    if hashes != stored:
        with contextlib.suppress(OSError):  # a read-only model folder: hashed again next time
            replace_file(folder / HASH_CACHE, json.dumps(hashes, indent=1))
    if changed:
        raise ModelError(
            f"{folder}: expected the content whose hashes are in {HASH_CACHE}, found another one of "
            f"{', '.join(changed)}, with the same sizes and times: it was changed or damaged. Put the files "
            "back; what the folder holds now has another identity."
        )
    return hashes_by_name
