"""Two runs over one corpus with equal recipes at the same time: each text is computed by one of them."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.fake_language_model import FakeLanguageModel
from tests.run_sql import run_sql
from toolformer_ops.config import REPOSITORY, Settings
from toolformer_ops.records import CallLosses
from toolformer_ops.runs import micro_batches
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.runs.claims import Claims, Tries
from toolformer_ops.runs.run_tools import load_run_tool
from toolformer_ops.stages.annotating import annotate_stage
from toolformer_ops.stages.filtering import filter_stage
from toolformer_ops.stages.ingestion import ingest_corpus
from toolformer_ops.stages.run_setup import start_run
from toolformer_ops.storage.postgres import database

TEXTS = 24
ROWS = {
    "candidate_calls": "document_id::text, call_id::text, sampling_recipe_id, call_text, position_char::text",
    "call_losses": "document_id::text, call_id::text, scoring_recipe_id, reason, loss_reduction::text",
    "stage_ledger": "document_id::text, stage, recipe_id, rows_hash::text, (counts - '{executed,from_cache}'::text[])::text",
}
"""Of an input that many texts ask, the ledger says which of them had it executed: that follows from the course of a run."""


class SlowModel(FakeLanguageModel):
    """Takes a moment for each text, so that two runs meet."""

    def find_positions(self, prompt: object, texts: Sequence[str], **options: Any) -> Any:
        time.sleep(0.005 * len(texts))
        return super().find_positions(prompt, texts, **options)

    def score_calls(self, text: str, *arguments: Any, **options: Any) -> list[CallLosses]:
        time.sleep(0.005)
        return super().score_calls(text, *arguments, **options)


class MeetingModel(SlowModel):
    """Its first two texts wait for each other, so that both of two runs have some."""

    def __init__(self) -> None:
        super().__init__()
        self.meeting = threading.Barrier(2)
        self.met: set[int] = set()

    def find_positions(self, prompt: object, texts: Sequence[str], **options: Any) -> Any:
        if threading.get_ident() not in self.met:
            self.met.add(threading.get_ident())
            self.meeting.wait(timeout=120)
        return super().find_positions(prompt, texts, **options)


@pytest.fixture(autouse=True)
def _often(monkeypatch):
    monkeypatch.setattr(micro_batches, "POLL_SECONDS", 0.05)


@pytest.fixture
def model(use_model):
    return use_model(SlowModel())


@pytest.fixture
def small(settings):
    """Micro-batches of two texts; a process that says nothing has claims for two seconds."""
    return settings.model_copy(update={"micro_batch_documents": 2, "lock_seconds": 2.0})


def start(settings: Settings, folder: Path, *runs: str, more: Sequence[str] = ()) -> None:
    """Runs with equal choices over the same texts, filtered."""
    corpus = folder / "corpus.jsonl"
    texts = [f"Box {number} holds 2 pens and 3 caps, a total of 5 things." for number in range(TEXTS)]
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in [*texts, *more]))
    ingest_corpus(settings, str(corpus))
    choices = {"corpus": str(corpus), "model": "fake", "tools": ["Calculator"], "max_positions": 3}
    choices |= {"samples_per_position": 2, "prune_below": 0.0, "placebos": 0, "placebo_sample": 0}
    for run in runs:
        start_run(settings, run, RunChoices.parse(choices))
    filter_stage(settings, runs[0], "Calculator")


def snapshot(settings: Settings) -> dict[str, list[Any]]:
    return {
        table: run_sql(settings, f"select {columns} from {table} order by 1, 2")
        for table, columns in ROWS.items()
    }


def forget_work(settings: Settings) -> None:
    run_sql(settings, "delete from stage_ledger where stage <> 'filter'")
    run_sql(settings, "truncate candidate_calls, call_losses, call_results")


def at_once(settings: Settings, *runs: str) -> None:
    with ThreadPoolExecutor(len(runs)) as threads:
        started = [threads.submit(annotate_stage, settings, run, "Calculator", "0/1") for run in runs]
        for thread in started:
            thread.result()


def test_each_text_is_sampled_once_by_two_runs_at_the_same_time(small, tmp_path, use_model):
    model = use_model(MeetingModel())
    start(small, tmp_path, "r1", "r2")
    at_once(small, "r1", "r2")
    sampled = Counter(model.added)
    assert len(sampled) == TEXTS
    assert set(sampled.values()) == {1}
    shares = dict(
        run_sql(small, "select run_id, sum(documents) from micro_batches where stage = 'sample' group by 1")
    )
    assert sum(shares.values()) == TEXTS
    assert set(shares) == {"r1", "r2"}


@pytest.mark.usefixtures("model")
def test_two_runs_at_the_same_time_leave_the_rows_of_one(small, tmp_path):
    start(small, tmp_path, "r1", "r2")
    annotate_stage(small, "r1", "Calculator", "0/1")
    alone = snapshot(small)
    assert len(alone["call_losses"]) == TEXTS * 3
    forget_work(small)
    at_once(small, "r1", "r2")
    assert snapshot(small) == alone


@pytest.mark.usefixtures("model")
def test_nothing_stays_claimed(small, tmp_path):
    start(small, tmp_path, "r1", "r2")
    at_once(small, "r1", "r2")
    assert run_sql(small, "select count(*) from document_claims union all select count(*) from claimers") == [
        (0,),
        (0,),
    ]


@pytest.mark.usefixtures("model")
def test_what_a_killed_process_had_claimed_is_done_by_the_other_run(small, tmp_path, monkeypatch):
    deadly = "deadly to sample: 2 pens and 3 caps, a total of 5 things."
    start(small, tmp_path, "r1", "r2", more=[deadly])
    annotate_stage(small, "r2", "Calculator", "0/1")
    undisturbed = snapshot(small)
    forget_work(small)

    monkeypatch.setenv("TOOLFORMER_LOCK_SECONDS", "2")
    words = [sys.executable, "-m", "tests.killed_stages", "r1", "1"]
    killed = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=True, env=os.environ)
    assert json.loads(killed.stdout) == [-signal.SIGKILL]
    assert run_sql(small, "select count(*) > 0 from document_claims") == [(True,)]
    annotate_stage(small, "r2", "Calculator", "0/1")
    assert snapshot(small) == undisturbed


def claims_of(settings: Settings, run: str, seconds: float = 60.0) -> Claims:
    engine = database.connect(settings)
    with database.transaction(engine) as connection:
        return Claims(engine, load_run_tool(connection, run, "Calculator"), "sample", seconds)


@pytest.mark.usefixtures("model")
class TestClaims:
    """Of documents that exist nowhere else."""

    documents = (uuid.UUID(int=1), uuid.UUID(int=2))

    def test_what_another_run_has_claimed_is_left_to_it(self, small: Settings, tmp_path: Path) -> None:
        start(small, tmp_path, "r1", "r2")
        one, other = claims_of(small, "r1"), claims_of(small, "r2")
        with one.held(), other.held():
            assert one.take(self.documents[:1]) == [self.documents[0]]
            assert other.take(self.documents) == [self.documents[1]]
            assert other.left_to_others == {self.documents[0]}

    def test_the_next_try_of_a_run_takes_its_claims_at_once(self, small: Settings, tmp_path: Path) -> None:
        start(small, tmp_path, "r1")
        killed, retry = claims_of(small, "r1"), claims_of(small, "r1")
        with killed.held(), retry.held():
            killed.take(self.documents)
            assert retry.take(self.documents) == list(self.documents)

    def test_claims_of_a_process_that_says_nothing_end(self, small: Settings, tmp_path: Path) -> None:
        start(small, tmp_path, "r1", "r2")
        frozen, other = claims_of(small, "r1"), claims_of(small, "r2")
        with frozen.held(), other.held():
            frozen.take(self.documents)
            run_sql(small, "update claimers set claims_until = now() - interval '1 s' where run_id = 'r1'")
            assert other.take(self.documents) == list(self.documents)

    def test_a_process_at_work_keeps_its_claims_beyond_their_first_end(
        self, small: Settings, tmp_path: Path
    ) -> None:
        start(small, tmp_path, "r1")
        with claims_of(small, "r1", seconds=0.4).held():
            before = run_sql(small, "select claims_until from claimers")
            for _ in range(100):
                if run_sql(small, "select claims_until from claimers") > before:
                    break
                time.sleep(0.05)
            else:
                pytest.fail("the end was never put off")

    def test_a_document_that_its_claimer_gave_back_undone_is_free(
        self, small: Settings, tmp_path: Path
    ) -> None:
        start(small, tmp_path, "r1", "r2")
        one, other = claims_of(small, "r1"), claims_of(small, "r2")
        with other.held():
            with one.held():
                one.take(self.documents)
                other.take(self.documents)
            assert other.wait_for_others(0.05) == list(self.documents)
            assert other.left_to_others == set()

    def test_a_process_of_another_run_at_work_is_no_death(self, small: Settings, tmp_path: Path) -> None:
        start(small, tmp_path, "r1", "r2")
        one, other = claims_of(small, "r1"), claims_of(small, "r2")
        at_work, tries = Tries(one.engine, one.run, "sample"), Tries(other.engine, other.run, "sample")
        with one.held():
            one.take(self.documents)
            with at_work.begun(self.documents) as try_id:
                with database.transaction(other.engine) as connection:
                    assert tries.left(connection) == []
                run_sql(small, "update claimers set claims_until = now() - interval '1 s'")
                with database.transaction(other.engine) as connection:
                    assert [left.try_id for left in tries.left(connection)] == [try_id]
