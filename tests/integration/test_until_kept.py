"""Runs that end when enough calls are kept: the smallest prefix of the texts, in the order of their ids, that holds so many."""

import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.fake_language_model import FakeLanguageModel, StoppedError
from tests.run_sql import run_sql
from toolformer_ops.audit.checking import check_tools
from toolformer_ops.config import Settings
from toolformer_ops.records import Document
from toolformer_ops.runs import micro_batches
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.runs.models import RunModel
from toolformer_ops.stages.annotating import annotate_stage, annotate_until_kept, why_nothing_to_do
from toolformer_ops.stages.filtering import filter_stage
from toolformer_ops.stages.ingestion import ingest_corpus
from toolformer_ops.stages.planning import tools_to_do
from toolformer_ops.stages.release import release_of_run
from toolformer_ops.stages.run_setup import finish_run, start_run
from toolformer_ops.storage.history import history
from toolformer_ops.storage.history.history_queries import ask

TEXTS = 96
PAPER: dict[str, Any] = {"prune_below": 0.5, "placebos": 1}
PROBABILITY: dict[str, Any] = {"keep_rule": "probability", "prune_below": 0.1, "placebos": 1}
UNTIL = 8

Start = Callable[..., FakeLanguageModel]


def text_of(number: int) -> str:
    """A text in which a call helps if its number is divided by four: one of the two that are proposed."""
    total = {0: 5, 4: 9}.get(number % 8, 7)
    return f"Box {number} holds 2 pens and 3 caps, a total of {total} things."


def plain_prefix(texts: int = TEXTS, until_kept: int = UNTIL) -> str:
    """The last text of the prefix, computed from the texts: each that a call helps keeps one."""
    helped = [Document.of(text_of(number)).document_id for number in range(0, texts, 4)]
    return str(sorted(helped)[until_kept - 1])


@pytest.fixture
def small(settings, monkeypatch) -> Settings:
    """Micro-batches of eight texts, and claims of two seconds."""
    monkeypatch.setattr(micro_batches, "POLL_SECONDS", 0.02)
    return settings.model_copy(update={"micro_batch_documents": 8, "lock_seconds": 2.0})


@pytest.fixture
def start(small, tmp_path, use_model) -> Start:
    """`start(run, texts, **choices)`: a run over the first texts."""
    corpus = tmp_path / "c.jsonl"

    def start_with(run: str, texts: int = TEXTS, **changes: Any) -> FakeLanguageModel:
        if not corpus.exists():
            lines = [{"text": text_of(number)} for number in range(texts)]
            corpus.write_text("".join(json.dumps(line) + "\n" for line in lines))
            ingest_corpus(small, str(corpus))
        model: FakeLanguageModel = use_model(FakeLanguageModel(("Calculator(2 + 3)", "Calculator(4 + 5)")))
        values = {"corpus": str(corpus), "model": "fake", "tools": ["Calculator"], "max_positions": 2}
        choices = values | {"samples_per_position": 2} | changes
        start_run(small, run, RunChoices.parse(choices))
        return model

    return start_with


def annotate(settings: Settings, run: str) -> None:
    annotate_until_kept(settings, run, "Calculator", RunModel(settings))


def kept_documents(settings: Settings, run: str) -> list[str]:
    rows = run_sql(settings, f"select document_id from kept_calls_of('{run}') order by document_id")
    return [row.document_id for row in rows]


def last_document(settings: Settings, run: str) -> str | None:
    [row] = run_sql(settings, f"select last_document_id::text as last from run_tools where run_id = '{run}'")
    return row.last


@pytest.mark.parametrize(
    ("rule", "processes"), [(PAPER, 1), (PROBABILITY, 1), (PROBABILITY, 3), (PROBABILITY, 8)]
)
def test_the_texts_are_the_smallest_prefix_with_enough_kept_calls(small, start, rule, processes):
    start("r", until_kept=UNTIL, **rule)
    with ThreadPoolExecutor(processes) as pool:
        list(pool.map(lambda _: annotate(small, "r"), range(processes)))
    assert last_document(small, "r") == plain_prefix()


def test_a_process_that_is_killed_changes_no_prefix(small, start):
    model = start("r", until_kept=UNTIL, **PROBABILITY)
    kills = 0
    for texts in range(1, 400, 12):
        model.texts_before_stop = len(model.seen) + texts
        try:
            annotate(small, "r")
        except StoppedError:
            kills += 1
        else:
            break
    assert (kills > 3, last_document(small, "r")) == (True, plain_prefix())


def test_a_process_that_dies_beside_others_leaves_its_texts_to_them(small, start):
    model = start("r", until_kept=UNTIL, **PAPER)
    dead, lock = [], threading.Lock()
    find_positions = model.find_positions

    def dies_once(prompt: object, texts: Sequence[str], **options: Any) -> Any:
        with lock:
            if not dead:
                dead.append(texts)
                raise StoppedError
        return find_positions(prompt, texts, **options)

    model.find_positions = dies_once
    with ThreadPoolExecutor(3) as pool:
        ends = [pool.submit(annotate, small, "r") for _ in range(3)]
    failed = [end for end in ends if end.exception() is not None]
    assert (len(failed), last_document(small, "r")) == (1, plain_prefix())


@pytest.fixture
def prefix_of_whole(small, start):
    """The run `r`, which ends with enough kept calls, over texts that the run `whole` has annotated before."""
    start("whole", **PAPER)
    filter_stage(small, "whole", "Calculator")
    annotate_stage(small, "whole", "Calculator", "0/1")
    start("r", until_kept=UNTIL, **PAPER)
    annotate(small, "r")


def finish(settings: Settings, run: str) -> Any:
    """The stages behind; returns the release."""
    assert check_tools(settings, run).passed == ["Calculator"]
    return release_of_run(settings, run)


def test_a_release_holds_the_calls_of_the_prefix(small, prefix_of_whole):
    finish(small, "r")
    query = "select document_id::text from release_calls join run_releases using (release_id) where run_id = 'r' order by 1"
    assert [row.document_id for row in run_sql(small, query)] == kept_documents(small, "whole")[:UNTIL]


def test_numbers_of_a_run_are_those_of_its_prefix(small, prefix_of_whole):
    [counts] = run_sql(small, "select calls from threshold_counts where run_id = 'r' and is_keep_threshold")
    [scored] = run_sql(
        small, "select done, total from annotation_progress where run_id = 'r' and stage = 'score'"
    )
    texts = run_sql(small, "select 1 from run_tool_documents where run_id = 'r'")
    assert (counts.calls, scored.done, scored.total) == (UNTIL, len(texts), len(texts))


def test_the_history_has_the_calls_of_the_prefix(small, prefix_of_whole):
    finish(small, "r")
    finish_run(small, "r", "success")
    history.write(small)
    answer = ask(small, "select document_id from kept_calls where run_id = 'r' order by 1")
    assert [row[0] for row in answer.rows] == kept_documents(small, "r")


def test_a_prefix_is_no_finished_corpus(small, start):
    start("r", until_kept=UNTIL, **PAPER)
    annotate(small, "r")
    check_tools(small, "r")
    start("whole", **PAPER)
    assert tools_to_do(small, "whole").tools == ["Calculator"]


def test_a_corpus_with_too_few_calls_is_annotated_whole(small, start):
    start("r", until_kept=10_000, **PAPER)
    annotate(small, "r")
    assert last_document(small, "r") is None
    assert len(run_sql(small, "select 1 from stage_ledger where stage = 'score'")) == TEXTS
    assert check_tools(small, "r").passed == ["Calculator"]


def test_texts_beyond_the_prefix_are_not_read(small, start):
    model = start("r", until_kept=2, **PAPER)
    annotate(small, "r")
    assert len(run_sql(small, "select 1 from stage_ledger where stage = 'filter'")) == 32
    assert len(set(model.seen)) == 32


def test_a_later_run_goes_on_where_the_last_one_ended(small, start):
    no_placebos = {"placebos": 0, "placebo_sample": 0}
    first = start("r", until_kept=UNTIL, **no_placebos)
    annotate(small, "r")
    model = start("more", until_kept=2 * UNTIL, **no_placebos)
    annotate(small, "more")
    assert model.seen
    assert not set(model.seen) & set(first.seen)


def test_a_process_that_comes_too_late_starts_nothing(small, start):
    start("r", until_kept=UNTIL, **PAPER)
    before = why_nothing_to_do(small, "r", "Calculator")
    annotate(small, "r")
    assert (before, why_nothing_to_do(small, "r", "Calculator")) == (None, f"{UNTIL} calls are kept")


@pytest.mark.slow
def test_the_prefix_of_twenty_thousand_texts_is_the_plain_one_after_kills(small, start):
    texts, until_kept = 20_000, 1_000
    model = start("r", texts, until_kept=until_kept, **PROBABILITY)
    model.texts_before_stop = 1000
    large = small.model_copy(update={"micro_batch_documents": 64})

    def annotate_with_kills(_: int) -> None:
        while True:
            try:
                annotate(large, "r")
            except StoppedError:
                model.texts_before_stop = len(model.seen) + 2000
            else:
                return

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(annotate_with_kills, range(3)))
    filtered = run_sql(small, "select 1 from stage_ledger where stage = 'filter'")
    assert last_document(small, "r") == plain_prefix(texts, until_kept)
    assert len(filtered) < texts / 2
