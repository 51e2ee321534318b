"""A run whose tool proposes its calls itself: a scripted language model judges those of the real Calculator."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.annotated_files import annotate_file
from tests.fake_language_model import FakeLanguageModel, StoppedError, UseModel
from tests.run_sql import run_sql
from toolformer_ops.audit.checking import check_release, check_tool
from toolformer_ops.audit.running import audit
from toolformer_ops.config import Settings
from toolformer_ops.errors import ConfigurationError, UsageError
from toolformer_ops.records import Document
from toolformer_ops.release.format import read_release
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.stages.execution import execute_stage
from toolformer_ops.stages.filtering import filter_stage
from toolformer_ops.stages.ingestion import ingest_corpus
from toolformer_ops.stages.release import release_of_run, release_prefix
from toolformer_ops.stages.run_setup import start_run
from toolformer_ops.stages.sampling import sample_stage
from toolformer_ops.stages.scoring import score_stage
from toolformer_ops.storage.objects.publication import ObjectStore
from toolformer_ops.tools.base import ProposedCall, ProposedCalls
from toolformer_ops.tools.calculator import TOOL as CALCULATOR

TEXTS = [
    f"The box of Ann holds {n} pens and 31 caps, a total of {n + 31} things."
    for n in (*range(21, 29), *range(41, 45))
]
FIRST = TEXTS[0]
TOOL = "Calculator"
CALLS = (
    "select document_id, position_token, call_text, position_probability, sample_count, proposed_by, "
    "loss_reduction from candidate_calls left join call_losses using (document_id, call_id) order by 1, 2, 3"
)


@pytest.fixture
def corpus(settings: Settings, tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    ingest_corpus(settings, str(path))
    return path


@pytest.fixture
def model(use_model: UseModel) -> FakeLanguageModel:
    return use_model(FakeLanguageModel(["Calculator(21 + 31)", "Calculator(1 + 1)"]))


def start(settings: Settings, corpus: Path, run_id: str = "r", **changes: Any) -> None:
    values = {"corpus": str(corpus), "model": "fake", "tools": [TOOL], "proposer": "tool", "placebos": 0}
    numbers = {"placebo_sample": 0, "max_positions": 3, "samples_per_position": 2}
    start_run(settings, run_id, RunChoices.parse(values | numbers | changes))
    filter_stage(settings, run_id, TOOL)


def annotate(settings: Settings, shards: tuple[str, ...] = ("0/1",), run_id: str = "r") -> None:
    for stage in (sample_stage, execute_stage, score_stage):
        for shard in shards:
            stage(settings, run_id, TOOL, shard)


def calls(settings: Settings) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in run_sql(settings, CALLS)]


def calls_of_first(settings: Settings) -> list[tuple[Any, ...]]:
    sql = (
        "select call_text, sample_count, proposed_by, position_probability from candidate_calls "
        "join documents using (document_id) where text = :text order by position_token, call_text"
    )
    return [tuple(row) for row in run_sql(settings, sql, text=FIRST)]


def counts_of_first(settings: Settings) -> dict[str, int]:
    sql = (
        "select counts from stage_ledger join documents using (document_id) "
        "where stage = 'sample' and text = :text"
    )
    [(counts,)] = run_sql(settings, sql, text=FIRST)
    return {name: count for name, count in counts.items() if count}


def propose(monkeypatch: pytest.MonkeyPatch, *calls: ProposedCall) -> None:
    monkeypatch.setattr(type(CALCULATOR), "proposals", lambda *_: ProposedCalls(calls))


def test_a_proposed_call_is_a_candidate_without_a_sample(settings, corpus, model) -> None:
    start(settings, corpus)
    annotate(settings)
    assert calls_of_first(settings) == [("Calculator(21 + 31)", 0, "tool", None)]


def test_a_tool_that_proposes_needs_no_model_to_sample(settings, corpus, model) -> None:
    start(settings, corpus)
    sample_stage(settings, "r", TOOL, "0/1")
    assert (len(calls(settings)), model.loads, model.seen) == (12, 0, [])


def test_a_tool_that_proposes_needs_no_model_to_sample_beside_tools_that_do(settings, corpus, model) -> None:
    start(settings, corpus, proposer="tool-or-model")
    sample_stage(settings, "r", TOOL, "0/1")
    assert (len(calls(settings)), model.loads, model.seen) == (12, 0, [])


def test_a_proposed_call_has_losses(settings, corpus, model) -> None:
    start(settings, corpus)
    annotate(settings)
    assert [call[-1] for call in calls(settings)] == [1.0] * 12


def test_proposals_are_counted(settings, corpus, model) -> None:
    start(settings, corpus)
    annotate(settings)
    assert counts_of_first(settings) == {"paragraphs": 1, "positions": 1, "proposals": 1, "candidates": 1}


def test_shards_give_the_rows_of_one_process(settings, corpus, model) -> None:
    start(settings, corpus)
    annotate(settings, ("1/3", "0/3", "2/3"))
    rows = calls(settings)
    run_sql(settings, "truncate candidate_calls, call_losses, stage_ledger")
    filter_stage(settings, "r", TOOL)
    annotate(settings)
    assert rows == calls(settings)


def test_a_process_that_is_stopped_gives_the_rows_of_an_undisturbed_one(
    settings, corpus, model, monkeypatch
) -> None:
    start(settings, corpus)
    annotate(settings)
    rows = calls(settings)
    run_sql(settings, "truncate candidate_calls, call_losses, stage_ledger")
    filter_stage(settings, "r", TOOL)
    asked: list[Document] = []
    own = type(CALCULATOR).proposals

    def stops(self: Any, document: Document) -> ProposedCalls:
        asked.append(document)
        if len(asked) == 7:
            raise StoppedError
        return own(self, document)

    monkeypatch.setattr(type(CALCULATOR), "proposals", stops)
    small = settings.model_copy(update={"micro_batch_tokens": 40})
    with pytest.raises(StoppedError):
        sample_stage(small, "r", TOOL, "0/1")
    assert 0 < len(calls(settings)) < 12
    annotate(settings)
    assert calls(settings) == rows


def test_a_call_that_the_model_proposes_too_is_one_candidate(settings, corpus, model) -> None:
    start(settings, corpus, proposer="tool+model")
    annotate(settings)
    assert calls_of_first(settings)[2:] == [
        ("Calculator(1 + 1)", 1, "model", 0.5),
        ("Calculator(21 + 31)", 1, "both", 0.5),
        ("Calculator(1 + 1)", 1, "model", 0.5),
        ("Calculator(21 + 31)", 1, "model", 0.5),
    ]


def test_the_checks_of_a_run_account_for_proposals(settings, corpus, model) -> None:
    start(settings, corpus, proposer="tool+model", prune_below=0.0)
    annotate(settings)
    assert [result.claim.name for result in check_tool(settings, "r", TOOL) if not result.success] == []


BAD_PROPOSALS = [
    (ProposedCall(-1, "1 + 1"), "proposal_outside_the_text"),
    (ProposedCall(len(FIRST), "1 + 1"), "proposal_outside_the_text"),
    (ProposedCall(5, "1 + 1"), "proposal_inside_a_word"),
    (ProposedCall(0, "1 + 1"), "proposal_inside_a_word"),
    (ProposedCall(3, "1 + 1) -> 2] ["), "proposal_that_is_no_call"),
    (ProposedCall(3, "1 + 1 -> 2"), "proposal_that_is_no_call"),
    (ProposedCall(3, "1 +\n1"), "proposal_that_is_no_call"),
    (ProposedCall(3, " "), "proposal_that_is_no_call"),
    (ProposedCall(3, "1 + \ud800"), "proposal_that_is_no_call"),
    (ProposedCall(3, "1 +\x00 1"), "proposal_that_is_no_call"),
    (ProposedCall(3, "1 + " * 2000), "proposal_that_is_no_call"),
]


@pytest.mark.parametrize(("call", "reason"), BAD_PROPOSALS)
def test_a_bad_proposal_is_counted(settings, corpus, model, monkeypatch, call, reason) -> None:
    propose(monkeypatch, call)
    start(settings, corpus)
    annotate(settings)
    assert (counts_of_first(settings)[reason], calls(settings)) == (1, [])


def test_of_many_proposals_for_a_text_the_first_are_taken(settings, corpus, model, monkeypatch) -> None:
    propose(monkeypatch, *(ProposedCall(3, f"{n} + 1") for n in range(100_000)))
    start(settings, corpus, document_limit=1)
    annotate(settings)
    [(counts,)] = run_sql(settings, "select counts from stage_ledger where stage = 'sample'")
    assert (counts["candidates"], counts["proposal_beyond_the_limit"]) == (200, 99_800)


def test_a_run_whose_tool_cannot_propose_is_refused_with_those_that_can(settings, corpus, model) -> None:
    with pytest.raises(UsageError, match=r"can propose calls \(Calculator.*\), found WikiSearch, QA"):
        start(settings, corpus, tools=[TOOL, "WikiSearch", "QA"])


def test_a_tool_that_would_propose_other_calls_by_now_ends_the_stage(
    settings, corpus, model, monkeypatch
) -> None:
    start(settings, corpus)
    monkeypatch.setattr(type(CALCULATOR), "proposer_version", lambda *_: "calculator-next")
    with pytest.raises(ConfigurationError, match="found tool:calculator-next"):
        sample_stage(settings, "r", TOOL, "0/1")


def test_an_audit_computes_proposed_calls_again(settings, corpus, model) -> None:
    start(settings, corpus)
    annotate(settings)
    outcome = audit(settings, "run", "r", sample=100)
    assert outcome.findings == 0


@pytest.fixture
def released(settings, corpus, model, tmp_path) -> Path:
    """The files of the release of a run whose tool proposes."""
    start(settings, corpus)
    annotate(settings)
    release = release_of_run(settings, "r")
    store = ObjectStore(settings)
    store.fetch(release_prefix(str(release.release_id)), tmp_path / "release")
    return tmp_path / "release"


def test_the_card_of_a_release_says_that_the_tools_proposed(released) -> None:
    card = (released / "README.md").read_text()
    assert "Places and calls were proposed by the tools themselves, and kept by `fake`" in card


def test_the_card_says_that_the_model_proposed_for_tools_that_cannot(
    settings, corpus, model, tmp_path
) -> None:
    start(settings, corpus, proposer="tool-or-model")
    annotate(settings)
    release = release_of_run(settings, "r")
    ObjectStore(settings).fetch(release_prefix(str(release.release_id)), tmp_path / "release")
    card = (tmp_path / "release" / "README.md").read_text()
    assert "Calls were proposed by the tools that can, and for the other tools by `fake`" in card


def test_a_released_call_that_a_tool_proposed_has_no_probability(released) -> None:
    probabilities = {call.position_probability for text in read_release(released) for call in text.calls}
    assert probabilities == {None}


def test_the_checks_of_a_release_take_calls_without_a_probability(settings, released) -> None:
    results = check_release(settings, "r")
    assert [result.claim.name for result in results if not result.success] == []


# On a file, without services


def test_a_file_is_annotated_with_the_calls_that_a_tool_proposes(settings, tmp_path, tiny_model_dir) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text(json.dumps({"text": FIRST}) + "\n")
    values = {"proposer": "tool", "placebos": 0, "placebo_sample": 0, "prune_below": 0.0}
    [row] = annotate_file(settings, path, TOOL, str(tiny_model_dir), values)
    shown = (row["call"], row["result"], row["after"], row["proposed_by"], row["position_probability"])
    assert shown == ("Calculator(21 + 31)", "52", " 52 things.", "tool", None)
