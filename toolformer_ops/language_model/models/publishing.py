"""Publish a model on S3, from a folder or from the hub, so that every machine finds it under one address.

Weights are published as safetensors alone: a pickle can run code where it is loaded. Files that are neither
weights nor configuration nor tokenizer stay where they are.
"""

import logging
import re
from pathlib import Path

from toolformer_ops.config import Settings
from toolformer_ops.errors import AlreadyPublishedError, UsageError
from toolformer_ops.language_model.models.identity import (
    S3,
    hub_model_missing,
    hub_options,
    local_folder,
    model_identity,
    require_hub_revision,
    require_model,
)
from toolformer_ops.storage.objects import artifacts

logger = logging.getLogger(__name__)

PREFIX = "models"
FILES = [
    "*.safetensors",
    "*.json",
    "*.txt",
    "*.model",
    "*.jinja",
    "*.md",
    "LICENSE*",
    "additional_chat_templates/*.jinja",
]
"""What is published of a model: no pickles, no code, no other formats of the weights."""
PICKLES = {".bin", ".pt", ".pth", ".pkl", ".ckpt", ".h5", ".msgpack"}


def publish_model(
    settings: Settings, path_or_hub_id: str, revision: str | None = None, name: str | None = None
) -> artifacts.Artifact:
    """Publish a folder, or a hub model at its pinned revision, as `models/NAME`.

    To publish it once more makes no new publication. The identity is that of the folder or hub model, so that
    recipes do not change; `name` (the folder's, or the last part of the hub id, where None) is a part of the
    address alone.

    Raises:
        ModelError: there is no such model, or it has no safetensors or no tokenizer.
        UsageError: the name cannot be a part of an address, or the model is on S3 already.
        AlreadyPublishedError: another model has this name.
        ObjectStoreError: S3 refuses.
    """
    from huggingface_hub import snapshot_download

    if path_or_hub_id.startswith(S3):
        raise UsageError(
            f"expected a folder or a hub id with its revision, found {path_or_hub_id}, which is on S3."
        )
    folder = local_folder(path_or_hub_id, settings)
    place = folder
    if place is None:  # in the local hub cache, with the files that are published
        revision = require_hub_revision(path_or_hub_id, revision)
        try:
            downloaded = snapshot_download(
                path_or_hub_id, allow_patterns=FILES, **hub_options(revision, settings)
            )
        except (OSError, ValueError) as error:  # hub errors are OSErrors or ValueErrors
            raise hub_model_missing(path_or_hub_id, revision, error) from error
        place = Path(downloaded)
        require_model(downloaded, {file.name for file in place.iterdir() if file.is_file()})
    name = name or (path_or_hub_id.rstrip("/").rpartition("/")[2] if folder is None else folder.name)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise UsageError(f"--name: expected letters, digits, '.', '_' and '-', found {name!r}.")
    identity = model_identity(path_or_hub_id, revision, read=True, settings=settings)
    files = {}
    for pattern in FILES:
        for path in place.glob(pattern):
            if path.is_file() and not path.name.startswith("."):
                files[path.relative_to(place).as_posix()] = path
    left_out = [path.name for path in sorted(place.iterdir()) if path.suffix in PICKLES]
    if left_out:
        logger.warning(
            "not published, since a pickle can run code where it is loaded: %s", ", ".join(left_out)
        )
    logger.info("publishing %s: %d files", identity, len(files))
    try:
        return artifacts.publish(
            settings,
            "model",
            identity,
            f"{PREFIX}/{name}",
            files,
            source=identity if folder is None else str(folder),
        )
    except AlreadyPublishedError as error:
        raise AlreadyPublishedError(f"{error} For this model: --name OTHER-NAME.") from error
