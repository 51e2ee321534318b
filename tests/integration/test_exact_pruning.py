"""Pruning through the stages: what it leaves out, what it stores of it, and that the kept calls are those of a run without it.

The scripted model expects the word "and" anyway (0.25 nats without a call), so that no call before it can
save half a nat.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fake_language_model import FULL_CONTEXT, FakeLanguageModel
from tests.run_sql import run_sql
from toolformer_ops.audit.checking import check_tool
from toolformer_ops.config import Settings
from toolformer_ops.errors import UsageError
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.stages.execution import execute_stage
from toolformer_ops.stages.filtering import filter_stage
from toolformer_ops.stages.ingestion import ingest_corpus
from toolformer_ops.stages.run_setup import start_run
from toolformer_ops.stages.sampling import sample_stage
from toolformer_ops.stages.scoring import score_stage

TOOL = "Calculator"
SUM = "There were 2 cats and 3 dogs, a total of 5 animals."
SCRIPT = ("Calculator(2 + 3)", "Calculator(2 * 3)")


@pytest.fixture
def model(use_model):
    return use_model(FakeLanguageModel(SCRIPT, sure_words=frozenset({"and"})))


@pytest.fixture
def corpus(settings, tmp_path):
    texts = [SUM, *(f"Box {n} holds 2 pens and 3 caps, a total of 5 things." for n in range(4))]
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    ingest_corpus(settings, str(path))
    return path


def parameters(corpus: Path, **changes: Any) -> RunChoices:
    values = {
        "corpus": str(corpus),
        "model": "fake",
        "tools": [TOOL],
        "max_positions": 9,
        "samples_per_position": 2,
    }
    return RunChoices.parse(values | changes)


def annotate(settings: Settings, run_id: str, run: RunChoices) -> None:
    start_run(settings, run_id, run)
    filter_stage(settings, run_id, TOOL)
    for stage in (sample_stage, execute_stage, score_stage):
        stage(settings, run_id, TOOL, "0/1")


def kept(settings: Settings, run_id: str, threshold: float) -> list[tuple[Any, ...]]:
    """What the run keeps from the threshold on; call ids differ between recipes, so calls are named by their places."""
    return run_sql(
        settings,
        "select k.document_id, k.text_before, k.call_text, k.result, k.gain "
        "from kept_calls_at(:run, 'Calculator', :threshold) k order by 1, 2, 3",
        run=run_id,
        threshold=threshold,
    )


def of_the_sum(settings: Settings, columns: str, table: str) -> list[tuple[Any, ...]]:
    """Columns of the rows of a table that the run r has for `SUM`."""
    recipes = "select unnest(array[sampling_recipe_id, scoring_recipe_id]) from run_tools where run_id = 'r'"
    recipe = {"call_losses": "scoring_recipe_id", "stage_ledger": "recipe_id"}.get(
        table, "sampling_recipe_id"
    )
    return run_sql(
        settings,
        f"select {columns} from {table} t join documents using (document_id) where text = :text and {recipe} in ({recipes})",
        text=SUM,
    )


def test_what_cannot_be_kept_is_stored_with_its_bound_neither_sampled_nor_scored(settings, corpus, model):
    annotate(settings, "r", parameters(corpus))
    # 1. A position.
    at = SUM.index(" and")
    place = "position_char, position_probability, gain_bound"
    assert of_the_sum(settings, place, "pruned_positions") == [(at, 0.5, 0.25)]
    calls = {
        row[0]: row[1:]
        for row in of_the_sum(settings, "call_id, call_text, position_char", "candidate_calls")
    }
    assert at not in {position for _, position in calls.values()}
    # 2. A call: 2.0 - 2.25; the loss without the result could only lower it, and is not computed.
    losses = (
        "reason, loss_without_call, loss_without_result, loss_with_result, reduction_bound, loss_reduction"
    )
    found = {
        tuple(calls[row[0]]): tuple(row[1:])
        for row in of_the_sum(settings, f"call_id, {losses}", "call_losses")
    }
    sum_at = SUM.index(" 5")
    assert found["Calculator(2 + 3)", sum_at] == (None, 2.0, 2.5, 1.0, 1.0, 1.0)
    assert found["Calculator(2 * 3)", sum_at] == ("pruned_below", 2.0, None, 2.25, -0.25, None)
    counts = dict(map(tuple, of_the_sum(settings, "stage, counts", "stage_ledger")))
    assert [counts["sample"][name] for name in ("positions", "positions_pruned_below", "samples")] == [
        9,
        1,
        8 * 2,
    ]
    assert [counts["score"][name] for name in ("calls", "scored", "pruned_below")] == [16, 1, 15]
    # 3. The checks hold.
    results = check_tool(settings, "r", TOOL)
    assert all(result.success for result in results)
    observed = {result.claim.name: result.observed["rows"] for result in results}
    assert observed["what_was_pruned_cannot_be_kept"] == 5 * (1 + 15)


def test_at_every_threshold_from_prune_below_on_the_kept_calls_are_those_without_pruning(
    settings, corpus, model
):
    annotate(settings, "all", parameters(corpus, prune_below=0.0))
    assert run_sql(settings, "select count(*) from pruned_positions") == [(0,)]
    assert run_sql(settings, "select count(*), count(reason) from call_losses") == [(5 * 9 * 2, 0)]
    annotate(settings, "pruned", parameters(corpus))
    for threshold, calls in ((0.5, 5), (0.75, 5), (1.0, 5), (1.5, 0)):
        complete = kept(settings, "all", threshold)
        assert kept(settings, "pruned", threshold) == complete
        assert len(complete) == calls
    counts = "select calls, texts from threshold_counts where run_id = :run and threshold = 0.5"
    assert run_sql(settings, counts, run="all") == run_sql(settings, counts, run="pruned") == [(5, 5)]
    with pytest.raises(Exception, match="expected a threshold of at least"):
        kept(settings, "pruned", 0.25)
    assert len(kept(settings, "all", 0.125)) == 5


def test_in_a_context_window_a_call_must_beat_the_full_context_too(settings, corpus, model):
    annotate(settings, "whole", parameters(corpus))
    sampled = run_sql(settings, "select count(*) from candidate_calls")
    model.context_tokens.clear()
    annotate(settings, "r", parameters(corpus, scoring_context_tokens=16))
    assert set(model.context_tokens) == {16}
    assert run_sql(settings, "select count(*) from candidate_calls") == sampled
    assert run_sql(settings, "select count(distinct scoring_recipe_id) from call_losses") == [(2,)]
    reductions = run_sql(
        settings, "select loss_reduction, loss_without_call_full_context from scored_calls where run_id = 'r'"
    )
    assert reductions == [(FULL_CONTEXT - 1.0, FULL_CONTEXT)] * 5  # min(2.0, 2.5, 1.75) - 1.0
    assert all(result.success for result in check_tool(settings, "r", TOOL))


def test_a_keep_threshold_below_prune_below_is_refused_before_anything_is_written(settings, corpus, model):
    with pytest.raises(UsageError, match=r"at least prune_below, 0\.5 nats, found 0\.25"):
        start_run(settings, "r", parameters(corpus, keep_thresholds={TOOL: 0.25}))
    with pytest.raises(UsageError, match=r"found 0\.5 for Calculator \(the usual one\)"):
        start_run(settings, "r", parameters(corpus, prune_below=0.75))
    assert run_sql(settings, "select count(*) from annotation_runs") == [(0,)]
    assert start_run(settings, "r", parameters(corpus, prune_below=0.75, keep_thresholds={TOOL: 0.75})) == [
        TOOL
    ]
    assert run_sql(settings, "select keep_threshold, prune_below from run_tools") == [(0.75, 0.75)]
