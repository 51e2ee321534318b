"""Texts that kill the process which works on them, or alone do not fit into memory: all others are done, and these are counted."""

import json
import signal
import subprocess
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.annotated_runs import AnnotatedRun, unregistered
from tests.fake_language_model import FakeLanguageModel
from tests.run_sql import run_sql
from toolformer_ops.annotation.scoring import ExecutedCall
from toolformer_ops.audit.checking import check_tool
from toolformer_ops.audit.running import audit, require_sound
from toolformer_ops.call_syntax import Call
from toolformer_ops.config import REPOSITORY, Settings
from toolformer_ops.errors import DeviceMemoryError, UsageError
from toolformer_ops.records import Document
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.runs.claims import OUT_OF_MEMORY, FailedDocument, retry_failed
from toolformer_ops.runs.micro_batches import work_off
from toolformer_ops.runs.run_tools import Shard, load_run_tool
from toolformer_ops.stages.annotating import annotate_stage
from toolformer_ops.stages.execution import ExecuteWork
from toolformer_ops.stages.filtering import filter_stage
from toolformer_ops.stages.ingestion import ingest_corpus
from toolformer_ops.stages.run_setup import finish_run, start_run
from toolformer_ops.stages.scoring import CallToScore, ScoreWork
from toolformer_ops.storage.postgres import database
from toolformer_ops.tools.base import ToolOutput
from toolformer_ops.tools.registry import get_tool

TABLES = {
    "candidate_calls": "document_id, call_id, sampling_recipe_id",
    "call_losses": "document_id, call_id, reason, loss_reduction, scoring_recipe_id",
    "stage_ledger": "document_id, stage, recipe_id, rows_written, counts::text, rows_hash",
}
DEATHS_OF_ONE = 3 + 2  # at 4 documents three, at 2 and at 1 another
# Half of the 4 were done when scoring killed the process: of the others each was tried alone.
DEATHS_BETWEEN_ROUNDS = 3 + 1


@pytest.fixture(autouse=True)
def model(use_model):
    """What the stages of this process load: a model that no text harms."""
    return use_model(FakeLanguageModel())


def start(settings: Settings, folder: Path, *texts: str) -> None:
    """A run over these texts and ten others, filtered."""
    corpus = folder / "corpus.jsonl"
    others = [f"Box {number} holds 2 pens and 3 caps, a total of 5 things." for number in range(10)]
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in (*texts, *others)))
    ingest_corpus(settings, str(corpus))
    choices = {"corpus": str(corpus), "model": "fake", "tools": ["Calculator"], "max_positions": 3}
    start_run(settings, "r", RunChoices.parse(choices | {"samples_per_position": 2, "prune_below": 0.0}))
    filter_stage(settings, "r", "Calculator")


def killed_stages(tries: int) -> list[int]:
    """The exit statuses of one try of `annotate` after the other."""
    command = [sys.executable, "-m", "tests.killed_stages", "r", str(tries)]
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return list(json.loads(ended.stdout))


def snapshot(settings: Settings, without: Sequence[uuid.UUID] = ()) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of the stages but those of these documents."""
    found = {
        table: run_sql(settings, f"select {columns} from {table} order by 1, 2")
        for table, columns in TABLES.items()
    }
    return {table: [row for row in of_table if row[0] not in without] for table, of_table in found.items()}


def test_texts_that_kill_their_process_are_given_up_while_all_others_are_done(settings, tmp_path):
    deadly = [f"deadly to {stage}: 2 pens and 3 caps, a total of 5 things." for stage in ("sample", "score")]
    start(settings, tmp_path, *deadly)
    assert killed_stages(20) == [-signal.SIGKILL] * (DEATHS_BETWEEN_ROUNDS + DEATHS_OF_ONE) + [0]

    # 1. They are counted under their reason, where they were given up, and the run's check passes.
    given_up = (
        "select stage, text, deaths from run_failed_documents failed "
        "join documents document on document.document_id = cast(failed.document_id as uuid) order by 1"
    )
    assert run_sql(settings, given_up) == [
        ("sample", deadly[0], DEATHS_BETWEEN_ROUNDS),
        ("score", deadly[1], DEATHS_OF_ONE),
    ]
    assert run_sql(settings, "select * from micro_batch_tries") == []
    check_tool(settings, "r", "Calculator")
    lost = "select stage, count, documents from yield_by_stage where reason = 'process_killed' and is_loss order by 1"
    counted = run_sql(settings, lost)
    assert counted == [("sample", 1, 1), ("score", 3, 1)]  # a text; the calls of a text, one a position
    finish_run(settings, "r", "success")
    assert run_sql(settings, lost) == counted  # stored now
    require_sound(audit(settings, "run", "r"))

    # 2. Tried again, on a machine on which they do not kill: the rows are those of an undisturbed run.
    disturbed = snapshot(settings)
    ids = [row[0] for row in run_sql(settings, "select document_id from failed_documents")]
    annotate_stage(settings, "r", "Calculator", "0/1")
    assert snapshot(settings) == disturbed  # nobody tries them again unasked
    assert {found.stage for found in retry_failed(settings, "r")} == {"sample", "score"}
    annotate_stage(settings, "r", "Calculator", "0/1")
    assert run_sql(settings, "select * from failed_documents") == []
    undisturbed = snapshot(settings)
    assert len(undisturbed["call_losses"]) == 12 * 3
    assert snapshot(settings, without=ids) == {
        table: [row for row in of_table if row[0] not in ids] for table, of_table in disturbed.items()
    }
    with pytest.raises(UsageError, match="expected a run, found 'nobody'"):
        retry_failed(settings, "nobody")


def test_where_no_text_passes_the_machine_is_at_fault_instead_of_a_text(
    settings, model, tmp_path, monkeypatch
):
    start(settings, tmp_path)

    def too_little(*_: object, **__: object) -> None:
        raise DeviceMemoryError("expected memory for one of texts, found too little.")

    monkeypatch.setattr(model, "find_positions", too_little)
    with pytest.raises(DeviceMemoryError, match="no other was ever done with this model"):
        annotate_stage(settings, "r", "Calculator", "0/1")
    assert run_sql(settings, "select * from failed_documents") == []
    assert run_sql(settings, "select 1 from micro_batch_tries") == []


def test_a_document_that_scoring_gives_up_keeps_what_its_calls_had_to_say_themselves():
    work = ScoreWork(
        run=unregistered(),
        shard=Shard(),
        tool=get_tool("Calculator"),
        load_model=lambda: pytest.fail("loaded"),
    )
    document = Document.of("It kills.")
    reasons = ("divides_by_zero", None, None)
    calls = []
    for at, reason in enumerate(reasons):
        executed = ExecutedCall(token=at, call=Call("Calculator", "1 / 0"), results=None, reason=reason)
        calls.append(CallToScore(uuid.UUID(int=at), executed))
    done = work.give_up([(document, calls)], OUT_OF_MEMORY)
    written = [(row.values["call_id"], row.values["reason"]) for row in done.rows]
    assert written == [(call.call_id, call.executed.reason or OUT_OF_MEMORY) for call in calls]
    [outcome] = done.outcomes
    assert (outcome.document_id, outcome.rows_written) == (document.document_id, 3)
    assert outcome.counts == {"calls": 3, "divides_by_zero": 1, OUT_OF_MEMORY: 2}


def test_what_does_not_fit_into_memory_is_halved_until_what_never_fits_is_given_up(settings, monkeypatch):
    run = AnnotatedRun(settings, {"Calculator": 0.5})
    documents = [run.add_text(f"text {number} has no end") for number in range(7)]
    for number, document in enumerate(documents):
        run.add_call("Calculator", document, "has", f"{number} + 0", "1")
    run.complete("Calculator")
    run.change("delete from stage_ledger where stage in ('execute', 'score')")
    run.change("truncate call_results")
    with database.transaction(run.engine) as connection:
        registered = load_run_tool(connection, run.run_id, "Calculator")
    answering: Any = SimpleNamespace(
        run=lambda inputs: [ToolOutput((f"answer to {item}",)) for item in inputs]
    )
    of_run: Any = {
        "run": registered,
        "shard": Shard(),
        "runner": lambda: answering,
        "time_limit_seconds": 30.0,
    }
    work = ExecuteWork(**of_run)
    compute = work.compute

    sizes: list[int] = []

    def at_most_two(asked: Any) -> Any:
        sizes.append(len(asked.calls))
        if len(asked.calls) > 2:
            raise MemoryError
        if "3 + 0" in asked.inputs.values():
            raise DeviceMemoryError("expected memory for one of sequences, found too little.")
        return compute(asked)

    monkeypatch.setattr(work, "compute", at_most_two)
    totals = work_off(settings, run.engine, work)
    assert (totals["documents"], totals["with_result"], totals[OUT_OF_MEMORY]) == (7, 6, 1)
    # 7 are 3 and 4; 3 are 1 and 2; 4 are 2 and 2; and the document that never fits is tried alone, as is the
    # one beside it.
    assert sorted(sizes) == sorted([7, 3, 4, 1, 2, 2, 2, 1, 1])
    answered = {
        row[0]: row[1:] for row in run_sql(settings, "select input, results, reason from call_results")
    }
    assert answered.pop("3 + 0") == ([], OUT_OF_MEMORY)
    assert answered == {f"{number} + 0": ([f"answer to {number} + 0"], None) for number in (0, 1, 2, 4, 5, 6)}
    assert retry_failed(settings, run.run_id) == [
        FailedDocument("Calculator", "execute", documents[3].document_id, OUT_OF_MEMORY)
    ]
    again = work_off(settings, run.engine, ExecuteWork(**of_run))
    assert (again["documents"], again["with_result"]) == (1, 1)


def test_after_a_process_that_was_told_to_end_no_text_is_suspected(settings, tmp_path):
    start(settings, tmp_path, "told: 2 pens and 3 caps, a total of 5 things.")
    assert killed_stages(1) == [143]
    assert run_sql(settings, "select * from micro_batch_tries") == []
    done = run_sql(settings, "select document_id from stage_ledger where stage = 'sample'")
    assert len(done) % 4 == 0  # whole micro-batches; the one at work was dropped
    annotate_stage(settings, "r", "Calculator", "0/1")
    assert run_sql(settings, "select count(*) from stage_ledger where stage = 'score'") == [(11,)]
