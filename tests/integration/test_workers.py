"""Workers as processes, which are killed again and again, and workers on S3."""

import json
import multiprocessing
import random
import time
from collections.abc import Mapping
from multiprocessing.context import ForkProcess
from pathlib import Path

import pytest

from tests.fake_language_model import FakeLanguageModel
from toolformer_ops.config import Settings
from toolformer_ops.on_a_file.annotate import annotator as tool_annotator
from toolformer_ops.on_a_file.annotate.workers import Worker
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.storage.objects.parts import FolderParts, Parts, open_parts

TEXTS = [f"Box {n} holds {n} pens and 1 cap, a total of {n + 1} things." for n in range(2, 242)]
SCRIPT = tuple(f"Calculator({number} + 1)" for number in range(2, 6))
VALUES = {"max_positions": 9, "samples_per_position": 4}
KILLS = 50
WORKERS = 3


def files_of(parts: Parts) -> Mapping[str, bytes]:
    """The files but for who began what."""
    return {name: parts.get(name) or b"" for name in parts.names() if not name.startswith("claims/")}


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "docs.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return path


@pytest.fixture
def undisturbed(corpus, tmp_path, monkeypatch):
    """The files that one worker leaves in a folder."""
    annotate(Settings(), corpus, f"{tmp_path}/undisturbed/", monkeypatch)
    return files_of(FolderParts(tmp_path / "undisturbed"))


def annotate(
    settings: Settings,
    corpus: Path,
    out: str,
    monkeypatch: pytest.MonkeyPatch,
    model: FakeLanguageModel | None = None,
) -> None:
    scripted = model or FakeLanguageModel(SCRIPT)
    monkeypatch.setattr(tool_annotator, "load_scoring_model", lambda *_: scripted)
    values = {"preset": "small_model", "tools": ["Calculator"], "corpus": str(corpus), "model": "fake"}
    Worker.of(settings, RunChoices.parse({**values, **VALUES}), out, 4, 2).work()


def test_the_files_on_s3_are_those_of_a_folder(s3_settings, corpus, undisturbed, monkeypatch):
    out = f"s3://{s3_settings.s3_bucket}/calls/of-a-test/"
    annotate(s3_settings, corpus, out, monkeypatch)
    assert files_of(open_parts(s3_settings, out)) == undisturbed


class SlowModel(FakeLanguageModel):
    """Takes its time, so that most kills are in the middle of a file."""

    def _see(self, text: str) -> None:
        time.sleep(0.01)
        super()._see(text)


def work_slowly(corpus: Path, out: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        annotate(Settings(), corpus, out, patch, SlowModel(SCRIPT))


@pytest.mark.slow
def test_workers_that_are_killed_fifty_times_leave_the_files_of_one(corpus, tmp_path, undisturbed):
    out = tmp_path / "calls"
    fork = multiprocessing.get_context("fork")

    def started() -> ForkProcess:
        process = fork.Process(target=work_slowly, args=(corpus, f"{out}/"))
        process.start()
        return process

    def begun() -> set[int]:
        """The processes that have begun a file."""
        claims = FolderParts(out / "claims")
        return {int((claims.get(name) or b"x 0").split()[-1]) for name in claims.names()}

    # 1. Each is killed a moment after it has begun its first file, and started again.
    kills = 0
    workers = [started() for _ in range(WORKERS)]
    try:
        while kills < KILLS:
            at_work = begun()
            for number, process in enumerate(workers):
                assert process.is_alive()
                if process.pid in at_work:
                    time.sleep(random.uniform(0, 0.2))  # noqa: S311 - of a test
                    process.kill()
                    process.join()
                    kills += 1
                    workers[number] = started()
            time.sleep(0.01)
    finally:
        for process in workers:
            process.kill()
            process.join()
    # 2. One worker that is left alone.
    work_slowly(corpus, f"{out}/")
    files = files_of(FolderParts(out))
    assert {name: files[name] for name in undisturbed} == undisturbed
    # Workers look past the parts of the pool that others have begun: a few beyond its end are computed, too.
    assert {name.split("/")[0] for name in files.keys() - undisturbed.keys()} <= {"pool", "tries"}
