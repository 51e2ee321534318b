"""One of the processes that train together, started by `processes.py` alone.

The command is `python -m toolformer_ops.finetuning JOB`.
"""

import logging
import os
import sys
from pathlib import Path

from toolformer_ops import termination
from toolformer_ops.config import load_settings
from toolformer_ops.errors import TerminationRequest, ToolformerError, exit_code
from toolformer_ops.finetuning.processes import JOB_JSON, RESULT, RESULT_JSON, write_failure
from toolformer_ops.finetuning.release_training import train_job


def main(job_path: Path) -> int:
    """Train this process's share; the first process writes the result. Returns the exit status."""
    termination.end_with_parent()
    termination.install()
    first = os.environ.get("RANK", "0") == "0"
    logging.basicConfig(
        level=logging.INFO if first else logging.WARNING, format="%(levelname)s %(name)s: %(message)s"
    )
    job = JOB_JSON.validate_json(job_path.read_bytes())
    try:
        trained = train_job(load_settings(), job)
    except TerminationRequest:
        termination.end()  # the other processes are at their end, too: nothing is to be waited for
    except ToolformerError as error:
        write_failure(job, error)
        logging.getLogger(__name__).error("%s", error)  # noqa: TRY400 - the message is meant to be read
        return exit_code(error)
    if trained is not None:
        (job.folder / RESULT).write_bytes(RESULT_JSON.dump_json(trained))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
