"""A stage whose texts kill its process: `python -m tests.killed_stages RUN TRIES`.

Each try is a process, forked after the imports, that runs `annotate` on the whole of the run; as with
Airflow, the next follows where one was killed. A text that holds "deadly to sample" or "deadly to score" ends
its process by SIGKILL, one that holds "told" by SIGTERM. Writes the exit statuses as JSON.
"""

import json
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

import toolformer_ops.language_model
import toolformer_ops.runs.models
from tests.fake_language_model import FakeLanguageModel
from toolformer_ops import termination
from toolformer_ops.config import load_settings
from toolformer_ops.errors import TerminationRequest
from toolformer_ops.records import CallLosses, CallPosition
from toolformer_ops.stages.annotating import annotate_stage

MICRO_BATCH = 4


class DeadlyModel(FakeLanguageModel):
    """The fake model, killed by some texts."""

    def find_positions(
        self, prompt: object, texts: Sequence[str], **options: Any
    ) -> list[list[CallPosition]]:
        for text in texts:
            if "deadly to sample" in text:
                os.kill(os.getpid(), signal.SIGKILL)
            if "told" in text:
                os.kill(os.getpid(), signal.SIGTERM)
        return super().find_positions(prompt, texts, **options)

    def score_calls(self, text: str, *arguments: Any, **options: Any) -> list[CallLosses]:
        if "deadly to score" in text:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().score_calls(text, *arguments, **options)


def work(run_id: str) -> int:
    settings = load_settings().model_copy(update={"micro_batch_documents": MICRO_BATCH})
    model = DeadlyModel()
    toolformer_ops.language_model.models.model_identity = lambda *_, **__: model.identity
    toolformer_ops.runs.models.load_run_model = model.load
    termination.install()
    try:
        annotate_stage(settings, run_id, "Calculator", "0/1")
    except TerminationRequest as request:
        return int(str(request.code))
    return 0


def main(run_id: str, tries: str) -> None:
    statuses: list[int] = []
    while len(statuses) < int(tries) and (not statuses or statuses[-1] == -signal.SIGKILL):
        process_id = os.fork()
        if not process_id:
            os._exit(work(run_id))
        _, status = os.waitpid(process_id, 0)
        statuses.append(os.waitstatus_to_exitcode(status))
    sys.stdout.write(json.dumps(statuses))


if __name__ == "__main__":
    main(*sys.argv[1:])
