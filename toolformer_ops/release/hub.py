"""Releases and finetuned models from S3 on the Hugging Face Hub.

It may be another server that speaks the hub's API (`HF_ENDPOINT`). All files of a publication become visible
in one commit, so that no reader sees half of them. Their contents are sent before it; what arrived stays on
the hub under its hash, so that the next try sends the rest. The hub gets the files as they are on S3, but for
README.md, whose header and last section say what only the publisher knows, and `toolformer-ops.json`, the
manifest.

The token is huggingface_hub's matter (`HF_TOKEN`, `hf auth login`): it is never an argument, and in no
message.
"""

import itertools
import json
import logging
import re
import shutil
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from toolformer_ops.config import Settings
from toolformer_ops.errors import (
    BusyError,
    ConfigurationError,
    InfrastructureError,
    ToolformerError,
    UsageError,
    causes,
)
from toolformer_ops.language_model.models.identity import hub_failed, hub_name
from toolformer_ops.release.format import part_files, read_release
from toolformer_ops.storage.objects.publication import (
    Manifest,
    ObjectStore,
    registered_sha256,
    require_registered,
    wrong_in_folder,
)
from toolformer_ops.storage.postgres import database, queries
from toolformer_ops.tools.languages import identify

if TYPE_CHECKING:
    from huggingface_hub import HfApi

logger = logging.getLogger(__name__)

REPO_TYPES = {"releases": "dataset", "models": "model"}
"""By the first part of a publication's prefix."""
MANIFEST_ON_HUB = "toolformer-ops.json"
"""A repository is ours if it has this file."""
CARD = "README.md"
HUBS_OWN = frozenset({".gitattributes"})
"""The file that the hub puts into a new repository."""
LANGUAGE_TEXTS = 1_000
"""Texts of a release whose language is looked at."""
LANGUAGE_SHARE = 0.02
"""A language is named in the card from this share of the texts on; below, most are mistakes of the
identification."""
SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
LARGEST_SIZE = "1M<n<10M"


@dataclass(frozen=True)
class Pushed:
    """What is on the hub."""

    address: str
    """Address of the repository's page."""
    revision: str
    """Hash of the commit, 40 hex digits."""


@dataclass(frozen=True)
class Described:
    """What the publisher says on the card; empty: not said."""

    licence: str = ""
    """As the hub names licences, such as `cc-by-sa-4.0`."""
    languages: tuple[str, ...] = ()
    """ISO codes; None if they are to be identified in the release's texts."""
    sources: tuple[str, ...] = ()
    """Words instead of the corpus' address."""


def published(settings: Settings, name: str) -> Manifest:
    """The manifest of the release or model with this id, or at this s3:// address.

    Raises:
        UsageError: nothing is published there, or neither a release nor a model.
        CorruptObjectError: the manifest is damaged, or is not what Postgres registered.
        ObjectStoreError, DatabaseError: S3 or Postgres do not answer.
    """
    store = ObjectStore(settings)
    if name.startswith("s3://"):
        prefixes = [store.key_of(name.rstrip("/"))]
    elif re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        prefixes = [f"{folder}/{name}" for folder in REPO_TYPES]
    else:
        prefixes = []
    for prefix in prefixes:
        if prefix.partition("/")[0] not in REPO_TYPES:
            raise UsageError(
                f"expected a release or a model, found {name}, which is neither. An index is built where it "
                "is used."
            )
        manifest = store.read_manifest(prefix)
        if manifest is not None:
            require_registered(manifest, registered_sha256(settings, store.uri(prefix)))
            return manifest
    looked = ", ".join(store.uri(prefix) for prefix in prefixes)
    raise UsageError(
        f"expected the id or the s3:// address of a release or a model, found {name!r}"
        f"{f', and nothing published at {looked}' if looked else ''}. The table dataset_releases lists "
        "releases, finetuned_models models."
    )


def download(settings: Settings, name: str, folder: Path, described: Described) -> Manifest:
    """Copy a release or model from S3 into a folder.

    It copies the files, each compared with its hash, the completed card and the manifest. It is what `push`
    puts on a hub. A download that broke off continues: the folder exists once it is whole; before, its parts
    are in `<folder>.part` beside it.

    Raises:
        UsageError: the folder holds something else. What else `published` raises.
        CorruptObjectError: a file is not what the manifest says.
        ObjectStoreError: S3 does not answer, or lacks a file.
    """
    manifest = published(settings, name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        others = (name for name, _ in wrong_in_folder(manifest, folder) if name != CARD)
        if (other := next(others, None)) is not None:
            raise UsageError(
                f"{folder}: expected a folder that is empty or not there, or an earlier download of "
                f"{manifest.prefix}, found another {other}, or none. Give another folder, or remove this one."
            )
        return manifest
    part = folder.with_name(f"{folder.name}.part")
    ObjectStore(settings).download(manifest, part)
    _complete(settings, manifest, part, part, described)
    if folder.is_dir():
        folder.rmdir()
    part.rename(folder)
    return manifest


def _complete(
    settings: Settings, manifest: Manifest, files: Path, place: Path, described: Described
) -> tuple[Path, Path]:
    """Write the completed card of a publication and its manifest into the folder `place`.

    The publication's files are in `files`.
    """
    card, listing = place / CARD, place / MANIFEST_ON_HUB
    card.write_text(completed_card(settings, manifest, files, described), encoding="utf-8")
    listing.write_bytes(manifest.to_bytes())
    return card, listing


def push(settings: Settings, name: str, repo: str, described: Described, *, public: bool = False) -> Pushed:
    """Put a release or model into the repository `owner/name` of the hub.

    A new repository is private unless `public`. Pushing the same again changes nothing; another release
    replaces the release that exists, as a new commit.

    Raises:
        UsageError: there is no such publication; the repository's name is not valid; it holds something else,
        or is public.
        ConfigurationError: the hub refuses the token, or this deployment asks no hub.
        InfrastructureError: the hub does not answer, or refuses for another reason. What was sent stays
        there.
        BusyError: another changed the repository in the meantime.
    """
    import httpx2
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.utils import disable_progress_bars

    if settings.hub_offline:
        raise ConfigurationError(
            "expected a deployment that may ask a hub, found TOOLFORMER_HUB_OFFLINE=true."
        )
    _require_repository_name(repo)

    # 1. The files, from S3, with the completed card; they stay for the next try if this one fails.
    manifest = published(settings, name)
    repo_type = REPO_TYPES[manifest.prefix.partition("/")[0]]
    place = settings.state_dir / "hub" / manifest.content_sha256[:16]
    fetched = place / "files"
    ObjectStore(settings).download(manifest, fetched)
    files = {file.name: fetched / file.name for file in manifest.files}
    files |= {added.name: added for added in _complete(settings, manifest, fetched, place, described)}

    # 2. The repository, all contents, and one commit that shows them.
    disable_progress_bars()
    # Both name whole addresses of requests, and those of uploads are signed.
    for library in ("huggingface_hub", "httpx2"):
        logging.getLogger(library).setLevel(logging.ERROR)
    api = HfApi()
    page = f"{api.endpoint}/{'datasets/' if repo_type == 'dataset' else ''}{repo}"
    try:
        api.create_repo(repo, repo_type=repo_type, private=not public, exist_ok=True)
        before: Any = api.repo_info(repo, repo_type=repo_type)
        old_files = {sibling.rfilename for sibling in before.siblings or ()} - HUBS_OWN
        if old_files and MANIFEST_ON_HUB not in old_files:
            raise UsageError(
                f"{page}: expected a repository that is new or was pushed by this command, found "
                f"{len(old_files)} other files, such as {min(old_files)}. Choose another name: pushing "
                "replaces all files."
            )
        if not before.private and not public:
            raise UsageError(
                f"{page}: expected a private repository, found a public one. Say --public, or make it "
                "private."
            )
        size = sum(path.stat().st_size for path in files.values())
        logger.info("sending %d files, %.1f MiB, to %s", len(files), size / 2**20, page)
        commit = api.create_commit(
            repo,
            _operations(files, old_files),
            commit_message=f"{manifest.prefix}, content {manifest.content_sha256[:16]}",
            repo_type=repo_type,
            parent_commit=before.sha,
        )
        _require_there(
            api.repo_info(repo, repo_type=repo_type, revision=commit.oid, files_metadata=True),
            commit.oid,
            repo,
            files,
        )
    except (HfHubHTTPError, httpx2.HTTPError, OSError, ValueError, RuntimeError) as error:
        raise _translated(error, api, page) from error
    shutil.rmtree(place)
    return Pushed(page, commit.oid)


def _require_repository_name(repo: str) -> None:
    """Refuse what is no `owner/name`.

    Raises:
        UsageError: it is not.
    """
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repo)
    except ValueError as error:
        raise UsageError(f"expected a repository such as owner/name, found {repo!r}: {error}") from error
    if repo.count("/") != 1:
        raise UsageError(f"expected a repository such as owner/name, found {repo!r}. Name its owner.")


def _operations(files: Mapping[str, Path], old_files: Collection[str]) -> list[Any]:
    """What makes the repository hold these files and no others of ours."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    added = [
        CommitOperationAdd(path_in_repo=file, path_or_fileobj=path) for file, path in sorted(files.items())
    ]
    deleted = [CommitOperationDelete(path_in_repo=file) for file in sorted(set(old_files) - set(files))]
    return [*added, *deleted]


def completed_card(settings: Settings, manifest: Manifest, folder: Path, described: Described) -> str:
    """The publication's README.md with what hubs read in its header.

    At its end are the sources of its texts and its date.
    """
    from huggingface_hub import RepoCard

    original = folder / CARD
    text = original.read_text(encoding="utf-8") if original.is_file() else f"# {manifest.prefix}\n"
    card = RepoCard(
        text if text.startswith("---") else f"---\n{{}}\n---\n\n{text}", ignore_metadata_errors=True
    )
    corpora, when = _origin(settings, manifest)
    languages = described.languages
    if REPO_TYPES[manifest.prefix.partition("/")[0]] == "dataset":
        texts = sum(pq.read_metadata(part).num_rows for part in part_files(folder))
        languages = languages or languages_of(folder)
        card.data["size_categories"] = [next((name for most, name in SIZES if texts < most), LARGEST_SIZE)]
        card.data["task_categories"] = ["text-generation"]
    else:
        card.data["library_name"] = "transformers"
        card.data["pipeline_tag"] = "text-generation"
        card.data["tags"] = ["toolformer", "tool-use"]
        record = folder / "finetuning.json"
        base = json.loads(record.read_bytes())["definition"]["base_model"] if record.is_file() else ""
        if name := hub_name(base):
            card.data["base_model"] = name
        else:
            card.data.pop("base_model", None)  # hubs take the names of hubs alone
    card.data["license"] = described.licence or "unknown"
    if languages:
        card.data["language"] = list(languages)
    said = described.licence or "not said by who published this; that of the sources holds"
    sources = "\n".join(
        f"- {source}" for source in described.sources or corpora or ["not known to who published this"]
    )
    return (
        f"{str(card).rstrip()}\n\n## Where the texts come from\n\n{sources}\n\n"
        f"Licence: {said}. Languages: {', '.join(languages) or 'not known'}.\n"
        f"Published as `{manifest.prefix}`{when}; `{MANIFEST_ON_HUB}` has the SHA-256 of every file but this "
        "one.\n"
    )


def languages_of(folder: Path) -> tuple[str, ...]:
    """The languages of the first texts of a release, the most frequent first, identified by fastText."""
    identified = (
        identify(text.plain_text) for text in itertools.islice(read_release(folder), LANGUAGE_TEXTS)
    )
    counts = Counter(language.label for language in identified if language is not None)
    return tuple(
        label for label, count in counts.most_common() if count >= max(1, LANGUAGE_SHARE * counts.total())
    )


def _origin(settings: Settings, manifest: Manifest) -> tuple[list[str], str]:
    """The corpora of the runs that made a publication, and ` on ` the first one's date.

    It is nothing if no database is set.
    """
    if not settings.database_dsn.get_secret_value():
        return [], ""
    uri = ObjectStore(settings).uri(manifest.prefix)
    runs = database.fetch_all(database.connect(settings, writes=False), queries.releases.sources, uri=uri)
    corpora = []
    for run in runs:
        corpus = run.corpus_uri
        name = corpus.rpartition("/")[2] if corpus.startswith("file:") else corpus
        version = "" if run.corpus_version is None else f", version {run.corpus_version}"
        corpora.append(f"the corpus `{name}`{version}")
    return corpora, f" on {min(run.published_at for run in runs):%Y-%m-%d}" if runs else ""


def _require_there(commit: Any, revision: str, repo: str, files: dict[str, Path]) -> None:
    """Fail unless the commit has each file in its size.

    A hub may leave out what a .gitignore of the repository names.
    """
    sizes = {sibling.rfilename: sibling.size for sibling in commit.siblings or ()}
    lacking = [name for name, path in sorted(files.items()) if sizes.get(name) != path.stat().st_size]
    if lacking:
        raise InfrastructureError(
            f"{repo}: expected all {len(files)} files in the commit {revision}, found none or another "
            f"{', '.join(lacking[:5])}. Remove .gitignore from the repository, if it has one, and push again."
        )


def _translated(error: Exception, api: "HfApi", page: str) -> ToolformerError:
    """The error to show: what was expected of the hub, what it said, what to do.

    It shows neither the query of an address nor a token.
    """
    from huggingface_hub import get_token
    from huggingface_hub.errors import HfHubHTTPError

    # "Error while uploading ..." is a RuntimeError.
    cause = next((cause for cause in causes(error) if not isinstance(cause, RuntimeError)), error)
    status = cause.response.status_code if isinstance(cause, HfHubHTTPError) else None
    token = get_token()
    reason = re.sub(r"\?\S+", "?...", " ".join(str(cause).split())[:400] or type(cause).__name__)
    if token:
        reason = reason.replace(token, "(the token)")
    if status in (401, 403, 404):
        finding = "a token that the hub refuses" if token else "none"
        return ConfigurationError(
            f"{page}: expected a token with the right to write there, found {finding} ({reason}). Make one "
            f"at {api.endpoint}/settings/tokens, and give it in HF_TOKEN or by `hf auth login`. Nothing was "
            "published."
        )
    if status == 412:
        return BusyError(
            f"{page}: expected the repository as it was when this began, found another commit. Nothing was "
            "published: push again."
        )
    away = hub_failed(cause) or hub_failed(error)
    return InfrastructureError(
        f"{page}: expected the hub to {'answer' if away else 'take the files'}, found: {reason}. No revision "
        "is announced; what was sent stays, and the same command continues."
    )
