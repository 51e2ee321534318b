"""Tie a server to the process that starts it: when that is gone, even by -9, the kernel sends the server its stop signal.

So neither a test run nor a supervisor that was killed leaves a Postgres behind. Uses `setpriv` of util-linux, which changes the
user too; without it (it is on every Debian and Ubuntu) a server is not tied, and Postgres cannot be started by root.
"""

import shutil
import signal
from collections.abc import Sequence

from toolformer_ops.errors import ServiceError
from toolformer_ops.local_services.accounts import Account


def tied_command(command: Sequence[str], account: Account | None, stop_signal: signal.Signals) -> list[str]:
    """`command` as `account` (None: as ourselves), with `stop_signal` at the end of the process that runs it."""
    program = shutil.which("setpriv")
    if program is None:
        if account is not None:
            raise ServiceError("expected the program setpriv, for Postgres refuses to run as root. Install util-linux.")
        return list(command)
    words = [program, "--pdeathsig", stop_signal.name.removeprefix("SIG")]
    if account is not None:
        words += [f"--reuid={account.user_id}", f"--regid={account.group_id}", "--clear-groups"]
    return [*words, "--", *command]
