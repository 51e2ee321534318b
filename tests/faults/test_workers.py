"""Workers on one folder or S3 prefix while a store fails: the files are those of an undisturbed worker.

A worker that ends with an error is started again, as its message says. Workers that are killed are in
`tests/integration/test_workers.py`. `make faults` sets SEED and TIMES.
"""

import errno
import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fake_language_model import FakeLanguageModel
from tests.faults.disturbances import S3_SAYS
from tests.faults.proxies import ObjectStoreProxy, RequestFate
from toolformer_ops.config import Settings
from toolformer_ops.errors import ToolformerError
from toolformer_ops.on_a_file.annotate.workers import Worker
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.storage.objects.parts import FolderParts, Parts, open_parts

pytestmark = pytest.mark.slow

SEED, TIMES = os.environ.get("SEED", "short"), int(os.environ.get("TIMES", "1"))
SEEDS = [f"{SEED}.{number}" for number in range(TIMES)] if TIMES > 1 else [SEED]
MOST_STARTS = 40
SHARE = 0.1
"""Of the requests, or of the writes, that fail."""
TEXTS = [f"Box {n} holds {n} pens and 1 cap, a total of {n + 1} things." for n in range(2, 42)]
Rule = Callable[[str, str], RequestFate]


def files_of(parts: Parts) -> dict[str, bytes]:
    """The files but for who began what."""
    return {name: parts.get(name) or b"" for name in parts.names() if not name.startswith("claims/")}


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    fake = FakeLanguageModel([f"Calculator({number} + 1)" for number in range(2, 6)])
    monkeypatch.setattr("toolformer_ops.on_a_file.annotate.annotator.load_scoring_model", fake.load)
    path = tmp_path / "docs.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return path


def work(settings: Settings, corpus: Path, out: str) -> None:
    values = {"tools": ["Calculator"], "corpus": str(corpus), "model": "fake", "max_positions": 3}
    Worker.of(settings, RunChoices.parse(values), out, 3, 4).work()


@pytest.fixture
def undisturbed(corpus, tmp_path):
    work(Settings(), corpus, f"{tmp_path}/undisturbed/")
    return files_of(FolderParts(tmp_path / "undisturbed"))


@pytest.fixture
def proxy(object_store_server):
    proxy = ObjectStoreProxy(int(object_store_server.address.endpoint.rpartition(":")[2]))
    yield proxy
    proxy.close()


def errors_until_done(work: Callable[[], None]) -> list[str]:
    """Start a worker until it ends well; returns the errors with which it ended before."""
    errors: list[str] = []
    while len(errors) < MOST_STARTS:
        try:
            work()
        except (ToolformerError, OSError) as error:
            errors.append(str(error))
        else:
            return errors
    raise AssertionError(errors)


def fails(draw: random.Random, fate: RequestFate) -> Rule:
    """Some of the requests have this fate; with a 409 only those to write what is absent."""

    def rule(method: str, _path: str) -> RequestFate:
        fits = "absent" in method or not fate.startswith("409")
        return fate if fits and draw.random() < SHARE else "pass"

    return rule


def is_slow(draw: random.Random) -> Rule:
    def rule(_method: str, _path: str) -> RequestFate:
        time.sleep(draw.uniform(0, 0.05))
        return "pass"

    return rule


RULES: dict[str, Callable[[random.Random], Rule]] = {
    "cut": lambda draw: fails(draw, "cut"),
    "reply-lost": lambda draw: fails(draw, "lose_reply"),
    "409": lambda draw: fails(draw, "409"),
    "409-written": lambda draw: fails(draw, "409_written"),
    "500": lambda draw: fails(draw, "500"),
    "503": lambda draw: fails(draw, "503"),
    "slow": is_slow,
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", RULES)
def test_a_store_that_fails_leaves_the_files_of_an_undisturbed_worker(
    s3_settings, corpus, undisturbed, proxy, name, seed
):
    disturbed = s3_settings.model_copy(update={"s3_endpoint_url": f"http://127.0.0.1:{proxy.port}"})
    proxy.rule = RULES[name](random.Random(f"{seed} {name}"))  # noqa: S311
    out = f"s3://{s3_settings.s3_bucket}/calls/"
    errors = errors_until_done(lambda: work(disturbed, corpus, out))
    assert files_of(open_parts(s3_settings, out)) == undisturbed
    assert all(any(word in error for word in S3_SAYS.split("|")) for error in errors)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_full_disk_leaves_the_files_of_an_undisturbed_worker(
    corpus, tmp_path, undisturbed, monkeypatch, seed
):
    draw = random.Random(f"{seed} disk")  # noqa: S311

    def full_now_and_then(_descriptor: int) -> None:
        if draw.random() < SHARE:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("toolformer_ops.storage.objects.parts.os.fsync", full_now_and_then)
        errors = errors_until_done(lambda: work(Settings(), corpus, f"{tmp_path}/calls/"))
    assert files_of(FolderParts(tmp_path / "calls")) == undisturbed
    assert errors
