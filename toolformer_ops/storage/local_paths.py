"""Which files of this machine an address may name, and opening them.

Each path of a form, a run parameter or a file comes here.

Who may start a run may not read all that the worker can read: passwords are in the state folder, keys in
hidden folders. A path is judged with its symbolic links resolved, and opened without following any: a link
that is made in between is refused.
"""

import os
import stat
from pathlib import Path
from typing import IO

from toolformer_ops.config import ENV_PREFIX, Settings, load_settings
from toolformer_ops.errors import UsageError
from toolformer_ops.storage.corpus_addresses import normal_uri

SYSTEM_FOLDERS = ("dev", "etc", "proc", "run", "sys", "var")
"""Below /, what a deployment that names no roots lets nobody read."""
OPEN_PLACES = ("demo", "models")
"""What of the state folder may be named, with every setting: the demo's Wikipedia, and the demo's model and
others beside it."""
DEMO_TEXTS = Path(__file__).resolve().parent.parent / "local" / "demo" / "texts"
"""May be named with every setting, too."""


def local_path(settings: Settings, address: str, name: str, *, within: Path | None = None) -> Path:
    """The absolute path without symbolic links that an address (a path or file://) means; whether anything is there is not asked.

    `name` is what the address was given as, for the message. `within` is a folder of the administrator's,
    whose files may be read
    besides: that of the tool files, for what a tool file names.

    Raises:
        CorpusError: it is no address of a file.
        UsageError: this deployment lets nobody read there.
    """
    path = Path(normal_uri(address).removeprefix("file://"))
    if reason := refusal(settings, path, *([within.resolve()] if within else [])):
        roots = settings.corpus_roots or "all but system, hidden and state folders"
        raise UsageError(
            f"{name}: expected files that may be read, found {described(address)}, which {reason}. Put them on S3, or into a "
            f"folder that {ENV_PREFIX}CORPUS_ROOTS allows ({roots})."
        )
    return path


def described(address: str) -> str:
    """An address as a message names it: a relative path together with what it means to the process that looks for it."""
    if address.startswith(("/", "~", "s3://", "file:///")):
        return address
    path = normal_uri(address).removeprefix("file://")
    return (
        f"{address}, a relative path, which is {path} for the process that looks for it (give the whole path)"
    )


def refusal(settings: Settings, path: Path, *more: Path) -> str | None:
    """Why nobody may read at an absolute path without symbolic links, as the end of a sentence; None if everybody may.

    `more`: folders that may be read besides.
    """
    state = settings.state_dir.resolve()
    roots = [
        Path(root).expanduser().resolve() for root in (settings.corpus_roots or "/").split(os.pathsep) if root
    ]
    of_settings = (
        settings.default_corpus, settings.default_model, settings.qa_reader_model, settings.translator_model,
        settings.evaluation_data,
    )  # fmt: skip
    named = [Path(address).resolve() for address in of_settings if address and address.startswith("/")]
    folders = {*roots, *more, *named, DEMO_TEXTS, *(state / place for place in OPEN_PLACES), state}
    holding = [folder for folder in folders if path.is_relative_to(folder)]
    if not holding:
        return "is in none of the folders that may be read"
    folder = max(holding, key=lambda path: len(path.parts))
    if folder == state or path == settings.kubernetes_config_file:
        return "is where passwords are kept"
    below = path.relative_to(folder).parts
    if folder == Path("/") and (not below or below[0] in SYSTEM_FOLDERS):
        return "is in a folder of the system"
    # Names that begin with two dots are those of Kubernetes' volumes, whose files are links to them.
    if any(part.startswith(".") and not part.startswith("..") for part in below):
        return "is hidden"
    return None


def refusal_in_folder(settings: Settings, folder: Path, found: Path) -> str | None:
    """Why a file that was found below a folder is not read: it leads out of the folder, or where nobody may read; else None.

    `folder` is as `local_path` returns it.
    """
    try:
        real = found.resolve()
    except (OSError, RuntimeError):  # a link to itself
        return "is a link that leads nowhere"
    if not real.is_relative_to(folder):
        return "is a link that leads out of the folder"
    return refusal(settings, real, folder) if real != folder else None


def read_beside(folder: Path, name: str) -> bytes:
    """The content of a file that is in an administrator's folder, or that a file there names relative to it.

    Raises as `local_path`, and `OSError` if it cannot be read.
    """
    with open_local(local_path(load_settings(), str(folder / name), name, within=folder)) as file:
        return file.read()


def open_local(path: Path) -> IO[bytes]:
    """Open a file at an absolute path without symbolic links, as `local_path` returns it.

    Raises:
        OSError: it is not there, or no regular file; or a part of the path has become a link since.
    """
    folder = os.open(path.anchor, os.O_PATH | os.O_DIRECTORY)
    try:
        for part in path.parts[1:-1]:
            inner = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            os.close(folder)
            folder = inner
        # Without waiting for the writer of a pipe.
        descriptor = os.open(path.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    finally:
        os.close(folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError("it is no file")
    return os.fdopen(descriptor, "rb")
