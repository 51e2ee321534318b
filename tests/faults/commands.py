"""The command line with a scripted model, imported whole: a process forked from here takes a tenth of a second and not five.

All but the language model and the training is what a deployment runs. The model answers by rule
(`tests/fake_language_model.py`), and writes into the file FAULTS_SEEN which process saw which text in which
stage. To import this module puts both in their places: only the server from which `tests/faults/world.py`
forks its commands does.
"""

import json
import os
import sys
import time
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.fake_language_model import UNFINISHED, FakeLanguageModel

SECONDS_PER_TEXT = 0.004
"""Long enough that kills hit a text at work, too."""
SCRIPT = ("Calculator(21 + 31)", "Calculator(7 / 0)", "Calculator 2 +", UNFINISHED)
MODEL_BYTES = 40_000


class SlowModel(FakeLanguageModel):
    """The fake model, which takes a moment for each text and leaves a trace."""

    def _saw(self, stage: str, text: str) -> None:
        line = f"{stage}\t{os.getpid()}\t{text}\n".encode()
        trace = os.open(os.environ["FAULTS_SEEN"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
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


def fake_training(_settings: Any, job: Any) -> Any:
    """In place of `train_on_release`: the files of a model, the same bytes each time."""
    from toolformer_ops.runs.models import FINETUNING

    folder: Path = job.folder / "trained"
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

    import toolformer_ops.audit.running
    import toolformer_ops.language_model
    import toolformer_ops.runs.models
    from toolformer_ops import __main__ as command_line

    model = SlowModel(SCRIPT, sure_words=frozenset({"things"}))
    toolformer_ops.language_model.models.model_identity = lambda *_, **__: model.identity  # type: ignore[assignment]
    toolformer_ops.runs.models.load_run_model = model.load  # type: ignore[assignment]
    toolformer_ops.runs.models.load_tokenization = lambda *_: model  # type: ignore[assignment,return-value]
    return command_line.main


MAIN = prepare()


def run(arguments: Sequence[str], environment: Mapping[str, str], log: str) -> None:
    """Be this command line from now on."""
    os.setpgid(0, 0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update(environment)
    sys.argv = ["toolformer-ops", *arguments]
    status = 1
    try:
        MAIN()
        status = 0
    except SystemExit as ended:
        status = int(ended.code or 0) if not isinstance(ended.code, str) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
