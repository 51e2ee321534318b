"""The command line: `toolformer-ops`, which is `python -m toolformer_ops`.

`cli/command_line.py` lists the commands by purpose, as `--help` does.

Ends with 0; 1 for an error that another try may mend; 2 for a request that is wrong; 3 if there is no result;
75 if something that the work needs is not there now (Postgres, S3, a model hub, a GPU, space on a disk); 143
where SIGTERM ended it.
"""

import gc
import logging
import os
import sys
import time

from toolformer_ops import termination
from toolformer_ops.cli.command_line import app
from toolformer_ops.config import load_settings
from toolformer_ops.errors import (
    EXIT_USAGE,
    InfrastructureError,
    TerminationRequest,
    ToolformerError,
    disk_full,
    exit_code,
    in_one_record,
    lacking_package,
)

logger = logging.getLogger("toolformer_ops")


class OneRecord(logging.Formatter):
    """Writes a record with its date, and marks the further lines of its message, so that none passes for another record."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s", datefmt="%Y-%m-%dT%H:%M:%S%z")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802, D102 - the library's name
        return in_one_record(super().formatMessage(record))


def main() -> None:
    """Run the command line; a known error is one sentence on stderr and an exit status, never a traceback."""
    termination.install()
    # Read when torch is imported: a thread that waits for another sleeps. It would spin, and take the core
    # from other processes.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # torch and transformers make a million objects while they are imported, none of them garbage: to look
    # through them takes 0.3 CPU seconds so, and 1.2 at Python's thresholds.
    gc.set_threshold(20_000, 20, 20)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneRecord())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    for noisy in (
        "httpx",
        "httpcore",
        "httpx2",
        "httpcore2",
        "mcp",
        "fastmcp",
        "botocore",
        "urllib3",
        "transformers",
        "great_expectations",
    ):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    try:
        try:
            app()
        except Exception as error:
            away = error if isinstance(error, InfrastructureError) else disk_full(error)
            if away is not None and sys.argv[1:2] == ["stage"] and not termination.requested():
                _begin_anew(away)
            raise
    except (BrokenPipeError, KeyboardInterrupt):
        sys.exit(EXIT_USAGE)
    except (TerminationRequest, Exception) as error:
        if termination.requested():  # a query that was cancelled, or a broken pipe, comes of it
            logger.info("ended by SIGTERM: what is committed stays")
            termination.end()
        expected_error = (
            error if isinstance(error, ToolformerError) else disk_full(error) or lacking_package(error)
        )
        if expected_error is None:
            raise
        logger.error("%s: %s", type(expected_error).__name__, expected_error)  # noqa: TRY400 - the message is the remedy; a traceback would hide it
        sys.exit(exit_code(expected_error))
    finally:
        gc.freeze()  # else Python looks through the million objects once more as it ends, for 1.0 CPU seconds


OUTAGE_POLL_SECONDS = 10.0
"""Between two tries of a stage for which something is not there now."""
_WAITS_UNTIL = "_TOOLFORMER_WAITS_UNTIL"
"""Environment variable by which a process that begins anew knows when to give up: seconds on this machine's
steady clock."""


def _begin_anew(error: InfrastructureError) -> None:
    """Wait a moment and begin this stage anew, as the same process.

    Return once it has waited for `outage_seconds`. So a stage is at work again seconds after Postgres or S3
    is, and Airflow's retries, of which there are few, count long outages. What is committed stays, as with a
    retry.
    """
    waits_until = float(
        os.environ.setdefault(_WAITS_UNTIL, str(time.monotonic() + load_settings().outage_seconds))
    )
    left = waits_until - time.monotonic()
    if left <= 0:
        return
    pause = min(OUTAGE_POLL_SECONDS, left)
    logger.warning("%s: %s", type(error).__name__, error)
    logger.warning(
        "beginning anew in %.0f s, for at most %.0f s more (TOOLFORMER_OUTAGE_SECONDS)", pause, left
    )
    time.sleep(pause)
    logging.shutdown()
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "toolformer_ops", *sys.argv[1:]])  # noqa: S606 - no shell


if __name__ == "__main__":
    main()
