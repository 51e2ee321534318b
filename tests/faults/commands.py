"""The command line with a scripted model: `python -m tests.faults.commands` forks a process for each request.

It has imported everything, so that a command takes a tenth of a second and not five. A request is a line on stdin, {"id",
"arguments", "environment", "log"}; the answers on stdout are {"id", "process"} when the process has started and {"id", "status"}
when it has ended. The end of stdin is the end of all processes.

All but the language model and the training is what a deployment runs. The model answers by rule (`tests/fake_language_model.py`),
and writes into the file FAULTS_SEEN which process saw which text in which stage.
"""

import gc
import json
import os
import selectors
import signal
import sys
import time
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.fake_language_model import UNFINISHED, FakeLanguageModel

SEEN = "FAULTS_SEEN"
SECONDS_PER_TEXT = 0.004
"""Long enough that kills hit a text at work, too."""
SCRIPT = ("Calculator(2 + 3)", "Calculator(7 / 0)", "Calculator 2 +", UNFINISHED)
MODEL_BYTES = 40_000


class SlowModel(FakeLanguageModel):
    """The fake model, which takes a moment for each text and leaves a trace."""

    def _saw(self, stage: str, text: str) -> None:
        line = f"{stage}\t{os.getpid()}\t{text}\n".encode()
        trace = os.open(os.environ[SEEN], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(trace, line)
        os.close(trace)
        time.sleep(SECONDS_PER_TEXT)

    def find_positions(self, prompt: object, texts: Sequence[str], **options: Any) -> Any:
        for text in texts:
            self._saw("sample", text)
        return super().find_positions(prompt, texts, **options)

    def score_calls(self, text: str, *arguments: Any, **options: Any) -> Any:
        self._saw("score", text)
        return super().score_calls(text, *arguments, **options)

    def losses_with_result(self, texts: Sequence[Any], **options: Any) -> Any:
        for text, _ in texts:
            self._saw("placebo", text)
        quick = FakeLanguageModel(self.script, sure_words=self.sure_words)  # which is not seen to score
        return quick.losses_with_result(texts, **options)


def fake_training(*arguments: Any) -> Any:
    """In place of `train_on_release`: the files of a model, the same bytes each time."""
    from toolformer_ops.runs.models import FINETUNING

    folder: Path = arguments[-1] / "trained"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * (MODEL_BYTES // 256))
    record = {"training_loss_nats_per_token": 1.0, "best_step": None, "development_perplexity": None}
    (folder / FINETUNING).write_text(json.dumps(record))
    return types.SimpleNamespace(directory=folder)


def prepare() -> Any:
    """Import what the stages import, put the model and the training in their places; returns the command line."""
    training = types.ModuleType("toolformer_ops.finetuning.release_training")
    vars(training)["train_on_release"] = fake_training
    sys.modules[training.__name__] = training  # not the real one, which imports torch
    import great_expectations  # noqa: F401
    import pyarrow.parquet  # noqa: F401

    import toolformer_ops.language_model
    import toolformer_ops.runs.models
    from toolformer_ops import __main__ as command_line
    from toolformer_ops.audit import (
        running,  # noqa: F401
    )

    model = SlowModel(SCRIPT, sure_words=frozenset({"things"}))
    toolformer_ops.language_model.models.model_identity = lambda *_, **__: model.identity  # type: ignore[assignment]
    toolformer_ops.runs.models.load_run_model = model.load  # type: ignore[assignment]
    return command_line.main


def run(main: Any, request: dict[str, Any]) -> None:
    """Be this command line from now on."""
    os.setpgid(0, 0)
    log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for target, source in ((0, null), (1, log), (2, log)):
        os.dup2(source, target)
    os.environ.update(request["environment"])
    sys.argv = ["toolformer-ops", *request["arguments"]]
    status = 1
    try:
        main()
        status = 0
    except SystemExit as ended:
        status = int(ended.code or 0) if not isinstance(ended.code, str) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def serve(main: Any) -> None:
    """Fork a process for each request until stdin ends."""
    running: dict[int, int] = {}
    wakeups, writer = os.pipe()
    os.set_blocking(writer, False)
    os.set_blocking(wakeups, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    selector = selectors.DefaultSelector()
    selector.register(0, selectors.EVENT_READ)
    selector.register(wakeups, selectors.EVENT_READ)
    unread = b""
    gc.collect()
    gc.freeze()

    def answer(**content: Any) -> None:
        os.write(1, json.dumps(content).encode() + b"\n")

    answer(ready=True)
    while True:
        for key, _ in selector.select():
            if key.fd == wakeups:
                os.read(wakeups, 4096)
                continue
            block = os.read(0, 65536)
            if not block:
                for process_id in running:
                    os.kill(process_id, signal.SIGKILL)
                return
            *lines, unread = (unread + block).split(b"\n")
            for line in lines:
                request = json.loads(line)
                process_id = os.fork()
                if not process_id:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    run(main, request)
                running[process_id] = request["id"]
                answer(id=request["id"], process=process_id)
        while running:
            process_id, status = os.waitpid(-1, os.WNOHANG)
            if not process_id:
                break
            answer(id=running.pop(process_id), status=os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    serve(prepare())
