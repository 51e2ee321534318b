"""Placebos through the stage and Postgres, with a scripted language model: what is drawn, stored, counted and shown."""

import dataclasses
import functools
import json
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.annotated_runs import release, unregistered
from tests.fake_language_model import FakeLanguageModel, StoppedError
from tests.run_sql import run_sql
from toolformer_ops.annotation.placebo import JudgedCall, PlaceboDraw
from toolformer_ops.annotation.scoring import ScoredCall
from toolformer_ops.audit.checking import check_tool
from toolformer_ops.audit.running import audit, require_sound
from toolformer_ops.call_syntax import Call
from toolformer_ops.config import Settings
from toolformer_ops.errors import NoResultError
from toolformer_ops.on_a_file.annotate.call_parts import ledger_of
from toolformer_ops.on_a_file.annotate.workers import Worker
from toolformer_ops.records import Document
from toolformer_ops.runs.choices import PlaceboChoices, RunChoices
from toolformer_ops.runs.micro_batches import MicroBatch
from toolformer_ops.runs.placebo_pools import Pool, PooledResult, load_pool
from toolformer_ops.runs.placebo_rates import HeldThreshold, lowest_threshold, store_rates
from toolformer_ops.runs.run_tools import Shard, load_run_tool
from toolformer_ops.stages.annotating import annotate_stage
from toolformer_ops.stages.execution import execute_stage
from toolformer_ops.stages.filtering import filter_stage
from toolformer_ops.stages.ingestion import ingest_corpus
from toolformer_ops.stages.placebo import PlaceboWork, placebo_stage, why_nothing_to_do
from toolformer_ops.stages.planning import tools_to_do
from toolformer_ops.stages.release import CARD, release_prefix
from toolformer_ops.stages.run_setup import finish_run, start_run
from toolformer_ops.stages.sampling import sample_stage
from toolformer_ops.stages.scoring import score_stage
from toolformer_ops.storage.history.forgetting import forget
from toolformer_ops.storage.objects.parts import FolderParts
from toolformer_ops.storage.objects.publication import ObjectStore
from toolformer_ops.storage.postgres import database


def placebos(settings: Settings, condition: str = "true") -> list[Any]:
    columns = "call_id, number, source, is_sampled, reason, loss_with_result, reduction, information, probability_with, gain"
    return run_sql(
        settings, f"select {columns} from placebo_losses where {condition} order by call_id, number"
    )


def held(settings: Settings, run_id: str, rate: float) -> HeldThreshold:
    with database.transaction(database.connect(settings)) as connection:
        return lowest_threshold(connection, load_run_tool(connection, run_id, "Calculator"), rate)


def undisturbed(settings: Settings, run_id: str) -> list[Any]:
    """What the stage writes in one piece, in place of what is there."""
    run_sql(settings, "truncate placebo_losses")
    run_sql(settings, "delete from stage_ledger where stage = 'placebo'")
    placebo_stage(settings, run_id, "Calculator", "0/1")
    return placebos(settings)


def written(path: Path, totals: range) -> Path:
    """One text a total; the right call's result is its last word but one, so that this call helps and no other result does."""
    lines = [{"text": f"Box {n} holds {n} pens and 1 cap, a total of {n + 1} things."} for n in totals]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def choices(corpus: Path, **changes: Any) -> RunChoices:
    values = {"corpus": str(corpus), "model": "fake", "tools": ["Calculator"], "max_positions": 2}
    return RunChoices.parse(values | {"samples_per_position": 12, "prune_below": 0.5} | changes)


def sums(totals: range) -> FakeLanguageModel:
    """Proposes every total of the corpus at each position."""
    return FakeLanguageModel(tuple(f"Calculator({n} + 1)" for n in totals))


PROBABILITY: dict[str, Any] = {"keep_rule": "probability", "prune_below": 0.1}


def annotate(settings: Settings, run_id: str) -> None:
    filter_stage(settings, run_id, "Calculator", "0/1")
    annotate_stage(settings, run_id, "Calculator", "0/1")


Begin = Callable[..., FakeLanguageModel]


@pytest.fixture
def begin(settings, tmp_path, use_model):
    """`begin(run_id, totals, **choices)` starts a run over a corpus of these totals, `c.jsonl`, and returns its model."""

    def start(run_id: str, totals: range, **changes: Any) -> FakeLanguageModel:
        corpus, model = written(tmp_path / "c.jsonl", totals), use_model(sums(totals))
        ingest_corpus(settings, str(corpus))
        start_run(settings, run_id, choices(corpus, **changes))
        return model

    return start


def work(settings: Settings, run_id: str) -> None:
    """All stages up to the check."""
    annotate(settings, run_id)
    placebo_stage(settings, run_id, "Calculator", "0/1")
    check_tool(settings, run_id, "Calculator")


SAMPLED, UNSAMPLED = uuid.UUID(int=1), uuid.UUID(int=2**64 - 1)
"""Of half of the calls, those with the smallest last bits are sampled."""
SMALL = ScoredCall(
    result="9", loss_without_call=2.0, loss_without_result=2.5, loss_with_result=2.25, reduction_bound=-0.25,
    number_format="float32",
)  # fmt: skip
LARGE = dataclasses.replace(SMALL, loss_with_result=1.0, reduction_bound=1.0)


def test_placebos_are_counted_in_the_documents_of_their_calls_also_those_that_are_given_up():
    document = Document.of("In 1990 it sold 2 pens. In 1991 it sold 4 pens.")
    home = Document.of("It sold a lot, 2 or so.")
    loads: list[str] = []
    model: Any = FakeLanguageModel()
    pool = Pool(placebos=1, sample_share=0.5, results=[PooledResult(7, uuid.uuid4(), home.document_id, "2")])
    run = unregistered(prune_below=0.5)
    work = PlaceboWork(
        run=run, shard=Shard(), draw=PlaceboDraw(pool), load_model=lambda: loads.append("m") or model
    )

    def call(document: Document, call_id: uuid.UUID, scored: ScoredCall, token: int = 4) -> JudgedCall:
        return JudgedCall(call_id, document.document_id, token, Call("Calculator", "1 + 1"), scored)

    def rows(done: MicroBatch, *columns: str) -> list[tuple[object, ...]]:
        placebos = [row.values for row in done.rows if row.table == "placebo_losses"]
        return [(values["call_id"], *(values[column] for column in columns)) for values in placebos]

    first, second = call(document, SAMPLED, SMALL), call(document, UNSAMPLED, LARGE, token=10)
    at_home = [call(home, UNSAMPLED, SMALL), call(home, SAMPLED, SMALL), call(home, UNSAMPLED, LARGE)]
    loaded = [(document, [first, second]), (home, at_home)]
    done = work.compute([*loaded, (Document.of("No call."), [])])
    # The word at which a call is placed is 2 in the first sentence alone: 1.0 nats there, and 2.25 in the
    # second.
    assert rows(done, "document_id", "source", "is_sampled", "reason", "loss_with_result") == [
        (SAMPLED, document.document_id, 7, True, None, 1.0),
        (UNSAMPLED, document.document_id, 7, False, None, 2.25),
        (SAMPLED, home.document_id, None, True, "no_other_result", None),
        (UNSAMPLED, home.document_id, None, False, "no_other_result", None),
    ]
    assert [(of.rows_written, dict(of.counts)) for of in done.outcomes] == [
        (2, {"calls": 2, "placebos": 2, "with_placebos": 2, "scored": 2}),
        (2, {"calls": 3, "placebos": 2, "without_placebos": 3, "no_other_result": 2}),
        (0, {}),
    ]
    seconds = [of.seconds for of in done.outcomes]
    assert (seconds[0] / seconds[1], seconds[2]) == (pytest.approx(2 / 3), 0)  # by their calls
    # Given up: a row for each call that was to have placebos.
    given_up = work.give_up(loaded[1:], "out_of_memory")
    assert rows(given_up, "number", "is_sampled", "reason") == [
        (SAMPLED, 1, True, "out_of_memory"),
        (UNSAMPLED, 1, False, "out_of_memory"),
    ]
    counts = {"calls": 3, "placebos": 2, "without_placebos": 3, "out_of_memory": 2}
    assert dict(given_up.outcomes[0].counts) == counts
    # A model is loaded for either kind, and for no other call.
    loads.clear()
    for one, loaded_so_far in zip(at_home, (0, 1, 2), strict=True):
        work.prepare([(home, [one])])
        assert len(loads) == loaded_so_far


def test_a_run_counts_what_chance_would_keep(settings, begin, tmp_path):
    corpus = tmp_path / "c.jsonl"
    model = begin("run-1", range(2, 14), **PROBABILITY)
    assert tools_to_do(settings, "run-1").tools == ["Calculator"]
    # 1. The pool has to be whole.
    filter_stage(settings, "run-1", "Calculator", "0/1")
    progress = "select done, total from annotation_progress where stage = 'placebo'"
    assert run_sql(settings, progress) == [(0, 12)]
    with pytest.raises(NoResultError, match="12 that are not scored"):
        placebo_stage(settings, "run-1", "Calculator", "0/1")
    for stage in (sample_stage, execute_stage, score_stage):
        stage(settings, "run-1", "Calculator", "0/1")
    # 2. A stage that stops in the middle and goes on in shards has the rows of one that does not stop.
    losses = run_sql(settings, "select * from call_losses order by call_id")
    model.seen.clear()
    model.texts_before_stop = 8
    with pytest.raises(StoppedError):
        placebo_stage(settings.model_copy(update={"micro_batch_documents": 2}), "run-1", "Calculator", "0/1")
    model.texts_before_stop = None
    [(done, _)] = run_sql(settings, progress)
    assert 0 < done < 12
    for shard in ("2/3", "0/3", "1/3"):
        placebo_stage(settings, "run-1", "Calculator", shard)
    assert run_sql(settings, progress) == [(12, 12)]
    stored = placebos(settings)
    assert undisturbed(settings, "run-1") == stored
    assert run_sql(settings, "select * from call_losses order by call_id") == losses  # untouched
    # 3. Each text has one call that helps, by 1 nat, and 23 that do not (L+ = 2.25); a placebo of that call
    #    saves -0.25 nats.
    kept = run_sql(
        settings, "select loss_reduction, placebo_reduction, information, placebos, gain from kept_calls"
    )
    assert kept == [(1.0, -0.25, 1.25, 3, 1.0)] * 12
    # 4. Of the calls without help, one in 23 draws the right result: its placebo is as good as the right
    #    call.
    check_tool(settings, "run-1", "Calculator")
    helpful = "is_sampled and gain >= 0.22"
    [(hits,)] = run_sql(settings, f"select count(*) from placebo_losses where {helpful}")
    numbers = "select threshold, calls, placebos, placebos_scored, false_discovery_rate from threshold_counts where run_id = '{}'"
    counts = run_sql(settings, numbers.format("run-1") + " order by threshold")
    assert 4 <= hits <= 24
    assert len(stored) == 12 * (24 - 1) + 12 * 3 + hits  # each of them is compared with one more
    rate = pytest.approx(min(1.0, hits / 12))
    assert counts == [(threshold, 12, hits, 288, rate) for threshold in (0.1, 0.22, 0.5)]
    # 5. Each call has placebos or none, each placebo a reduction or a reason.
    yields = "select reason, is_loss, count from yield_by_stage where run_id = 'run-1' and stage = 'placebo'"
    of = {reason: count for reason, _, count in run_sql(settings, yields)}
    assert of["calls"] == of["with_placebos"] + of.get("without_placebos", 0)
    assert of["placebos"] == of["scored"] + sum(
        count for _, is_loss, count in run_sql(settings, yields) if is_loss
    )
    # 6. A run with the same choices finds nothing to do, and has the same numbers.
    finish_run(settings, "run-1", "success")
    model.loads = 0
    start_run(settings, "run-2", choices(corpus, **PROBABILITY))
    assert tools_to_do(settings, "run-2").tools == []
    placebo_stage(settings, "run-2", "Calculator", "0/1")
    assert model.loads == 0
    finish_run(settings, "run-2", "success")
    assert run_sql(settings, numbers.format("run-2") + " order by threshold") == counts


def test_the_process_of_the_last_shard_draws_the_pool_for_the_placebos_of_its_shard(settings, begin):
    model = begin("r", range(2, 10))
    filter_stage(settings, "r", "Calculator", "0/1")
    pool, scored = (
        "select count(*) from placebo_pools",
        "select count(distinct document_id) from placebo_losses",
    )
    left = [
        functools.partial(why_nothing_to_do, settings, "r", "Calculator", shard) for shard in ("0/2", "1/2")
    ]
    # 1. The first shard finds calls of the other that are not scored.
    annotate_stage(settings, "r", "Calculator", "1/2")
    assert (run_sql(settings, pool), [why() for why in left]) == ([(0,)], [None, None])
    # 2. The last one has scored all calls, and still has the model.
    model.loads = 0
    annotate_stage(settings, "r", "Calculator", "0/2")
    assert (run_sql(settings, pool), model.loads) == ([(1,)], 1)
    of_shard = "select count(*) from documents where document_shard(document_id, 2) = {}"
    assert run_sql(settings, scored) == run_sql(settings, of_shard.format(0)) != [(8,)]
    assert [why() for why in left] == ["no document of shard 0/2 lacks its placebos", None]
    # 3. The rest is left to the stage; the rows are those that it writes by itself.
    placebo_stage(settings, "r", "Calculator", "1/2")
    stored = placebos(settings)
    assert undisturbed(settings, "r") == stored


STAGES_OF_NEW = "select distinct stage from micro_batches where run_id = 'new'"


def test_a_run_that_asks_for_placebos_later_scores_them_alone(settings, begin, tmp_path):
    model = begin("old", range(2, 10), placebos=0, placebo_sample=0)
    annotate(settings, "old")
    model.loads = 0
    placebo_stage(settings, "old", "Calculator", "0/1")  # asks for none
    assert why_nothing_to_do(settings, "old", "Calculator", "0/1") == "run old asks for no placebos"
    assert model.loads == 0
    finish_run(settings, "old", "success")
    assert "a run that asks for them" in held(settings, "old", 0.1).why_not
    # 1. Another run scores them, and counts; nothing is sampled or scored again.
    start_run(settings, "new", choices(tmp_path / "c.jsonl"))
    work(settings, "new")
    finish_run(settings, "new", "success")
    assert run_sql(settings, STAGES_OF_NEW) == [("placebo",)]
    counts = (
        "select threshold, calls, texts, false_discovery_rate is null, placebos_scored from threshold_counts "
        "where run_id = 'new'"
    )
    of_eight = [(0.5, 8, 8, False, 128), (1.0, 8, 8, False, 128), (2.0, 0, 0, True, 128)]
    assert run_sql(settings, f"{counts} order by threshold") == of_eight
    recipe = str(run_sql(settings, "select placebo_recipe_id from run_tools where run_id = 'new'")[0][0])
    every = run_sql(settings, "select call_id, document_id, result from call_losses where result is not null")
    with database.transaction(database.connect(settings)) as connection:
        assert load_pool(connection, recipe) == Pool.of_calls(every, PlaceboChoices())
    # 2. Which threshold holds a rate: a placebo that is right saves 1 nat, as every kept call, so none below
    #    1; nothing above.
    of_half = "select placebos from threshold_counts where run_id = 'new' and threshold = 0.5"
    one_more = (run_sql(settings, of_half)[0][0] + 1) / 8  # one placebo more, among eight kept calls
    assert held(settings, "new", 0.99 * one_more).threshold is None
    found = held(settings, "new", one_more)
    assert (found.threshold, found.calls) == (0.5, 8)
    # 3. The audit finds them in order, computes them again, and misses one that is gone.
    assert not audit(settings, "run", "new", sample=10).findings
    run_sql(
        settings,
        "delete from placebo_losses where call_id = (select min(call_id::text)::uuid from placebo_losses)",
    )
    assert audit(settings, "run", "new").findings
    # 4. What a forgotten text gave to the pool is gone, and the losses of others stay.
    [(forgotten,)] = run_sql(settings, "select document_id from documents order by document_id limit 1")
    of_others = f"document_id <> '{forgotten}'"
    of_text = f"select 1 from placebo_pool_results where document_id = '{forgotten}'"
    left = placebos(settings, of_others)
    assert run_sql(settings, of_text) != []
    forget(settings, [forgotten])
    assert run_sql(settings, of_text) == []
    assert placebos(settings, of_others) == left


def test_a_night_draws_from_the_pool_of_the_night_before_until_the_corpus_doubled(
    settings, tmp_path, use_model
):
    path = tmp_path / "c.jsonl"
    use_model(sums(range(2, 26)))

    def night(run_id: str, totals: range) -> tuple[str, set[str]]:
        """The pool, and the totals of the texts whose placebos were scored; some of the texts are new."""
        written(path, totals)
        ingest_corpus(settings, str(path))
        start_run(settings, run_id, choices(path))
        annotate(settings, run_id)
        of_run = (
            "select d.text from micro_batches b join stage_ledger using (batch_id) join documents d using (document_id) "
            f"where b.run_id = '{run_id}' and b.stage = 'placebo'"
        )
        check_tool(settings, run_id, "Calculator")
        finish_run(settings, run_id, "success")
        [(recipe,)] = run_sql(settings, f"select placebo_recipe_id from run_tools where run_id = '{run_id}'")
        return str(recipe), {text.split()[1] for (text,) in run_sql(settings, of_run)}

    numbers = "select run_id, threshold, calls, placebos, placebos_scored, false_discovery_rate, rate_high from threshold_counts"
    first, scored = night("night-1", range(2, 8))
    assert scored == {"2", "3", "4", "5", "6", "7"}
    of_first = run_sql(settings, f"{numbers} where run_id = 'night-1' order by threshold")
    # 1. Two new texts: the old ones' placebos are not scored again, the new ones' come from the same pool.
    assert night("night-2", range(2, 10)) == (first, {"8", "9"})
    of_old_texts = (
        "select bool_and(cast(placebo.source_document_id as uuid) in "
        "(select document_id from run_documents where run_id = 'night-1')) "
        "from call_placebos placebo where run_id = 'night-2' and source_call_id is not null"
    )
    assert run_sql(settings, of_old_texts) == [(True,)]
    # 2. The corpus has more than twice the documents: a new pool. The numbers of the first night are what
    #    they were.
    assert night("night-3", range(2, 16))[0] != first
    assert run_sql(settings, f"{numbers} where run_id = 'night-1' order by threshold") == of_first


def test_where_all_results_are_equal_no_placebo_is_possible(settings, tmp_path, use_model):
    same = tmp_path / "same.jsonl"
    texts = [f"Box {n} holds 2 pens and 3 caps, a total of 5 things." for n in range(4)]
    same.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    use_model(FakeLanguageModel(("Calculator(2 + 3)",)))
    ingest_corpus(settings, str(same))
    start_run(settings, "same", choices(same, max_false_discovery_rate=0.0))
    work(settings, "same")
    reasons = (
        "select reason, count from yield_by_stage where run_id = 'same' and stage = 'placebo' and is_loss"
    )
    assert run_sql(settings, reasons) == [("no_other_result", 8)]
    assert "no placebo is possible" in held(settings, "same", 0.1).why_not


def test_the_card_of_a_release_keeps_the_rates_of_the_run_that_made_it(
    settings, begin, tmp_path, monkeypatch
):
    corpus = tmp_path / "c.jsonl"
    begin("run-1", range(2, 14), min_kept_texts=1)
    work(settings, "run-1")
    first = release(settings, "run-1")
    finish_run(settings, "run-1", "success")
    store, prefix = ObjectStore(settings), release_prefix(first)
    manifest = store.read_manifest(prefix)
    assert manifest is not None
    [(on_card,)] = run_sql(settings, "select rates from dataset_releases")
    [(rate,)] = run_sql(settings, "select false_discovery_rate from placebo_rates where threshold = 0.5")
    assert on_card["Calculator"]["false_discovery_rate"] == rate
    require_sound(audit(settings, "release", first))
    # 1. A run with the same release and other rates: nothing that was published changes.
    start_run(settings, "run-2", choices(corpus, min_kept_texts=1))
    with database.transaction(database.connect(settings)) as connection:
        store_rates(connection, load_run_tool(connection, "run-2", "Calculator"))
    run_sql(
        settings,
        "update placebo_rates set false_discovery_rate = 0.7, rate_low = 0.6, rate_high = 0.8 where run_id = 'run-2'",
    )
    assert release(settings, "run-2") == first
    assert store.read_manifest(prefix) == manifest
    assert run_sql(settings, "select run_id, rates from dataset_releases") == [("run-1", on_card)]
    # 2. A card that was lost is written again as it was, also by the run with other rates.
    [card] = (manifest.key_of(file) for file in manifest.files if file.name == CARD)
    store.delete(card)
    assert release(settings, "run-2") == first
    assert (store.read_manifest(prefix), store.lacking(manifest)) == (manifest, {})
    # 3. Two runs publish at once, or the first one was killed before it registered the release: the first
    #    card stays.
    for table in ("run_releases", "release_calls", "dataset_releases"):
        run_sql(settings, f"delete from {table}")
    with monkeypatch.context() as at_once:
        answers = iter([None])  # the first run's manifest is written after the second has asked for it
        read = ObjectStore.read_manifest
        at_once.setattr(ObjectStore, "read_manifest", lambda *arguments: next(answers, read(*arguments)))
        assert release(settings, "run-2") == first
    assert store.read_manifest(prefix) == manifest
    found = run_sql(settings, "select run_id, manifest_sha256, rates from dataset_releases")
    assert found == [("run-2", manifest.sha256, None)]


def test_two_that_count_the_rates_at_once_store_them_once(settings, begin):
    begin("run-1", range(2, 8))
    annotate(settings, "run-1")
    placebo_stage(settings, "run-1", "Calculator", "0/1")
    engine = database.connect(settings)

    def count() -> dict[float, Any]:
        with database.transaction(engine) as connection:
            return dict(store_rates(connection, load_run_tool(connection, "run-1", "Calculator")))

    with ThreadPoolExecutor(1) as second:
        with database.transaction(engine) as connection:
            first = store_rates(connection, load_run_tool(connection, "run-1", "Calculator"))
            waiting = second.submit(count)
            while not run_sql(settings, "select 1 from pg_stat_activity where wait_event_type = 'Lock'"):
                assert not waiting.done()
                time.sleep(0.01)
        assert waiting.result() == first
    assert run_sql(settings, "select count(*) from placebo_rates") == [(len(first),)]


RULES = [PROBABILITY, {"prune_below": 0.5}]
COLUMNS = """document_id, call_id, position_char, position_token, position_probability, call_text, result,
    sample_count, proposed_by, input_only_after, loss_without_call, loss_without_result, loss_with_result,
    probability_without, probability_with, number_format, loss_reduction, information,
    placebo_reduction, placebos, gain"""


@pytest.mark.parametrize("rule", RULES)
def test_the_rows_of_a_folder_are_those_of_a_run(settings, begin, tmp_path, monkeypatch, rule):
    model = begin("run-1", range(3, 11), **rule)
    work(settings, "run-1")
    monkeypatch.setattr("toolformer_ops.on_a_file.annotate.annotator.load_scoring_model", model.load)
    Worker.of(settings, choices(tmp_path / "c.jsonl", **rule), f"{tmp_path}/calls/", 2, 3).work()
    # 1. The calls, their losses and means, as the view of a run has them.
    columns = COLUMNS.replace(",", " ").split()
    stored = run_sql(settings, f"select {COLUMNS} from scored_calls")
    parts = FolderParts(tmp_path / "calls")
    rows: list[dict[str, Any]] = []
    for name in parts.names("calls/"):
        rows += ledger_of(name, parts.get(name) or b"")[1].to_pylist()
    of_folder: dict[str, list[Any]] = {}
    for row in rows:
        if row["reason"] is None:
            named = {**row, "call_text": row["call"]}
            of_folder[row["call_id"]] = [named[name] for name in columns[2:]]
    assert {str(row.call_id): list(row[2:]) for row in stored} == of_folder
    # 2. Each placebo.
    of_run = [
        (str(row.call_id), row.number, row.source, row.loss_with_result, row.gain)
        for row in placebos(settings)
    ]
    drawn: list[tuple[Any, ...]] = []
    for row in rows:
        fields = ("number", "source", "loss_with_result", "gain")
        drawn += [(row["call_id"], *(item[name] for name in fields)) for item in row["placebo_losses"] or ()]
    assert sorted(drawn, key=str) == sorted(of_run, key=str)
    assert len(of_run) > 8
