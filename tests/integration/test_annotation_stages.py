"""From text to scored calls through the stages, with a scripted language model and the real calculator and Postgres.

What is proved: every sample is counted, a stage that stops in the middle and runs again gives the rows of an undisturbed run,
shards and their order change nothing, and a second run under the same recipes finds nothing to do.
"""

import dataclasses
import itertools
import json
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import text as sql

from tests.annotated_runs import unregistered
from tests.fake_language_model import TOKENS, UNFINISHED, FakeLanguageModel, StoppedError, UseModel, loaded_by_stages
from tests.run_sql import run_sql
from tests.servers import RunningPostgres, copied_database
from toolformer_ops.annotation.candidates import Candidate, LostSample
from toolformer_ops.call_syntax import Call
from toolformer_ops.config import Settings
from toolformer_ops.errors import ConfigurationError, CorpusError, ToolError, UsageError
from toolformer_ops.language_model.losses import weighted_loss
from toolformer_ops.records import CallPosition, Document, Paragraph, content_uuid
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.runs.explaining import explain_stored
from toolformer_ops.runs.micro_batches import ROUND_SECONDS, work_off
from toolformer_ops.runs.run_tools import Shard, load_run_tool
from toolformer_ops.runs.start_up import StartUp
from toolformer_ops.stages.annotating import annotate_stage
from toolformer_ops.stages.execution import Asked, ExecuteWork, execute_stage
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
from toolformer_ops.stages.scoring import ScoreWork, score_stage
from toolformer_ops.storage import database, queries
from toolformer_ops.storage.database import TableRow
from toolformer_ops.tools.base import FilterDecision, ToolOutput
from toolformer_ops.tools.registry import get_tool

SUM = "There were 2 cats and 3 dogs, a total of 5 animals."  # rule (ii): "total of" and a number
SCRIPT = (
    "Calculator(2 + 3)",
    "Calculator(2 + 3)",
    "Calculator(7 / 0)",
    "QA(how many?)",
    "Calculator 2 +",
    UNFINISHED,
)


@pytest.fixture(scope="module")
def corpus_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("corpora") / "corpus.jsonl"


@pytest.fixture
def corpus(corpus_path: Path) -> Path:
    """Twelve documents with sums, one without numbers, one that smuggles in a call, one whose losses are not numbers."""
    return write_corpus(corpus_path)


def write_corpus(path: Path) -> Path:
    texts = [SUM, "No number at all.", "Sums: [Calculator(1 + 1) -> 3] a total of 3.", "nan " + SUM]
    texts += [f"Box {n} holds 2 pens and 3 caps, a total of 5 things." for n in range(11)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def parameters(corpus: Path, **changes: Any) -> RunChoices:
    values = {
        "corpus": str(corpus),
        "model": "fake",
        "tools": ["Calculator"],
        "max_positions": 3,
        "samples_per_position": 6,
        "prune_below": 0.0,
        "placebos": 0,
        "placebo_sample": 0,
    }
    return RunChoices.parse(values | changes)


def annotate(settings: Settings, run_id: str, shards: tuple[str, ...] = ("0/1",)) -> None:
    for stage in (filter_stage, sample_stage, execute_stage, score_stage):
        for shard in shards:
            stage(settings, run_id, "Calculator", shard)


def rows_of(settings: Settings, table: str, columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in run_sql(settings, f"select {columns} from {table} order by 1, 2, 3, 4")]


def start(settings: Settings, corpus: Path, use_model: UseModel, **choices: Any) -> FakeLanguageModel:
    """The run r over the corpus, with a model that says `SCRIPT`."""
    model = use_model(FakeLanguageModel(SCRIPT))
    ingest_corpus(settings, str(corpus))
    start_run(settings, "r", parameters(corpus, **choices))
    return model


@pytest.fixture
def started(settings: Settings, corpus: Path, use_model: UseModel) -> FakeLanguageModel:
    """The model of the run r, which has done nothing yet."""
    return start(settings, corpus, use_model)


@pytest.fixture(scope="module")
def annotated_template(postgres_server: RunningPostgres, migrated_template: str, corpus_path: Path) -> Iterator[str]:
    """A database with the run r annotated, made once, to be copied."""
    with copied_database(postgres_server, migrated_template) as name, pytest.MonkeyPatch.context() as patch:
        settings = Settings(_env_file=None, database_dsn=SecretStr(postgres_server.address.dsn(name)))  # type: ignore[call-arg]
        start(settings, write_corpus(corpus_path), loaded_by_stages(patch))
        annotate(settings, "r")
        yield name


@pytest.fixture
def annotated(
    annotated_template: str, corpus: Path, postgres_server: RunningPostgres, use_model: UseModel
) -> Iterator[Settings]:
    """The settings of a copy of the annotated run; the same model would go on."""
    use_model(FakeLanguageModel(SCRIPT))
    with copied_database(postgres_server, annotated_template) as name:
        yield Settings(_env_file=None, database_dsn=SecretStr(postgres_server.address.dsn(name)))  # type: ignore[call-arg]


CALLS = "sampling_recipe_id, document_id, position_token, call_text, call_id, position_char, sample_count, input_key"
LOSSES = "scoring_recipe_id, document_id, call_id, result, reason, loss_without_call, loss_with_result, loss_reduction"
LEDGER = "stage, recipe_id, document_id, rows_written, counts::text"
DECISIONS = "filter_recipe_id, document_id, paragraph, kept, reason, start_char, end_char"


def snapshot(settings: Settings) -> dict[str, list[tuple[Any, ...]]]:
    tables = {"candidate_calls": CALLS, "call_losses": LOSSES, "stage_ledger": LEDGER, "filter_decisions": DECISIONS}
    return {table: rows_of(settings, table, columns) for table, columns in tables.items()}


def forget(settings: Settings) -> None:
    run_sql(
        settings,
        "truncate candidate_calls, call_losses, pruned_positions, call_results, stage_ledger, filter_decisions",
    )


def micro_batches(settings: Settings, *stages: str) -> list[int]:
    """How many documents each micro-batch of these stages had, ascending."""
    found = rows_of(settings, "micro_batches", "stage, documents, tool, batch_id")
    return sorted(documents for stage, documents, *_ in found if stage in stages)


def counts_of(settings: Settings, stage: str, document_text: str) -> dict[str, int]:
    of_document = (
        "select counts from stage_ledger join documents using (document_id) where stage = :stage and text = :text"
    )
    [(counts,)] = run_sql(settings, of_document, stage=stage, text=document_text)
    return {name: count for name, count in counts.items() if count}


def test_every_sample_and_call_is_counted_under_what_became_of_it(annotated: Settings) -> None:
    # 3 positions of 6 samples: at each, two are one candidate, one divides by zero, and three fall away
    assert counts_of(annotated, "sample", SUM) == {
        "paragraphs": 1,
        "positions": 3,
        "samples": 18,
        "candidates": 6,
        "duplicates_merged": 3,
        "sample_of_another_tool": 3,
        "sample_does_not_parse": 3,
        "sample_without_end": 3,
    }
    executed = counts_of(annotated, "execute", SUM)
    assert (executed["calls"], executed["inputs"], executed["with_result"]) == (6, 2, 3)
    scored = counts_of(annotated, "score", SUM)
    assert (scored["calls"], scored["scored"]) == (6, 3)
    with_markup = (
        "select text from filter_decisions join documents using (document_id) where reason = 'holds_call_markup'"
    )
    [refused] = run_sql(annotated, with_markup)
    assert refused.text.startswith("Sums: [Calculator")
    not_numbers = counts_of(annotated, "score", "nan " + SUM)
    assert (not_numbers["loss_not_finite"], not_numbers.get("scored", 0)) == (3, 0)


def test_what_became_no_call_is_there_to_look_at(annotated: Settings) -> None:
    # Those of another run's document do not take the places of this run's.
    run_sql(
        annotated,
        "with other as (insert into documents (document_id, text) "
        "select gen_random_uuid(), 'x' returning document_id) "
        "insert into lost_samples select sampling_recipe_id, other.document_id, "
        "('00000000-0000-0000-0000-' || lpad(number::text, 12, '0'))::uuid, 0, 0, 'sample_without_end', 'x', 1 "
        "from run_tools, other, generate_series(1, 60) number",
    )
    found = run_sql(
        annotated,
        "select lost.reason, sample_text, sum(sample_count)::integer from run_lost_samples lost "
        "join documents using (document_id) where run_id = 'r' and text = :text group by 1, 2 order by 1",
        text=SUM,
    )
    assert [tuple(row) for row in found] == [
        ("sample_does_not_parse", "Calculator 2 +", 3),
        ("sample_of_another_tool", "QA(how many?)", 3),
        ("sample_without_end", UNFINISHED, 3),
    ]


@pytest.mark.parametrize("order", [1, -1, 7])
def test_the_lost_samples_with_the_smallest_keys_are_stored_in_any_order_and_few_others(order: int) -> None:
    paragraph = Paragraph(document=Document.of("a text"), number=0, start_char=0, end_char=6)
    position = CallPosition(0, 0, 0.5)
    rows = written(
        [
            lost_row("0" * 16, paragraph, LostSample(position, reason, f"QA({number}", 1))
            for number in range(300)
            for reason in ("sample_without_end", "sample_does_not_parse")
        ],
        "lost_samples",
    )
    smallest = {
        row.sample_key
        for reason in ("sample_without_end", "sample_does_not_parse")
        for row in sorted((row for row in rows if row.reason == reason), key=lambda row: row.sample_key)[:10]
    }
    keys = SmallestKeys(at_most=10)
    taken = [
        row
        for row in sorted(rows, key=lambda row: row.sample_key.int * order % (2**61 - 1))
        if keys.takes(row.reason, row.sample_key)
    ]
    assert smallest <= {row.sample_key for row in taken}
    assert f"place <= {SmallestKeys().at_most}" in (database.SQL_DIR / "views" / "21_run_lost_samples.sql").read_text()
    assert len(taken) < 2 * 10 * 8  # 10 (1 + ln(300 / 10)) is 44
    assert all(keys.takes(row.reason, row.sample_key) for row in rows if row.sample_key in smallest)  # computed again


def test_the_log_probabilities_of_the_losses_are_stored_unless_the_run_does_not_want_them(
    annotated: Settings, corpus: Path
) -> None:
    columns = "loss_without_call, loss_without_result, loss_with_result, token_log_probabilities, reason"
    rows = rows_of(annotated, "call_losses", columns)
    scored = [row for row in rows if row[-1] is None]
    assert scored
    for *stored, lines, _ in scored:
        assert [weighted_loss(line) for line in lines] == pytest.approx(stored)
    assert all(row[-2] is None for row in rows if row[0] is None)  # without losses
    tokens = "loss_without_call, loss_without_result, loss_with_result, scored_tokens"
    assert all(
        tuple(row[-1] or ()) == (() if row[0] is None else TOKENS) for row in rows_of(annotated, "call_losses", tokens)
    )
    # What is explained of them needs no model.
    place = "select document_id from documents where text = :text"
    with database.transaction(database.connect(annotated)) as connection:
        document_id = str(connection.execute(sql(place), {"text": SUM}).scalar_one())
        helps = explain_stored(connection, "r", document_id=document_id, at=SUM.index(" 5"))[0]
        [again] = explain_stored(connection, "r", call_id=helps["call_id"])
        assert again == helps
        for wrong, said in (
            ({}, "--call-id, or --document and --at"),
            ({"call_id": "c1"}, "--call-id: expected a UUID, found 'c1'"),
            ({"document_id": document_id, "at": 1}, "expected such a call in the run r, found none"),
        ):
            with pytest.raises(UsageError, match=said):
                explain_stored(connection, "r", **wrong)
    assert (helps["call"], helps["result"], helps["loss_reduction"], helps["kept"]) == (
        "Calculator(2 + 3)",
        "5",
        1.0,
        True,
    )
    assert [token["log_p_with_result"] for token in helps["tokens"]] == [-1.0] * 5
    assert tuple(token["text"] for token in helps["tokens"]) == TOKENS
    assert sum(token["weight"] * -token["log_p_without_result"] for token in helps["tokens"]) == pytest.approx(2.5)
    assert helps["text_before"] + helps["text_after"] == SUM
    # A run that does not want them has the recipes of this one, and the same rows but for these.
    forget(annotated)
    start_run(annotated, "s", parameters(corpus, token_log_probabilities=False))
    annotate(annotated, "s")
    assert rows_of(annotated, "call_losses", columns) == [(*row[:3], None, row[-1]) for row in rows]
    assert {row[-1] for row in rows_of(annotated, "call_losses", tokens)} == {None}


def test_the_ledger_keeps_the_hash_of_the_rows_of_each_stage(annotated: Settings) -> None:
    by_hand = {
        "filter": "select string_agg(filter_row_text(d), chr(10) order by paragraph) from filter_decisions d",
        "sample": "select string_agg(call_row_text(c), chr(10) order by call_id) from candidate_calls c",
        "execute": "select string_agg(result_row_text(r), chr(10) order by r.input_key) from call_results r "
        "join (select distinct input_key, document_id from candidate_calls) c using (input_key)",
        "score": "select string_agg(losses_row_text(l), chr(10) order by call_id) from call_losses l",
    }
    with database.transaction(database.connect(annotated)) as connection:
        for stage, statement in by_hand.items():
            ledger = connection.execute(
                sql("select document_id, rows_hash from stage_ledger where stage = :stage"), {"stage": stage}
            ).all()
            assert len(ledger) >= 12
            for row in ledger:
                of_document = sql(f"select rows_hash(({statement} where document_id = :document))")
                assert connection.execute(of_document, {"document": row.document_id}).scalar_one() == row.rows_hash
            assert stage == "execute" or len({row.rows_hash for row in ledger}) > 1  # all ask the same inputs


def test_one_result_row_serves_all_documents_that_ask_the_same(
    settings: Settings, started: FakeLanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolformer_ops.stages.execution.MOST_DOCUMENTS", 4)  # of a micro-batch
    annotate(settings, "r")
    results = rows_of(settings, "call_results", "input, tool, results::text, reason")
    assert [row[0] for row in results] == ["2 + 3", "7 / 0"]
    assert micro_batches(settings, "execute") == [1, 4, 4, 4]


TWICE = "In 1990 it sold 2 pens. In 1991 it sold 4 pens."
HALVES = ((0, 23), (24, 47))
"""The bounds of two paragraphs."""


def written(rows: Iterable[TableRow], table: str) -> list[Any]:
    """What is written into a table, columns as attributes."""
    return [SimpleNamespace(**row.values) for row in rows if row.table == table]


def halves() -> tuple[Document, list[Paragraph]]:
    document = Document.of(TWICE)
    return document, [Paragraph(document, number, *bounds) for number, bounds in enumerate(HALVES)]


def test_the_id_of_a_call_is_made_of_recipe_document_paragraph_position_and_words() -> None:
    document, (first, second) = halves()
    other = Paragraph(Document.of("Another text."), 0, 0, 13)

    def row(recipe: str = "a", of: Paragraph = first, token: int = 3, call_input: str = "1 + 1") -> Any:
        position = CallPosition(token, 10, 0.25)
        candidate = Candidate(position, Call("Calculator", call_input), "2", sample_count=4, input_only_after=True)
        [found] = written([candidate_row(recipe, of, candidate)], "candidate_calls")
        return found

    rows = [row(), row("b"), row(of=second), row(of=other), row(token=4), row(call_input="1 + 2")]
    assert len({one.call_id for one in rows}) == len(rows)
    assert row() == rows[0]
    assert rows[0].call_id == content_uuid("a", str(document.document_id), "0", "3", "Calculator(1 + 1)")
    # Equal questions to the tool have one key, whatever the call says; places are those of the document.
    assert {one.input_key for one in rows} == {content_uuid("2")}
    assert [one.position_char for one in (rows[0], rows[2])] == [10, 34]
    [pruned] = written([pruned_row("a", second, CallPosition(3, 10, 0.25, pruned_by_loss=0.125))], "pruned_positions")
    assert (pruned.position_char, pruned.paragraph, pruned.loss_without_call) == (34, 1, 0.125)


def test_a_document_of_two_paragraphs_counts_and_writes_the_rows_of_both() -> None:
    document, paragraphs = halves()
    model: Any = FakeLanguageModel(("Calculator(2 + 2)",), sure_words=frozenset({"sold"}))
    run = unregistered(max_positions=20, samples_per_position=1, prune_below=0.5)
    work = SampleWork(run=run, shard=Shard(), tool=get_tool("Calculator"), load_model=lambda: model)
    nothing = Document.of("Nothing was kept of it.")
    done = work.compute({document.document_id: paragraphs, nothing.document_id: []})
    # Five places in each paragraph, and " sold" is pruned.
    calls = written(done.rows, "candidate_calls")
    pruned = written(done.rows, "pruned_positions")
    assert [TWICE[row.position_char :].split(maxsplit=1)[0] for row in calls] == [
        "1990",
        "it",
        "2",
        "pens.",
        "1991",
        "it",
        "4",
        "pens.",
    ]
    assert [(row.paragraph, TWICE[row.position_char :][:5]) for row in pruned] == [(0, " sold"), (1, " sold")]
    of_document, of_nothing = done.outcomes
    assert (of_document.rows_written, of_nothing.rows_written) == (8, 0)
    assert {name: of_document.counts[name] for name in ("paragraphs", "positions", "positions_pruned_below", "candidates")} == {
        "paragraphs": 2, "positions": 10, "positions_pruned_below": 2, "candidates": 8,
    }  # fmt: skip


def executed_call(at: int, bounds: tuple[int, int], token: int, results: list[str] | None, **others: Any) -> Any:
    """A row of undone.executed_calls."""
    values = {"call_input": "2 + 2", "reason": None, "input_only_after": False}
    start, end = bounds
    return SimpleNamespace(
        call_id=uuid.UUID(int=at), start_char=start, end_char=end, position_token=token, results=results,
        **(values | others),
    )  # fmt: skip


def test_calls_are_scored_in_their_own_paragraphs_and_counted_in_their_own_documents() -> None:
    document, _ = halves()
    short = Document.of("It sold 4.")
    calls = [
        executed_call(0, HALVES[0], 4, ["2"]),  # the fifth word of each paragraph is the sum
        executed_call(1, HALVES[1], 4, ["4"]),
        executed_call(2, HALVES[1], 4, ["2"]),
        executed_call(3, HALVES[1], 1, None, reason="divides_by_zero"),
        executed_call(4, HALVES[0], 1, ["4"], input_only_after=True),
    ]
    model: Any = FakeLanguageModel()
    run = unregistered(prune_below=0.0, score_unreleasable=False)
    work = ScoreWork(run=run, shard=Shard(), tool=get_tool("Calculator"), load_model=lambda: model)
    loaded: Any = [(document, calls), (short, [executed_call(5, (0, 10), 2, ["4"])])]
    done = work.compute(loaded)
    losses = {row.call_id.int: row for row in written(done.rows, "call_losses")}
    assert {at: (row.reason, row.loss_with_result) for at, row in losses.items()} == {
        0: (None, 1.0),
        1: (None, 1.0),
        2: (None, 2.25),
        3: ("divides_by_zero", None),
        4: ("input_only_after", None),
        5: (None, 1.0),
    }
    assert sorted(model.seen) == sorted(["It sold 4.", *(TWICE[slice(*bounds)] for bounds in HALVES)])
    assert [(of.document_id, of.rows_written, dict(of.counts)) for of in done.outcomes] == [
        (document.document_id, 5, {"calls": 5, "scored": 3, "divides_by_zero": 1, "input_only_after": 1}),
        (short.document_id, 1, {"calls": 1, "scored": 1}),
    ]
    # A document's share of the seconds: calls times characters, (2 + 3) x 23 and 1 x 10.
    of_document, of_short = (of.seconds for of in done.outcomes)
    assert of_document / of_short == pytest.approx(115 / 10)


@pytest.mark.parametrize("score_unreleasable", [True, False])
def test_scoring_loads_a_model_where_a_call_has_losses_to_get(score_unreleasable: bool) -> None:
    run = unregistered(score_unreleasable=score_unreleasable)
    loaded: list[str] = []
    work = ScoreWork(run=run, shard=Shard(), tool=get_tool("Calculator"), load_model=lambda: loaded.append("m"))  # type: ignore[arg-type, return-value]
    document = Document.of(TWICE)
    failed = executed_call(0, HALVES[0], 4, None, reason="divides_by_zero")
    ahead = executed_call(1, HALVES[0], 4, ["2"], input_only_after=True)
    work.prepare([(document, [failed])])
    assert loaded == []
    work.prepare([(document, [failed, ahead])])
    assert loaded == ["m"] * score_unreleasable
    work.prepare([(document, []), (document, [executed_call(2, HALVES[0], 4, ["2"])])])
    assert loaded == ["m"] * (1 + score_unreleasable)


def test_a_search_passes_over_what_its_own_document_says_and_scoring_asks_near_the_runs_threshold() -> None:
    own, other = Document.of("A ball is a round object. It flies 2 m."), Document.of("Something else flies 2 m.")
    results = ["A ball is a round object.", "2"]
    seen: list[Any] = []

    class Watched(FakeLanguageModel):
        def score_texts(self, texts: Any, **options: Any) -> Any:
            seen.append((options["prune_below"], options["keep_threshold"]))
            return super().score_texts(texts, **options)

    model: Any = Watched()
    run = dataclasses.replace(unregistered("WikiSearch", prune_below=0.25), keep_threshold=0.75)
    work = ScoreWork(run=run, shard=Shard(), tool=get_tool("WikiSearch"), load_model=lambda: model)
    loaded: Any = [
        (document, [executed_call(at, (0, len(document.text)), document.text.split(" ").index("2"), results)])
        for at, document in enumerate((own, other))
    ]
    rows = written(work.compute(loaded).rows, "call_losses")
    assert [(row.result_rank, row.result) for row in rows] == [(1, "2"), (0, results[0])]
    assert seen == [(0.25, 0.75)]


def test_calls_that_rounding_may_decide_are_counted_verified_or_not(
    settings: Settings, use_model: UseModel, corpus: Path
) -> None:
    """Two kinds of model: one that verifies nothing of what it marks, and one that verifies all of it."""

    class Marking(FakeLanguageModel):
        number_format = "bfloat16"

        def score_texts(self, texts: Any, **options: Any) -> Any:
            return [
                [dataclasses.replace(one, number_format=self.number_format, within_rounding=True) for one in of_text]
                for of_text in super().score_texts(texts, **options)
            ]

    ingest_corpus(settings, str(corpus))
    for number, number_format in enumerate(("bfloat16", "float32")):
        model = Marking(SCRIPT)
        model.number_format = number_format
        use_model(model)
        run_id = f"rounding-{number}"
        start_run(settings, run_id, parameters(corpus, seed=number, document_limit=1))
        annotate(settings, run_id)
        counted = {
            row[2]: (row[3], row[4])
            for row in rows_of(settings, "yield_by_stage", "run_id, stage, reason, count, is_loss")
            if row[:2] == (run_id, "score")
        }
        calls = counted["scored"][0]
        assert calls > 0
        assert counted["within_rounding"] == (calls, False)
        assert counted.get("verified_in_float32") == ((calls, False) if number_format == "float32" else None)


@pytest.mark.parametrize(("choice", "batches"), [("auto", 7), ("on", 1), ("all", 1), ("off", 7)])
def test_where_weights_may_take_turns_a_shard_is_scored_in_one_micro_batch_and_one_round(
    settings: Settings, use_model: UseModel, corpus: Path, monkeypatch: pytest.MonkeyPatch, choice: str, batches: int
) -> None:
    asked: list[int] = []

    class Watched(FakeLanguageModel):
        def score_texts(self, texts: Any, **options: Any) -> Any:
            asked.append(len(texts))
            return super().score_texts(texts, **options)

    monkeypatch.setattr("toolformer_ops.runs.micro_batches.ROUND_SECONDS", 0.0)  # a round is a micro-batch
    use_model(Watched(SCRIPT))
    ingest_corpus(settings, str(corpus))
    small = settings.model_copy(update={"dtype": "bfloat16", "micro_batch_documents": 2})
    start_run(small, "run", parameters(corpus, verify_in_float32=choice))
    filter_stage(small, "run", "Calculator", "0/1")
    annotate_stage(small, "run", "Calculator", "0/1")
    assert len(asked) == batches
    assert sum(asked) == 13


def test_an_input_is_run_once_for_all_documents_of_a_micro_batch_and_counted_with_the_first() -> None:
    class Answering:
        def run(self, inputs: Any) -> list[ToolOutput]:
            return [
                ToolOutput((f"{one}\0",)) if one != "7 / 0" else ToolOutput.none("divides_by_zero") for one in inputs
            ]

    keys = {one: content_uuid(one) for one in ("1 + 1", "7 / 0", "2 + 2")}
    calls = {
        uuid.UUID(int=1): [keys["1 + 1"], keys["1 + 1"], keys["7 / 0"]],  # asks the same twice
        uuid.UUID(int=2): [keys["1 + 1"], keys["2 + 2"]],
    }
    work = ExecuteWork(run=unregistered(), shard=Shard(), runner=Answering, time_limit_seconds=30.0)
    done = work.compute(Asked(calls, {key: one for one, key in keys.items()}, known={keys["2 + 2"]: None}))
    assert [(row.input, row.results, row.reason) for row in written(done.rows, "call_results")] == [
        ("1 + 1", ["1 + 1␀"], None),  # Postgres stores no U+0000
        ("7 / 0", [], "divides_by_zero"),
    ]
    assert [(of.rows_written, {name: count for name, count in of.counts.items() if count}) for of in done.outcomes] == [
        (2, {"calls": 3, "inputs": 2, "executed": 2, "with_result": 2, "divides_by_zero": 1}),
        (0, {"calls": 2, "inputs": 2, "from_cache": 2, "with_result": 2}),
    ]


def test_a_filters_decisions_are_counted_by_paragraph_and_reason() -> None:
    decisions = [
        FilterDecision(True, "good", 0, 0, 3),
        FilterDecision(False, "bad", 1, 4, 7),
        FilterDecision(True, "good", 2, 8, 9),
    ]
    tool: Any = SimpleNamespace(spec=get_tool("Calculator").spec, filter=lambda _: decisions)
    document = Document.of("abc def g")
    done = FilterWork(run=unregistered(), shard=Shard(), tool=tool).compute([document])
    rows = written(done.rows, "filter_decisions")
    assert [(row.paragraph, row.start_char, row.end_char, row.kept, row.reason) for row in rows] == [
        (0, 0, 3, True, "good"), (1, 4, 7, False, "bad"), (2, 8, 9, True, "good"),
    ]  # fmt: skip
    [outcome] = done.outcomes
    assert (outcome.rows_written, outcome.counts) == (3, {"paragraphs": 3, "kept": 2, "good": 2, "bad": 1})


@pytest.mark.parametrize("stage", ["sample", "score"])
def test_a_stage_that_stops_and_runs_again_gives_the_rows_of_an_undisturbed_run(
    annotated: Settings, use_model: UseModel, stage: str
) -> None:
    small = annotated.model_copy(update={"micro_batch_documents": 2})
    undisturbed = snapshot(small)
    forget(small)

    filter_stage(small, "r", "Calculator")
    stages = {"sample": sample_stage, "execute": execute_stage, "score": score_stage}
    for name, run_stage in stages.items():
        if name == stage:
            use_model(FakeLanguageModel(SCRIPT, texts_before_stop=5))
            with pytest.raises(StoppedError):
                run_stage(small, "r", "Calculator", "0/1")
            committed = [row for row in rows_of(small, "stage_ledger", LEDGER) if row[0] == stage]
            assert len(committed) == 4  # two micro-batches of two; the fifth text was lost with the third
            use_model(FakeLanguageModel(SCRIPT))
        run_stage(small, "r", "Calculator", "0/1")
    assert snapshot(small) == undisturbed


def test_a_process_that_is_killed_while_the_tool_runs_does_not_sample_again(
    annotated: Settings, use_model: UseModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = annotated.model_copy(update={"micro_batch_documents": 1})
    undisturbed = snapshot(small)
    forget(small)

    filter_stage(small, "r", "Calculator")
    compute, batches = ExecuteWork.compute, itertools.count(1)

    def stop_at_the_second(work: ExecuteWork, loaded: Any) -> Any:
        if next(batches) == 2:
            raise StoppedError
        return compute(work, loaded)

    monkeypatch.setattr(ExecuteWork, "compute", stop_at_the_second)
    model = use_model(FakeLanguageModel(SCRIPT))
    with pytest.raises(StoppedError):
        annotate_stage(small, "r", "Calculator", "0/1")
    stages = [row[0] for row in rows_of(small, "stage_ledger", LEDGER)]
    assert (stages.count("sample"), stages.count("execute"), stages.count("score")) == (13, 8, 0)
    sampled = len(model.added)
    annotate_stage(small, "r", "Calculator", "0/1")
    assert snapshot(small) == undisturbed
    assert len(model.added) == sampled


def test_neither_the_number_of_shards_nor_their_order_changes_the_rows(annotated: Settings) -> None:
    whole = snapshot(annotated)
    forget(annotated)
    annotate(annotated, "r", ("2/3", "0/3", "1/3"))
    sharded = snapshot(annotated)
    assert sharded["filter_decisions"] == whole["filter_decisions"]
    assert sharded["candidate_calls"] == whole["candidate_calls"]
    assert sharded["call_losses"] == whole["call_losses"]


def test_a_second_run_under_the_same_recipes_loads_no_model_and_finds_nothing_to_do(
    annotated: Settings, corpus: Path, use_model: UseModel
) -> None:
    before = snapshot(annotated)
    model = use_model(FakeLanguageModel(SCRIPT))
    start_run(annotated, "second", parameters(corpus, keep_thresholds={"Calculator": 0.1}))
    annotate(annotated, "second")
    annotate_stage(annotated, "second", "Calculator", "0/1")
    assert model.loads == 0
    assert snapshot(annotated) == before
    assert plan_shards(annotated, "second", "Calculator") == ["0/1"]


def test_nats_for_each_second_raise_the_threshold_by_seconds_that_are_measured_once(
    settings: Settings, corpus: Path, use_model: UseModel
) -> None:
    use_model(FakeLanguageModel(SCRIPT))
    ingest_corpus(settings, str(corpus))
    with pytest.raises(UsageError, match="expected executed calls of Calculator to measure, found none"):
        start_run(settings, "dear", parameters(corpus, nats_per_second=2.0))
    start_run(settings, "free", parameters(corpus))
    annotate(settings, "free")
    before, model = snapshot(settings), use_model(FakeLanguageModel(SCRIPT))
    # Without a result it takes long; what is measured is rounded to 0.4.
    took = "update call_results set seconds = case when reason is null then {0} else 60 end"
    for run_id, seconds, chosen in (
        ("dear", 0.40123, {"nats_per_second": 2.0}),
        ("dearer", 9.0, {"nats_per_second": 3.0}),  # as measured before
        ("given", 9.0, {"nats_per_second": 3.0, "call_seconds": {"calculator": 0.1}}),
    ):
        run_sql(settings, took.format(seconds))
        start_run(settings, run_id, parameters(corpus, **chosen))
        start_run(settings, run_id, parameters(corpus, **chosen))
        annotate(settings, run_id)
    columns = "run_id, tool, keep_threshold, prune_below"
    assert [(run, nats) for run, _, nats, _ in rows_of(settings, "run_tools", columns)] == [
        ("dear", 0.8), ("dearer", pytest.approx(1.2)), ("free", 0.5), ("given", 0.5),
    ]  # fmt: skip
    assert rows_of(settings, "call_costs", "run_id, seconds, nats_per_second, cost_threshold") == [
        ("dear", 0.4, 2.0, 0.8), ("dearer", 0.4, 3.0, pytest.approx(1.2)), ("given", 0.1, 3.0, pytest.approx(0.3)),
    ]  # fmt: skip
    kept = "run_id, max(cost_threshold), count(*), min(loss_reduction) from kept_calls group by run_id"
    found = run_sql(settings, f"select {kept} order by run_id")
    free = found[1]
    assert [tuple(row) for row in found] == [
        ("dear", 0.8, *free[2:]),
        tuple(free),
        ("given", pytest.approx(0.3), *free[2:]),
    ]
    assert (free.run_id, free.min) == ("free", pytest.approx(1.0))
    # It was a question to what was there.
    assert (snapshot(settings), model.loads) == (before, 0)


def test_a_run_that_is_cleared_after_its_corpus_changed_works_on_its_own_version_again(
    settings: Settings, corpus: Path, use_model: UseModel
) -> None:
    use_model(FakeLanguageModel(SCRIPT))
    ingest_corpus(settings, str(corpus))
    start_run(settings, "pinned", parameters(corpus))
    annotate(settings, "pinned")
    before = snapshot(settings)
    forget(settings)
    with corpus.open("a") as lines:
        lines.write(json.dumps({"text": "A new box holds 4 pens and 3 caps, a total of 7 things."}) + "\n")
    ingest_corpus(settings, str(corpus))
    for run in ("pinned", "later"):
        model = use_model(FakeLanguageModel(SCRIPT))
        start_run(settings, run, parameters(corpus))
        annotate(settings, run)
        if run == "pinned":
            assert snapshot(settings) == before
    assert set(model.seen) == {"A new box holds 4 pens and 3 caps, a total of 7 things."}
    assert rows_of(settings, "annotation_runs", "run_id, corpus_version, ordinal_limit, tools, image") == [
        ("later", 2, None, ["Calculator"], None),
        ("pinned", 1, None, ["Calculator"], None),
    ]


LONG = " ".join(f"Crate {number} holds 2 pens and 3 caps, a total of 5 things." for number in range(20))


def test_all_other_texts_are_scored_before_a_long_one_is_sampled(
    settings: Settings, corpus: Path, use_model: UseModel
) -> None:
    corpus.write_text(json.dumps({"text": LONG}) + "\n" + corpus.read_text())
    model = use_model(FakeLanguageModel(SCRIPT))
    small = settings.model_copy(update={"micro_batch_tokens": len(LONG) // 8, "micro_batch_documents": 4})
    ingest_corpus(settings, str(corpus))
    start_run(settings, "r", parameters(corpus))
    filter_stage(settings, "r", "Calculator")
    annotate_stage(small, "r", "Calculator", "0/1")
    in_rounds = snapshot(settings)
    order = [
        (stage, documents)
        for _, stage, documents, _ in rows_of(settings, "micro_batches", "batch_id, stage, documents, tokens")
        if stage != "filter"
    ]
    # Thirteen short texts; then the long one, alone. Execution takes more texts together.
    rounds = [("sample", 4)] * 3 + [("sample", 1), ("execute", 13)] + [("score", 4)] * 3 + [("score", 1)]
    assert order == [*rounds, ("sample", 1), ("execute", 1), ("score", 1)]
    assert model.loads == 1
    # The rows are those of single stages, whatever the rounds.
    forget(settings)
    annotate(settings, "r")
    assert snapshot(settings) == in_rounds


def test_a_round_lasts_some_minutes(
    settings: Settings, started: FakeLanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    filter_stage(settings, "r", "Calculator")
    seconds = itertools.count(0.0, ROUND_SECONDS / 4)  # a look at the clock takes a minute and a quarter
    engine = database.connect(settings)
    with database.transaction(engine) as connection:
        run = load_run_tool(connection, "r", "Calculator")
    work = SampleWork(
        run=run,
        shard=Shard(),
        tool=get_tool("Calculator"),
        load_model=lambda: FakeLanguageModel(SCRIPT),  # type: ignore[arg-type,return-value]
    )
    done: list[int] = []

    def after_round() -> None:
        done.append(len(rows_of(settings, "stage_ledger", "stage, document_id, recipe_id, rows_written")) - 15)

    small = settings.model_copy(update={"micro_batch_documents": 1})
    work_off(small, engine, work, after_round=after_round, clock=lambda: next(seconds))
    assert len(done) > 1
    assert done == sorted(set(done))
    assert done[-1] == 13


def test_the_log_says_how_many_tokens_are_done(
    settings: Settings, corpus: Path, use_model: UseModel, caplog: pytest.LogCaptureFixture
) -> None:
    corpus.write_text(json.dumps({"text": LONG}) + "\n" + json.dumps({"text": SUM}) + "\n")
    start(settings, corpus, use_model)
    filter_stage(settings, "r", "Calculator")
    with caplog.at_level("INFO"):
        sample_stage(settings.model_copy(update={"micro_batch_tokens": 100}), "r", "Calculator", "0/1")
    short, both = (-(-len(SUM) // 4), -(-len(SUM) // 4) + -(-len(LONG) // 4))
    said = [message for message in caplog.messages if message.startswith("sample: ") and "tokens" in message]
    assert [message.rpartition(",")[0] for message in said] == [
        f"sample: 1 of 2 documents, {short} of {both} tokens",
        f"sample: 2 of 2 documents, {both} of {both} tokens",
    ]


def test_a_long_text_is_sampled_executed_and_scored_in_pieces_and_a_short_one_as_before(
    settings: Settings, corpus: Path, use_model: UseModel
) -> None:
    corpus.write_text(json.dumps({"text": LONG}) + "\n" + json.dumps({"text": SUM}) + "\n")
    use_model(FakeLanguageModel(("Calculator(2 + 3)",)))
    ingest_corpus(settings, str(corpus))
    calls: dict[str, list[tuple[Any, ...]]] = {}
    for name, chosen in {
        "whole": {"max_text_tokens": 0},
        "pieces": {"max_text_tokens": 100},
        "left out": {"max_text_tokens": 100, "long_texts": "leave_out"},
    }.items():
        start_run(settings, name, parameters(corpus, **chosen))
        annotate(settings, name)
        found = run_sql(
            settings,
            "select d.text = :long as is_long, c.paragraph, c.position_char, c.result, c.loss_reduction, "
            "substr(d.text, c.position_char + 1, 7) "
            "from scored_calls c join documents d using (document_id) where c.run_id = :run order by 1, 2, 3",
            run=name,
            long=LONG,
        )
        calls[name] = [tuple(row) for row in found]
    short = [call for call in calls["whole"] if not call[0]]
    assert len(short) == 3
    assert calls["left out"] == short
    assert calls["pieces"][:3] == short
    # 20 sentences of 57 characters or so: three pieces of at most 400, each with its three positions
    assert [call[1] for call in calls["pieces"][3:]] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert [call[1] for call in calls["whole"][3:]] == [0, 0, 0]
    # "5 things." ends each piece; a call before the word 5 is kept, wherever its piece is
    assert [call[5] for call in calls["pieces"] if call[4] == 1.0] == [" 5 anim"] + [" 5 thin"] * 3
    counted = "select counts from stage_ledger l join documents d using (document_id) where d.text = :long and stage = 'filter'"
    decided = [dict(row.counts) for row in run_sql(settings, counted, long=LONG)]
    assert sorted((one.get("longer_than_max_text_tokens", 0), one["paragraphs"], one["kept"]) for one in decided) == [
        (0, 1, 1),
        (0, 3, 3),
        (1, 1, 0),
    ]


def test_shards_follow_the_work_and_are_never_more_than_64() -> None:
    assert shard_count(0, 0.0, 60.0) == 1
    assert shard_count(59, 118.0, 60.0) == 1  # less than two parts of 60 s
    assert shard_count(60, 120.0, 60.0) == 2
    assert shard_count(10**6, 2e6, 60.0) == 64
    assert shard_count(3, 1200.0, 60.0) == 3  # long texts: none of a shard's is divided


def test_shards_are_planned_by_what_the_newest_processes_with_the_same_model_took_to_start(
    settings: Settings, started: FakeLanguageModel
) -> None:
    filter_stage(settings, "r", "Calculator")
    # 13 documents of 60 s are 780 s: in parts of at least 60, 20 * 10 and 20 * 20 s
    for start_up, shards in ((20.0, 1), (10.0, 3), (0.0, 13)):
        chosen = settings.model_copy(update={"seconds_per_document": 60.0, "start_up_seconds": start_up})
        assert len(plan_shards(chosen, "r", "Calculator")) == shards

    def started(stage: str, *seconds: float, run_id: str = "r") -> int:
        batch = (
            "insert into micro_batches (run_id, tool, stage, recipe_id, documents, rows_written, start_up_seconds) "
            "values (%s, 'Calculator', %s, 'of-another-tool', 1, 1, %s)"
        )
        with database.transaction(database.connect(settings)) as connection:
            for value in seconds:
                connection.exec_driver_sql(batch, (run_id, stage, value))
        return len(plan_shards(chosen, "r", "Calculator"))

    assert started("filter", 100.0) == 13  # loads no model: 780 s in parts of 60 s
    assert started("sample", 8.0, 10.0, 100.0) == 3  # 20 * 10 s
    assert started("score", *[20.0] * 20) == 1  # 20 * 20 s, and the older three do not count
    with database.transaction(database.connect(settings)) as connection:
        connection.exec_driver_sql("update annotation_runs set model_identity = 'other' where run_id = 'r'")
        connection.exec_driver_sql(
            'insert into annotation_runs select (jsonb_populate_record(r, \'{"run_id": "of-other"}\')).* from annotation_runs r'
        )
        connection.exec_driver_sql("update annotation_runs set model_identity = 'fake' where run_id = 'r'")
        connection.exec_driver_sql("delete from micro_batches where start_up_seconds > 15")
    assert started("sample", 1000.0, run_id="of-other") == 4  # 20 * (8 + 10) / 2 s; the other model's do not count


def test_a_process_stores_what_it_took_to_start_with_its_first_micro_batch_after_that(
    settings: Settings, started: FakeLanguageModel
) -> None:
    small = settings.model_copy(update={"micro_batch_documents": 4})
    filter_stage(small, "r", "Calculator", start_up=StartUp(loads_model=False))
    annotate_stage(small, "r", "Calculator", "0/1", StartUp())
    rows = run_sql(settings, "select stage, start_up_seconds from micro_batches order by batch_id")
    stored = [(row.stage, row.start_up_seconds is not None) for row in rows]
    assert stored == [
        ("filter", True), ("sample", True), *[("sample", False)] * 3, ("execute", False), *[("score", False)] * 4,
    ]  # fmt: skip
    assert all(row.start_up_seconds > 0 for row in rows if row.start_up_seconds is not None)


def test_a_start_up_is_over_when_the_model_is_loaded_and_is_handed_out_once() -> None:
    start_up = StartUp()
    assert start_up.take() is None
    start_up.has_loaded(1000.0)
    start_up.has_loaded(5000.0)
    assert 1000.0 < (start_up.take() or 0.0) < 5000.0
    assert start_up.take() is None
    assert StartUp(loads_model=False).take() is not None


def test_a_run_cannot_be_started_again_with_other_parameters_or_another_model(
    settings: Settings, corpus: Path, use_model: UseModel
) -> None:
    use_model(FakeLanguageModel())
    ingest_corpus(settings, str(corpus))
    start_run(settings, "r", parameters(corpus))
    assert start_run(settings, "r", parameters(corpus)) == ["Calculator"]
    with pytest.raises(ConfigurationError, match="other parameters"):
        start_run(settings, "r", parameters(corpus, seed=1))
    use_model(FakeLanguageModel(identity="another"))
    with pytest.raises(ConfigurationError):
        start_run(settings, "r", parameters(corpus))


def test_a_run_cannot_go_on_with_another_version_of_its_tool(
    settings: Settings, started: FakeLanguageModel, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filter_stage(settings, "r", "Calculator")
    sample_stage(settings, "r", "Calculator", "0/1")
    monkeypatch.setattr(get_tool("Calculator"), "version", lambda *_: "of tomorrow")
    with pytest.raises(ConfigurationError, match=r"was started with Calculator version .*, found of tomorrow"):
        execute_stage(settings, "r", "Calculator", "0/1")
    assert rows_of(settings, "call_results", "input, tool, results::text, reason") == []
    with pytest.raises(ConfigurationError, match="r, Calculator: execution_recipe_id, scoring_recipe_id are not those"):
        start_run(settings, "r", parameters(corpus))


def test_what_is_not_there_is_named(settings: Settings, corpus: Path, use_model: UseModel) -> None:
    use_model(FakeLanguageModel())
    with pytest.raises(CorpusError, match=r"corpus\.jsonl"):
        start_run(settings, "r", parameters(corpus))
    ingest_corpus(settings, str(corpus))
    with pytest.raises(ToolError, match="Calculato"):
        start_run(settings, "r", parameters(corpus, tools=["Calculato"]))
    with pytest.raises(UsageError, match="'other'"):
        sample_stage(settings, "other", "Calculator", "0/1")
    start_run(settings, "r", parameters(corpus))
    with pytest.raises(ToolError, match="QA"):
        sample_stage(settings, "r", "QA", "0/1")
    for shard in ("1/1", "0", "-1/2", "0/65", "a/b"):
        with pytest.raises(UsageError, match="--shard"):
            sample_stage(settings, "r", "Calculator", shard)
    empty = corpus.with_name("empty.jsonl")
    empty.write_text('{"no": "text"}\n')
    ingest_corpus(settings, str(empty))
    with pytest.raises(CorpusError, match="usable record"):
        start_run(settings, "none", parameters(empty))


def test_sql_tells_what_prompt_and_choices_a_call_was_sampled_with(
    settings: Settings, corpus: Path, use_model: UseModel
) -> None:
    start(settings, corpus, use_model, temperature=1.5)
    asked = "select definition ->> 'prompt', definition ->> 'temperature' from recipes where stage = 'sample'"
    with database.transaction(database.connect(settings)) as connection:
        [(prompt, temperature)] = connection.execute(sql(asked)).all()
    assert (prompt, float(temperature)) == (get_tool("Calculator").prompt, 1.5)


def test_a_night_that_was_ended_before_its_last_task_is_closed_as_failed_by_the_callback_or_by_the_next_night(
    settings: Settings, corpus: Path, use_model: UseModel
) -> None:
    def states() -> dict[str, str]:
        rows = run_sql(settings, "select run_id, state from annotation_runs")
        return {row.run_id: row.state for row in rows}

    use_model(FakeLanguageModel(SCRIPT))
    ingest_corpus(settings, str(corpus))
    for run_id, schedule in (("nightly_posts.1", "posts"), ("of-another", "news"), ("by-hand", None)):
        start_run(settings, run_id, parameters(corpus), schedule)
    finish_run(settings, "of-another", "success")
    start_run(settings, "nightly_posts.2", parameters(corpus), "posts")
    expected = {
        "nightly_posts.1": "failed",
        "of-another": "success",
        "by-hand": "running",
        "nightly_posts.2": "running",
    }
    assert states() == expected

    for run_id in ("nightly_posts.2", "of-another"):
        close_run(settings, run_id)
    assert states() == expected | {"nightly_posts.2": "failed"}


def test_a_run_that_ends_before_it_starts_is_recorded_until_it_starts(
    settings: Settings, corpus: Path, use_model: UseModel
) -> None:
    def not_started() -> dict[str, str]:
        with database.transaction(database.connect(settings)) as connection:
            rows = database.fetch_all(connection, queries.runs.not_started, run_id="", at_most=9)
            return {row.run_id: row.problem for row in rows}

    use_model(FakeLanguageModel(SCRIPT))
    failed = "failed: ingest. There is no release."
    assert finish_run(settings, "r1", "failed", failed) == ""
    for run_id in ("r1", "r2"):
        close_run(settings, run_id)
    close_run(settings, "skipped", is_failure=False)
    assert not_started() == {"r1": failed, "r2": ENDED}

    ingest_corpus(settings, str(corpus))
    start_run(settings, "r1", parameters(corpus))
    close_run(settings, "r1")
    assert not_started() == {"r2": ENDED}
