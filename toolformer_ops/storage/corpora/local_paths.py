"""Which files of this machine an address may name, and opening them.

Each path of a form, a run parameter or a file comes here.

Who may start a run may not read all that the worker can read: passwords are in the state folder, keys in
hidden folders. A path is judged with its symbolic links resolved, and opened without following any: a link
that is made in between is refused.
"""

import contextlib
import os
import stat
from pathlib import Path
from typing import IO

from toolformer_ops.config import ENV_PREFIX, Settings, load_settings
from toolformer_ops.errors import UsageError
from toolformer_ops.storage.corpora.addresses import normal_uri

SYSTEM_FOLDERS = ("dev", "etc", "proc", "run", "sys", "var")
"""Below /, what may not be read in a deployment that names no roots."""
PROGRAM_FOLDERS = ("bin", "boot", "lib", "lib32", "lib64", "opt", "root", "sbin", "snap", "usr")
"""Folders of programs: refused, too, but for the current folder and the home, which may be below them."""
SECRETS_FILE = "secrets.json"
"""What a state folder keeps its passwords in, by which that of another deployment is known."""
OPEN_PLACES = ("demo", "models")
"""What of the state folder may be named, with every setting: the demo's Wikipedia, and the demo's model and
others beside it."""
DEMO_TEXTS = Path(__file__).resolve().parents[2] / "local" / "demo" / "texts"
"""May be named with every setting, too."""


def local_path(settings: Settings, address: str, name: str, *, within: Path | None = None) -> Path:
    """The absolute path without symbolic links that an address (a path or file://) means.

    It does not ask whether anything exists. `name` is what the address was given as, for the message.
    `within` is a folder of the administrator's, whose files may be read besides: that of the tool files, for
    what a tool file names.

    Raises:
        CorpusError: it is no address of a file.
        UsageError: this deployment allows no reading there.
    """
    path = Path(normal_uri(address).removeprefix("file://"))
    if reason := refusal(settings, path, *([within.resolve()] if within else [])):
        roots = settings.corpus_roots or "all but hidden folders, state folders and those of the system"
        raise UsageError(
            f"{name}: expected files that may be read, found {described(address)}, which {reason}. Put them "
            f"on S3, or into a folder that {ENV_PREFIX}CORPUS_ROOTS allows ({roots})."
        )
    return path


def described(address: str) -> str:
    """An address as a message names it.

    A relative path comes with what it means to the process that looks for it.
    """
    if address.startswith(("/", "~", "s3://", "file:///")):
        return address
    path = normal_uri(address).removeprefix("file://")
    return f"{address} (a relative path: {path} for the process that looks for it; give the whole path)"


def refusal(settings: Settings, path: Path, *more: Path) -> str | None:
    """Why an absolute path without symbolic links may not be read, as the end of a sentence; None if it may.

    Of the folders with a rule of their own that hold the path, the innermost decides. `more`: folders that
    may be read besides.
    """
    # 1. The folders that may be read.
    state = settings.state_dir.resolve()
    if settings.corpus_roots:
        paths = (Path(root) for root in settings.corpus_roots.split(os.pathsep) if root)
        roots = [path.expanduser().resolve() for path in paths]
    else:
        roots = _default_roots(state)
    addresses = (settings.default_model, settings.qa_reader_model, settings.translator_model)
    named = [Path(address).resolve() for address in addresses if address and address.startswith("/")]
    folders = {*roots, *more, *named, DEMO_TEXTS, *(state / place for place in OPEN_PLACES), state}
    holding = [folder for folder in folders if path.is_relative_to(folder)]
    if not holding:
        return "is in none of the folders that may be read"
    # 2. The innermost, and what is below it.
    folder = max(holding, key=lambda path: len(path.parts))
    if folder == state or path == settings.kubernetes_config_file:
        return "is where passwords are kept"
    below = path.relative_to(folder).parts
    if folder == Path("/") and (not below or below[0] in SYSTEM_FOLDERS + PROGRAM_FOLDERS):
        return "is in a folder of the system"
    # Names that begin with two dots are those of Kubernetes' volumes, whose files are links to them.
    if any(part.startswith(".") and not part.startswith("..") for part in below):
        return "is hidden"
    # 3. The state folder of another deployment.
    if folder in roots and _is_in_another_state_folder(path, state):
        return f"is in a folder with {SECRETS_FILE}, where another deployment keeps its passwords"
    return None


def _default_roots(state: Path) -> list[Path]:
    """What a deployment that names no roots lets everybody read: all, but for what `refusal` says of it.

    The current folder and the home may be below a folder of programs. So is the hub's cache in a hidden
    folder: its models can be named by their hub ids, too, and its token is kept elsewhere.
    """
    from huggingface_hub.constants import HF_HUB_CACHE

    roots = [Path("/"), Path(HF_HUB_CACHE).resolve()]
    for place in (Path.cwd, Path.home):
        with contextlib.suppress(OSError, RuntimeError):  # it was deleted, or there is no such user
            folder = place().resolve()
            is_of_the_system = any(folder.is_relative_to(f"/{name}") for name in SYSTEM_FOLDERS)
            if not is_of_the_system and not folder.is_relative_to(state):
                roots.append(folder)
    return roots


def _is_in_another_state_folder(path: Path, state: Path) -> bool:
    for folder in (path, *path.parents):
        if folder != state and (folder / SECRETS_FILE).is_file():
            below = path.relative_to(folder).parts
            return not below or below[0] not in OPEN_PLACES
    return False


def refusal_in_folder(settings: Settings, folder: Path, file: Path) -> str | None:
    """Why a file below a folder is not read; None if it is.

    It leads out of the folder, or where no reading is allowed. `folder` is as `local_path` returns it.
    """
    real = Path(os.path.realpath(file))  # of a link to itself the link; `resolve` raises before Python 3.13
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
