"""From text to scored calls through the stages, with a scripted language model and the real calculator and Postgres.

What is proved: every sample is counted, a stage that stops in the middle and runs again gives the rows of an
undisturbed run, shards and their order change nothing, and a second run under the same recipes finds nothing
to do.
"""

import dataclasses
import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.annotated_runs import unregistered
from tests.fake_language_model import (
    TOKENS,
    UNFINISHED,
    FakeLanguageModel,
    StoppedError,
    UseModel,
    loaded_by_stages,
)
from tests.hostile_queries import database_tool, sqlite_shop
from tests.run_sql import run_sql
from tests.servers import RunningPostgres, copied_database, settings_of
from tests.tool_files import forget_tools, write_tool
from toolformer_ops.annotation.candidates import Candidate, LostSample
from toolformer_ops.annotation.scoring import ExecutedCall
from toolformer_ops.call_syntax import Call
from toolformer_ops.config import Settings
from toolformer_ops.errors import ConfigurationError, CorpusError, ToolError, UsageError
from toolformer_ops.language_model.losses import weighted_loss
from toolformer_ops.records import CallLosses, CallPosition, Document, Paragraph, content_uuid
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.runs.explaining import explain_stored
from toolformer_ops.runs.micro_batches import StartUp
from toolformer_ops.runs.models import RunModel
from toolformer_ops.runs.run_tools import Shard
from toolformer_ops.stages import planning
from toolformer_ops.stages.annotating import annotate_stage
from toolformer_ops.stages.execution import CallInputs, ExecuteWork, execute_stage
from toolformer_ops.stages.filtering import FilterWork, filter_stage
from toolformer_ops.stages.ingestion import ingest_corpus
from toolformer_ops.stages.planning import plan_shards, shard_count
from toolformer_ops.stages.run_setup import ENDED, close_run, finish_run, start_run
from toolformer_ops.stages.sampling import (
    SampleWork,
    SmallestKeys,
    candidate_row,
    lost_row,
    pruned_row,
    sample_stage,
)
from toolformer_ops.stages.scoring import CallToScore, ScoreWork, score_stage
from toolformer_ops.storage.postgres import database
from toolformer_ops.storage.postgres.database import TableRow
from toolformer_ops.tools.base import FilterDecision, ToolOutput
from toolformer_ops.tools.registry import get_tool

SUM = "There were 2 cats and 3 dogs, a total of 5 animals."  # rule (ii): "total of" and a number
SMUGGLED = "Sums: [Calculator(1 + 1) -> 3] a total of 3."
SCRIPT = (*["Calculator(2 + 3)"] * 2, "Calculator(7 / 0)", "QA(how many?)", "Calculator 2 +", UNFINISHED)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve documents with sums, one without numbers, one that smuggles in a call, one whose losses are not numbers."""
    texts = [SUM, "No number at all.", SMUGGLED, "nan " + SUM]
    texts += [f"Box {n} holds 2 pens and 3 caps, a total of 5 things." for n in range(11)]
    path = tmp_path_factory.mktemp("corpora") / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def parameters(corpus: Path, **changes: Any) -> RunChoices:
    values = {"corpus": str(corpus), "model": "fake", "tools": ["Calculator"], "max_positions": 3}
    values |= {"samples_per_position": 6, "prune_below": 0.0, "placebos": 0, "placebo_sample": 0}
    return RunChoices.parse(values | changes)


def annotate(settings: Settings, run_id: str, shards: tuple[str, ...] = ("0/1",)) -> None:
    for stage in (filter_stage, sample_stage, execute_stage, score_stage):
        for shard in shards:
            stage(settings, run_id, "Calculator", shard)


def start(
    settings: Settings,
    corpus: Path,
    use_model: UseModel,
    model: FakeLanguageModel | None = None,
    **choices: Any,
) -> FakeLanguageModel:
    """The run r over the corpus, with a model that says `SCRIPT`."""
    used = use_model(model or FakeLanguageModel(SCRIPT))
    ingest_corpus(settings, str(corpus))
    start_run(settings, "r", parameters(corpus, **choices))
    return used


@pytest.fixture(scope="module")
def annotated_template(
    postgres_server: RunningPostgres, migrated_template: str, corpus: Path
) -> Iterator[str]:
    """A database with the run r annotated, made once, to be copied."""
    with copied_database(postgres_server, migrated_template) as name, pytest.MonkeyPatch.context() as patch:
        start(settings_of(postgres_server.address.dsn(name)), corpus, loaded_by_stages(patch))
        annotate(settings_of(postgres_server.address.dsn(name)), "r")
        yield name


@pytest.fixture
def annotated(
    annotated_template: str, postgres_server: RunningPostgres, use_model: UseModel
) -> Iterator[Settings]:
    """The settings of a copy of the annotated run, and the same model."""
    use_model(FakeLanguageModel(SCRIPT))
    with copied_database(postgres_server, annotated_template) as name:
        yield settings_of(postgres_server.address.dsn(name))


CALLS = "sampling_recipe_id, document_id, position_token, call_text, call_id, position_char, sample_count, input_key"
LOSSES = "scoring_recipe_id, document_id, call_id, result, reason, loss_without_call, loss_with_result, loss_reduction"
LEDGER = "stage, recipe_id, document_id, rows_written, counts::text"
DECISIONS = "filter_recipe_id, document_id, paragraph, kept, reason, start_char, end_char"
TABLES = {
    "candidate_calls": CALLS,
    "call_losses": LOSSES,
    "stage_ledger": LEDGER,
    "filter_decisions": DECISIONS,
}


def rows_of(settings: Settings, table: str, columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in run_sql(settings, f"select {columns} from {table} order by 1, 2, 3, 4")]


def snapshot(settings: Settings) -> dict[str, list[tuple[Any, ...]]]:
    return {table: rows_of(settings, table, columns) for table, columns in TABLES.items()}


def forget(settings: Settings) -> None:
    run_sql(settings, f"truncate {', '.join(TABLES)}, pruned_positions, call_results")


def counts_of(settings: Settings, stage: str, text: str) -> dict[str, int]:
    of_document = "from stage_ledger join documents using (document_id) where stage = :stage and text = :text"
    [(counts,)] = run_sql(settings, f"select counts {of_document}", stage=stage, text=text)
    return counted(counts)


def counted(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}


class Watched(FakeLanguageModel):
    """Remembers for each question how many texts it had, and near which thresholds."""

    asked: tuple[Any, ...] = ()

    def score_texts(self, texts: Any, **options: Any) -> Any:
        self.asked = (*self.asked, (len(texts), options["prune_below"], options["keep_threshold"]))
        return super().score_texts(texts, **options)


def test_every_sample_is_counted_under_what_became_of_it(annotated: Settings) -> None:
    # 3 positions of 6 samples: at each, two are one candidate, one divides by zero, and three fall away
    lost_samples = dict.fromkeys(("sample_of_another_tool", "sample_does_not_parse", "sample_without_end"), 3)
    sampled = {"paragraphs": 1, "positions": 3, "samples": 18, "candidates": 6, "duplicates_merged": 3}
    assert counts_of(annotated, "sample", SUM) == sampled | lost_samples


def test_lost_samples_can_be_looked_at(annotated: Settings) -> None:
    lost = """select sample_text, sum(sample_count)::integer from run_lost_samples lost
              join documents document on document.document_id::text = lost.document_id
              where run_id = 'r' and text = :text group by reason, 1 order by reason"""
    assert run_sql(annotated, lost, text=SUM) == [
        ("Calculator 2 +", 3),
        ("QA(how many?)", 3),
        (UNFINISHED, 3),
    ]


def test_every_call_is_counted_under_what_became_of_it(annotated: Settings) -> None:
    executed = {"calls": 6, "inputs": 2, "with_result": 3}
    assert counts_of(annotated, "execute", SUM).items() >= executed.items()
    assert counts_of(annotated, "score", SUM).items() >= {"calls": 6, "scored": 3}.items()


def test_a_text_that_holds_calls_is_refused(annotated: Settings) -> None:
    refused = "select text from filter_decisions join documents using (document_id) where reason = 'holds_call_markup'"
    assert run_sql(annotated, refused) == [(SMUGGLED,)]


def test_losses_that_are_no_numbers_are_counted(annotated: Settings) -> None:
    not_numbers = counts_of(annotated, "score", "nan " + SUM)
    assert (not_numbers["loss_not_finite"], "scored" in not_numbers) == (3, False)


def test_in_any_order_few_lost_samples_but_those_with_the_smallest_keys_are_stored() -> None:
    keys = [content_uuid(str(number)) for number in range(300)]
    for ordered, at_most in ((keys, 80), (keys[::-1], 80), (sorted(keys, reverse=True), 300)):
        smallest = SmallestKeys(at_most=10)
        taken = [key for key in ordered if smallest.takes("sample_without_end", key)]
        assert set(sorted(keys)[:10]) <= set(taken)
        assert len(taken) <= at_most  # 10 (1 + ln(300 / 10)) is 44
        assert all(smallest.takes("sample_without_end", key) for key in sorted(keys)[:10])  # computed again
        assert smallest.takes("sample_does_not_parse", max(keys))


def test_the_view_of_lost_samples_shows_as_many_as_are_stored() -> None:
    assert (
        f"place <= {SmallestKeys().at_most}"
        in (database.SQL_DIR / "views" / "20_run_lost_samples.sql").read_text()
    )


def test_the_log_probabilities_of_the_losses_are_stored(annotated: Settings) -> None:
    columns = "loss_without_call, loss_without_result, loss_with_result, reason, token_log_probabilities, scored_tokens"
    rows = rows_of(annotated, "call_losses", columns)
    assert {None} < {row[3] for row in rows}
    for *stored, _, lines, tokens in rows:
        if stored[0] is None:
            assert (lines, tokens) == (None, None)
        else:
            assert [weighted_loss(line) for line in lines] == pytest.approx(stored)
            assert tuple(tokens) == TOKENS


def test_a_stored_call_is_explained_without_a_model(annotated: Settings) -> None:
    [(place,)] = run_sql(annotated, "select document_id from documents where text = :text", text=SUM)
    document_id = str(place)
    with database.transaction(database.connect(annotated)) as connection:
        helps = explain_stored(connection, "r", document_id=document_id, at=SUM.index(" 5"))[0]
        assert explain_stored(connection, "r", call_id=helps["call_id"]) == [helps]
        for wrong in ({}, {"call_id": "c1"}, {"document_id": document_id, "at": 1}):
            with pytest.raises(UsageError):
                explain_stored(connection, "r", **wrong)
    assert (
        helps.items()
        >= {"call": "Calculator(2 + 3)", "result": "5", "loss_reduction": 1.0, "kept": True}.items()
    )
    assert [token["log_p_with_result"] for token in helps["tokens"]] == [-1.0] * 5
    assert sum(
        token["weight"] * -token["log_p_without_result"] for token in helps["tokens"]
    ) == pytest.approx(2.5)
    assert helps["text_before"] + helps["text_after"] == SUM


def test_a_stored_call_is_explained_by_the_weights_that_its_run_had(annotated: Settings) -> None:
    [(place,)] = run_sql(annotated, "select document_id from documents where text = :text", text=SUM)
    change = (
        "update recipes set definition = jsonb_set(definition, '{weights}', '[9, 9, 9, 9, 9]') returning 1"
    )
    run_sql(annotated, change)
    with database.transaction(database.connect(annotated)) as connection:
        helps = explain_stored(connection, "r", document_id=str(place), at=SUM.index(" 5"))[0]
    assert {token["weight"] for token in helps["tokens"]} == {9}


def test_shards_follow_the_work() -> None:
    # Less than two parts of 60 s; at most 64; long texts, of which none is divided.
    for work, shards in (
        ((0, 0.0), 1),
        ((59, 118.0), 1),
        ((60, 120.0), 2),
        ((10**6, 2e6), 64),
        ((3, 1200.0), 3),
    ):
        assert shard_count(*work, 60.0, 64) == shards


def test_shards_follow_the_start_of_the_newest_processes_that_load_the_model(
    settings: Settings, corpus: Path, use_model: UseModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(settings, corpus, use_model)
    filter_stage(settings, "r", "Calculator")
    monkeypatch.setattr(planning, "SECONDS_PER_DOCUMENT", 60.0)
    monkeypatch.setattr(planning, "START_UP_SECONDS", 0.0)
    began = (
        "insert into micro_batches (run_id, tool, stage, recipe_id, documents, rows_written, start_up_seconds) "
        "select 'r', 'Calculator', :stage, 'of-another-tool', 1, 1, unnest(cast(:seconds as real[]))"
    )
    # 13 documents of 60 s are 780 s.
    for stage, seconds, shards in (
        ("filter", [100.0], 13),  # loads no model
        ("sample", [8.0, 10.0, 100.0], 3),  # 20 * 10 s
        ("score", [20.0] * 20, 1),  # 20 * 20 s, and the older three do not count
    ):
        run_sql(settings, began, stage=stage, seconds=seconds)
        assert len(plan_shards(settings, "r", "Calculator")) == shards


TWICE = "In 1990 it sold 2 pens. In 1991 it sold 4 pens."
HALVES = ((0, 23), (24, 47))
"""The bounds of two paragraphs."""


def written(rows: Iterable[TableRow], table: str) -> list[Any]:
    """What is written into a table, columns as attributes."""
    return [SimpleNamespace(**row.values) for row in rows if row.table == table]


def halves() -> tuple[Document, list[Paragraph]]:
    document = Document.of(TWICE)
    return document, [Paragraph(document, number, *bounds) for number, bounds in enumerate(HALVES)]


def test_the_id_of_a_call_is_made_of_all_that_distinguishes_it() -> None:
    document, (first, second) = halves()
    other = Paragraph(Document.of("Another text."), 0, 0, 13)

    def row(recipe: str = "a", of: Paragraph = first, token: int = 3, call_input: str = "1 + 1") -> Any:
        position = CallPosition(token, 10, 0.25)
        candidate = Candidate(
            position, Call("Calculator", call_input), "2", sample_count=4, input_only_after=True
        )
        [found] = written([candidate_row(recipe, get_tool("Calculator"), of, candidate)], "candidate_calls")
        return found

    rows = [row(), row("b"), row(of=second), row(of=other), row(token=4), row(call_input="1 + 2")]
    assert len({one.call_id for one in rows}) == len(rows)
    assert row() == rows[0]
    assert rows[0].call_id == content_uuid("a", str(document.document_id), "0", "3", "Calculator(1 + 1)")
    # Equal questions to the tool have one key, whatever the call says; places are those of the document.
    assert {one.input_key for one in rows} == {content_uuid("2")}
    assert [one.position_char for one in (rows[0], rows[2])] == [10, 10]


def test_the_place_of_a_pruned_position_is_that_of_its_document() -> None:
    _, (_, second) = halves()
    [pruned] = written(
        [pruned_row("a", second, CallPosition(3, 34, 0.25, pruned_by=0.125))], "pruned_positions"
    )
    assert (pruned.position_char, pruned.paragraph, pruned.gain_bound) == (34, 1, 0.125)


def test_a_document_of_two_paragraphs_has_the_rows_of_both() -> None:
    document, paragraphs = halves()
    model: Any = FakeLanguageModel(("Calculator(2 + 2)",), sure_words=frozenset({"sold"}))
    run = unregistered(max_positions=20, samples_per_position=1, prune_below=0.5)
    work = SampleWork(run=run, shard=Shard(), tool=get_tool("Calculator"), load_model=lambda: model)
    nothing = Document.of("Nothing was kept of it.")
    done = work.compute({document.document_id: paragraphs, nothing.document_id: []})
    # Five places in each paragraph, and " sold" is pruned.
    for table, expected in (
        ("candidate_calls", "1990 it 2 pens. 1991 it 4 pens."),
        ("pruned_positions", "sold sold"),
    ):
        rows = written(done.rows, table)
        assert [TWICE[row.position_char :].split(maxsplit=1)[0] for row in rows] == expected.split()
        assert [row.paragraph for row in rows] == [int(row.position_char >= 24) for row in rows]
    of_document, of_nothing = done.outcomes
    assert (of_document.rows_written, of_nothing.rows_written) == (8, 0)
    counts = {"paragraphs": 2, "positions": 10, "positions_pruned_below": 2, "candidates": 8}
    assert of_document.counts.items() >= counts.items()


def executed_call(at: int, token: int, results: list[str] | None, **others: Any) -> CallToScore:
    values: dict[str, Any] = {"reason": None, "input_only_after": False, **others}
    executed = ExecutedCall(token=token, call=Call("Calculator", "2 + 2"), results=results, **values)
    return CallToScore(uuid.UUID(int=at), executed)


def score_work(load_model: Callable[[], Any], tool: str = "Calculator", **choices: Any) -> ScoreWork:
    run = dataclasses.replace(unregistered(tool, **choices), keep_threshold=0.75)
    return ScoreWork(run=run, shard=Shard(), tool=get_tool(tool), load_model=load_model)


def test_calls_are_scored_in_the_whole_of_their_documents() -> None:
    document, _ = halves()
    short = Document.of("It sold 4.")
    calls = [
        executed_call(0, 4, ["2"]),  # the fifth word of each sentence is the sum
        executed_call(1, 10, ["4"]),
        executed_call(2, 10, ["2"]),
        executed_call(3, 7, None, reason="divides_by_zero"),
    ]
    model = FakeLanguageModel()
    work = score_work(lambda: model, prune_below=0.0)
    done = work.compute([(document, calls), (short, [executed_call(5, 2, ["4"])])])
    losses = {
        row.call_id.int: row.reason or row.loss_with_result for row in written(done.rows, "call_losses")
    }
    assert losses == {0: 1.0, 1: 1.0, 2: 2.25, 3: "divides_by_zero", 5: 1.0}
    assert sorted(model.seen) == ["In 1990 it sold 2 pens. In 1991 it sold 4 pens.", "It sold 4."]
    assert [(of.document_id, of.rows_written, dict(of.counts)) for of in done.outcomes] == [
        (document.document_id, 4, {"calls": 4, "scored": 3, "divides_by_zero": 1}),
        (short.document_id, 1, {"calls": 1, "scored": 1}),
    ]
    # A document's share of the seconds: calls times characters, 4 x 47 and 1 x 10.
    of_document, of_short = (of.seconds for of in done.outcomes)
    assert of_document / of_short == pytest.approx(188 / 10)


def test_scoring_loads_a_model_where_a_call_has_losses_to_get() -> None:
    loaded: list[str] = []
    work = score_work(lambda: loaded.append("m"))
    document = Document.of(TWICE)
    failed = executed_call(0, 4, None, reason="divides_by_zero")
    work.prepare([(document, [failed])])
    assert loaded == []
    work.prepare([(document, [failed, executed_call(1, 4, ["2"], input_only_after=True)])])
    assert loaded == ["m"]


def test_scoring_of_a_search_passes_over_what_its_own_document_says() -> None:
    own, other = (
        Document.of("A ball is a round object. It flies 2 m."),
        Document.of("Something else flies 2 m."),
    )
    results = ["A ball is a round object.", "2"]
    model = Watched()
    work = score_work(lambda: model, "WikiSearch", prune_below=0.25)
    loaded = [
        (document, [executed_call(at, document.text.split(" ").index("2"), results)])
        for at, document in enumerate((own, other))
    ]
    rows = written(work.compute(loaded).rows, "call_losses")
    assert [(row.result_rank, row.result) for row in rows] == [(1, "2"), (0, results[0])]
    assert model.asked == ((2, 0.25, 0.75),)


@pytest.mark.parametrize("number_format", ["bfloat16", "float32"])
def test_calls_that_rounding_may_decide_are_counted_as_no_loss(
    settings: Settings, use_model: UseModel, corpus: Path, number_format: str
) -> None:
    class Marking(FakeLanguageModel):
        def _exact_losses(self, *call: Any) -> CallLosses:
            found = super()._exact_losses(*call)
            return dataclasses.replace(found, number_format=number_format, within_rounding=True)

    start(settings, corpus, use_model, Marking(SCRIPT), document_limit=1)
    annotate(settings, "r")
    yields = "select reason, count, is_loss from yield_by_stage where stage = 'score' and count > 0"
    found = {row.reason: (row.count, row.is_loss) for row in run_sql(settings, yields)}
    assert found["within_rounding"] == (3, False)
    assert found.get("verified_in_float32") == ((3, False) if number_format == "float32" else None)


@pytest.mark.parametrize(("choice", "batches"), [("auto", 7), ("on", 1), ("all", 1)])
def test_where_weights_may_take_turns_a_shard_is_scored_in_one_micro_batch(
    settings: Settings,
    use_model: UseModel,
    corpus: Path,
    monkeypatch: pytest.MonkeyPatch,
    choice: str,
    batches: int,
) -> None:
    monkeypatch.setattr("toolformer_ops.runs.micro_batches.ROUND_SECONDS", 0.0)  # a round is a micro-batch
    small = settings.model_copy(update={"dtype": "bfloat16", "micro_batch_documents": 2})
    model: Any = start(small, corpus, use_model, Watched(SCRIPT), verify_in_float32=choice)
    filter_stage(small, "r", "Calculator", "0/1")
    annotate_stage(small, "r", "Calculator", "0/1")
    assert len(model.asked) == batches
    assert sum(texts for texts, *_ in model.asked) == 13


@pytest.mark.parametrize("stops", ["sampling", "executing", "scoring"])
def test_a_process_that_starts_again_gives_the_rows_of_an_undisturbed_one_without_repeating_a_stage(
    annotated: Settings, use_model: UseModel, monkeypatch: pytest.MonkeyPatch, stops: str
) -> None:
    small = annotated.model_copy(update={"micro_batch_documents": 1})
    undisturbed = snapshot(small)
    forget(small)
    filter_stage(small, "r", "Calculator")
    # Thirteen texts are sampled and scored one by one; eight of them are executed together.
    compute, batches = ExecuteWork.compute, iter((1,))

    def first_only(work: ExecuteWork, loaded: Any) -> Any:
        if next(batches, None) is None:
            raise StoppedError
        return compute(work, loaded)

    with monkeypatch.context() as patch:
        if stops == "executing":
            patch.setattr(ExecuteWork, "compute", first_only)
        seen = {"sampling": 5, "executing": None, "scoring": 13 + 5}[stops]
        use_model(FakeLanguageModel(SCRIPT, texts_before_stop=seen))
        with pytest.raises(StoppedError):
            annotate_stage(small, "r", "Calculator", "0/1")
    stages = [row[0] for row in rows_of(small, "stage_ledger", LEDGER)]
    done = tuple(stages.count(stage) for stage in ("sample", "execute", "score"))
    assert done == {"sampling": (5, 0, 0), "executing": (13, 8, 0), "scoring": (13, 13, 5)}[stops]
    again = use_model(FakeLanguageModel(SCRIPT))
    annotate_stage(small, "r", "Calculator", "0/1")
    assert snapshot(small) == undisturbed
    assert len(again.added) == 13 - done[0]


def test_an_input_is_run_once_for_all_documents_of_a_micro_batch_counted_with_the_first() -> None:
    failed = ToolOutput.none("divides_by_zero")
    runner: Any = SimpleNamespace(
        run=lambda inputs: [failed if one == "7 / 0" else ToolOutput((f"{one}\0",)) for one in inputs]
    )
    keys = {one: content_uuid(one) for one in ("1 + 1", "7 / 0", "2 + 2")}
    calls = {
        uuid.UUID(int=1): [keys["1 + 1"], keys["1 + 1"], keys["7 / 0"]],  # asks the same twice
        uuid.UUID(int=2): [keys["1 + 1"], keys["2 + 2"]],
    }
    work = ExecuteWork(run=unregistered(), shard=Shard(), runner=lambda: runner, time_limit_seconds=30.0)
    done = work.compute(
        CallInputs(calls, {key: one for one, key in keys.items()}, answered={keys["2 + 2"]: None})
    )
    assert [(row.input, row.results, row.reason) for row in written(done.rows, "call_results")] == [
        ("1 + 1", ["1 + 1␀"], None),  # Postgres stores no U+0000
        ("7 / 0", [], "divides_by_zero"),
    ]
    assert [(of.rows_written, counted(of.counts)) for of in done.outcomes] == [
        (2, {"calls": 3, "inputs": 2, "executed": 2, "with_result": 2, "divides_by_zero": 1}),
        (0, {"calls": 2, "inputs": 2, "from_cache": 2, "with_result": 2}),
    ]


def test_what_a_tool_says_of_an_input_is_in_its_row() -> None:
    said = ToolOutput.none("query_invalid", "no such\n column: a\0\ud800")
    runner: Any = SimpleNamespace(run=lambda inputs: [said] * len(inputs))
    work = ExecuteWork(run=unregistered(), shard=Shard(), runner=lambda: runner, time_limit_seconds=30.0)
    key = content_uuid("SELECT a")
    done = work.compute(CallInputs({uuid.UUID(int=1): [key]}, {key: "SELECT a"}, answered={}))
    assert [row.message for row in written(done.rows, "call_results")] == ["no such column: a␀?"]


def test_a_filters_decisions_are_counted_by_reason_for_each_paragraph() -> None:
    decided = ((True, "good", 0, 0, 3), (False, "bad", 1, 4, 7), (True, "good", 2, 8, 9))
    decisions = [FilterDecision(*fields) for fields in decided]
    tool: Any = SimpleNamespace(
        spec=get_tool("Calculator").spec, filter_by=lambda _rule, _document: decisions
    )
    document = Document.of("abc def g")
    done = FilterWork(run=unregistered(), shard=Shard(), tool=tool).compute([document])
    rows = written(done.rows, "filter_decisions")
    found = tuple((row.kept, row.reason, row.paragraph, row.start_char, row.end_char) for row in rows)
    assert found == decided
    [outcome] = done.outcomes
    assert (outcome.rows_written, outcome.counts) == (3, {"paragraphs": 3, "kept": 2, "good": 2, "bad": 1})


def test_neither_the_number_of_shards_nor_their_order_changes_the_rows(annotated: Settings) -> None:
    whole = snapshot(annotated)
    forget(annotated)
    annotate(annotated, "r", ("2/3", "0/3", "1/3"))
    changed = {table for table, rows in snapshot(annotated).items() if rows != whole[table]}
    assert changed <= {"stage_ledger"}  # what ran an input first


def test_a_second_run_under_the_same_recipes_loads_no_model(
    annotated: Settings, corpus: Path, use_model: UseModel
) -> None:
    before, model = snapshot(annotated), use_model(FakeLanguageModel(SCRIPT))
    start_run(annotated, "second", parameters(corpus, keep_thresholds={"Calculator": 0.1}))
    annotate(annotated, "second")
    annotate_stage(annotated, "second", "Calculator", "0/1")
    assert (snapshot(annotated), model.loads) == (before, 0)
    assert plan_shards(annotated, "second", "Calculator") == ["0/1"]


LONG = " ".join(f"Crate {number} holds 2 pens and 3 caps, a total of 5 things." for number in range(20))


def test_the_log_says_how_many_tokens_are_done(
    settings: Settings, corpus: Path, use_model: UseModel, caplog: pytest.LogCaptureFixture
) -> None:
    two = corpus.with_name("two.jsonl")
    two.write_text(json.dumps({"text": LONG}) + "\n" + json.dumps({"text": SUM}) + "\n")
    start(settings, two, use_model)
    filter_stage(settings, "r", "Calculator")
    with caplog.at_level("INFO"):
        sample_stage(settings.model_copy(update={"micro_batch_tokens": 100}), "r", "Calculator", "0/1")
    short, both = (-(-len(SUM) // 4), -(-len(SUM) // 4) + -(-len(LONG) // 4))
    said = [message.rpartition(",")[0] for message in caplog.messages if message.startswith("sample: ")]
    for number, tokens in ((1, short), (2, both)):
        assert f"sample: {number} of 2 documents, {tokens} of {both} tokens" in said


@pytest.mark.parametrize(("least_share_of_a_pass", "documents"), [(0.0, [*[2] * 6, 1]), (0.25, [10, 3])])
def test_a_small_shard_that_a_model_reads_is_cut_into_parts_that_fill_some_of_a_pass(
    settings: Settings,
    corpus: Path,
    use_model: UseModel,
    monkeypatch: pytest.MonkeyPatch,
    least_share_of_a_pass: float,
    documents: list[int],
) -> None:
    monkeypatch.setattr("toolformer_ops.runs.micro_batches.LEAST_SHARE_OF_A_PASS", least_share_of_a_pass)
    start(settings, corpus, use_model)
    filter_stage(settings, "r", "Calculator", "0/1")
    annotate_stage(settings, "r", "Calculator", "0/1")
    scored = run_sql(settings, "select documents from micro_batches where stage = 'score' order by batch_id")
    assert [row.documents for row in scored] == documents


def test_all_other_texts_are_scored_before_a_long_one_is_sampled(
    settings: Settings, corpus: Path, use_model: UseModel
) -> None:
    longer = corpus.with_name("longer.jsonl")
    longer.write_text(json.dumps({"text": LONG}) + "\n" + corpus.read_text())
    model = start(settings, longer, use_model)
    small = settings.model_copy(update={"micro_batch_tokens": len(LONG) // 8, "micro_batch_documents": 4})
    filter_stage(settings, "r", "Calculator", model=RunModel(settings, StartUp(loads_model=False)))
    annotate_stage(small, "r", "Calculator", "0/1", RunModel(small, StartUp()))
    in_rounds = snapshot(settings)
    columns = "stage, documents, coalesce(start_up_seconds, 0) > 0"
    filtered, *batches = run_sql(settings, f"select {columns} from micro_batches order by batch_id")
    assert [started for *_, started in (filtered, *batches)] == [True, True, *[False] * 11]
    # Thirteen short texts; then the long one, alone. Execution takes more texts together.
    rounds = [("sample", 4)] * 3 + [("sample", 1), ("execute", 13)] + [("score", 4)] * 3 + [("score", 1)]
    assert [row[:2] for row in batches] == [*rounds, ("sample", 1), ("execute", 1), ("score", 1)]
    assert model.loads == 1
    # The rows are those of single stages, whatever the rounds.
    forget(settings)
    annotate(settings, "r")
    assert snapshot(settings) == in_rounds


def test_a_run_cannot_go_on_with_other_parameters_another_model_or_another_version_of_its_tool(
    annotated: Settings, corpus: Path, use_model: UseModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = annotated
    assert start_run(settings, "r", parameters(corpus)) == ["Calculator"]
    with pytest.raises(ConfigurationError, match="other parameters"):
        start_run(settings, "r", parameters(corpus, seed=1))
    use_model(FakeLanguageModel(identity="another"))
    with pytest.raises(ConfigurationError):
        start_run(settings, "r", parameters(corpus))
    use_model(FakeLanguageModel(SCRIPT))
    run_sql(settings, "truncate call_results")
    monkeypatch.setattr(get_tool("Calculator"), "version", lambda *_: "of tomorrow")
    with pytest.raises(
        ConfigurationError, match=r"was started with Calculator version .*, found of tomorrow"
    ):
        execute_stage(settings, "r", "Calculator", "0/1")
    assert run_sql(settings, "select 1 from call_results") == []
    with pytest.raises(ConfigurationError, match="execution_recipe_id, scoring_recipe_id are not those"):
        start_run(settings, "r", parameters(corpus))


def test_a_night_closes_an_earlier_run_of_its_schedule_that_is_still_open(
    annotated: Settings, corpus: Path
) -> None:
    run_sql(annotated, "update annotation_runs set schedule = 'nightly', state = 'running'")
    start_run(annotated, "s", parameters(corpus), schedule="nightly")
    states = run_sql(annotated, "select run_id, state <> 'running' from annotation_runs order by run_id")
    assert [tuple(row) for row in states] == [("r", True), ("s", False)]


def test_a_run_by_hand_closes_no_other(annotated: Settings, corpus: Path) -> None:
    run_sql(annotated, "update annotation_runs set schedule = 'nightly', state = 'running'")
    start_run(annotated, "s", parameters(corpus))
    assert run_sql(annotated, "select state from annotation_runs where run_id = 'r'") == [("running",)]


def test_a_sample_that_became_no_call_has_no_control_character() -> None:
    document = Document.of(SUM)
    lost = LostSample(CallPosition(1, 0, 0.5), "sample_does_not_parse", "Calc\u0000(\u0007", 2)
    row = lost_row("recipe", document.text_id, Paragraph(document, 0, 0, len(SUM)), lost)
    assert row.values["sample_text"] == "Calc\u2400(\u2407"


def test_what_is_not_there_is_named(settings: Settings, corpus: Path, use_model: UseModel) -> None:
    use_model(FakeLanguageModel())
    with pytest.raises(CorpusError, match=r"corpus\.jsonl"):
        start_run(settings, "r", parameters(corpus))
    start(settings, corpus, use_model)
    with pytest.raises(ToolError, match="Calculato"):
        start_run(settings, "s", parameters(corpus, tools=["Calculato"]))
    for run_id, tool, shard, said in (
        ("other", "Calculator", "0/1", "'other'"),
        ("r", "QA", "0/1", "QA"),
        *(("r", "Calculator", shard, "--shard") for shard in ("1/1", "0", "-1/2", "0/1025", "a/b")),
    ):
        with pytest.raises(ToolError if tool == "QA" else UsageError, match=said):
            sample_stage(settings, run_id, tool, shard)
    empty = corpus.with_name("empty.jsonl")
    empty.write_text('{"no": "text"}\n')
    ingest_corpus(settings, str(empty))
    with pytest.raises(CorpusError, match="usable record"):
        start_run(settings, "none", parameters(empty))


def test_a_tool_whose_file_was_removed_after_the_start_is_named_with_the_folder_that_lacks_it(
    settings: Settings,
    corpus: Path,
    use_model: UseModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOOLFORMER_TOOLS_DIR", str(tmp_path / "tools"))
    file = write_tool(tmp_path / "tools", "Echo", "echo")
    forget_tools()
    start(settings, corpus, use_model, tools=["Calculator", "Echo"])
    file.unlink()
    forget_tools()
    with pytest.raises(ToolError) as caught:
        filter_stage(settings, "r", "Echo")
    monkeypatch.undo()
    forget_tools()
    assert "run r was started with Echo, which is gone: expected one of the tools" in str(caught.value)
    assert f"put its file back into {tmp_path / 'tools'}" in str(caught.value)


QUERIES = (
    *["Shop(SELECT stock FROM products WHERE name = 'cup')"] * 2,
    "Shop(DELETE FROM products)",
    "Shop(SELECT 1; DELETE FROM products)",
    "Shop(SELECT name FROM products WHERE stock > 1000)",
)


def test_each_distinct_query_has_one_result_or_one_counted_reason(
    settings: Settings,
    corpus: Path,
    use_model: UseModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOOLFORMER_TOOLS_DIR", str(tmp_path))
    sqlite_shop(tmp_path)
    database_tool(tmp_path, "sqlite:///shop.db")
    forget_tools()
    try:
        start(settings, corpus, use_model, FakeLanguageModel(QUERIES), tools=["Shop"])
        for stage in (filter_stage, sample_stage, execute_stage, score_stage):
            stage(settings, "r", "Shop", "0/1")
    finally:
        monkeypatch.undo()
        forget_tools()
    results = {
        (row[0], row[1], row[2])
        for row in run_sql(settings, "select input, results::text, reason from call_results")
    }
    assert results == {
        ("SELECT stock FROM products WHERE name = 'cup'", "{12}", None),
        ("DELETE FROM products", "{}", "query_not_a_select"),
        ("SELECT 1; DELETE FROM products", "{}", "query_of_several_statements"),
        ("SELECT name FROM products WHERE stock > 1000", "{}", "query_without_rows"),
    }
    counted = run_sql(
        settings, "select reason, count from yield_by_stage where stage = 'execute' and is_loss and count > 0"
    )
    reasons = {"query_not_a_select", "query_of_several_statements", "query_without_rows"}
    assert reasons <= {reason for reason, _ in counted}


def test_a_run_that_was_ended_before_its_last_task_or_its_start_is_closed_by_the_callback_or_by_the_next_night(
    settings: Settings, corpus: Path, use_model: UseModel
) -> None:
    def known(of: str) -> dict[str, str]:
        return dict(map(tuple, run_sql(settings, f"select run_id, {of}")))

    failed, not_started, states = (
        "failed: ingest.",
        "problem from runs_not_started",
        "state from annotation_runs",
    )
    assert finish_run(settings, "r", "failed", failed) == ""
    for run_id in ("r", "r2"):
        close_run(settings, run_id)
    close_run(settings, "skipped", is_failure=False)
    assert known(not_started) == {"r": failed, "r2": ENDED}
    start(settings, corpus, use_model)
    for run_id, schedule in (("night-1", "posts"), ("of-another", "news"), ("by-hand", None)):
        start_run(settings, run_id, parameters(corpus), schedule)
    finish_run(settings, "of-another", "success")
    start_run(settings, "night-2", parameters(corpus), "posts")
    expected = {
        "night-1": "failed",
        "of-another": "success",
        **dict.fromkeys(("by-hand", "night-2", "r"), "running"),
    }
    assert known(states) == expected
    for run_id in ("night-2", "of-another", "r"):
        close_run(settings, run_id)
    assert known(states) == expected | {"night-2": "failed", "r": "failed"}
    assert known(not_started) == {"r2": ENDED}
