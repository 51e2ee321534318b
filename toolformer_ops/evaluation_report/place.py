"""Where a run's page lies in the bucket."""

import re

from toolformer_ops.errors import ParameterError

PREFIX = "reports"
PAGE = "index.html"
_RUN_ID = re.compile(r"(?!\.+\Z)[^/\x00-\x1f\x7f]{1,250}")


def report_prefix(run_id: str) -> str:
    """Key of the folder with a run's page and what lies beside it, without a slash at its end.

    Raises:
        ParameterError: no run has such an id, since it would lead elsewhere.
    """
    if not _RUN_ID.fullmatch(run_id):
        raise ParameterError(f"--run: expected a run id without slashes and control characters, found {run_id!r:.80}.")
    return f"{PREFIX}/{run_id}"


def report_key(run_id: str) -> str:
    """Key of the page."""
    return f"{report_prefix(run_id)}/{PAGE}"
