"""A run over a release: a date, then a sum with its year, stored with its parent, released, and taken out again."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.annotated_runs import release
from tests.fake_language_model import FakeLanguageModel, loaded_by_stages, with_terms
from tests.finetuning_jobs import plain_text
from tests.run_sql import run_sql
from toolformer_ops.audit.auditing import Auditing, subjects_of
from toolformer_ops.audit.checking import check_release, check_tool
from toolformer_ops.audit.objects import releases as check_releases
from toolformer_ops.audit.rows import stage_rows
from toolformer_ops.call_syntax import take_out
from toolformer_ops.config import Settings
from toolformer_ops.errors import CorpusError, UsageError
from toolformer_ops.on_a_file.annotate.workers import Worker
from toolformer_ops.on_a_file.loading import load_prefix
from toolformer_ops.records import CallLosses, PlacedCall, document_id_of
from toolformer_ops.release.conversations import conversation
from toolformer_ops.release.format import ReleasedText, read_release
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.stages.annotating import annotate_stage
from toolformer_ops.stages.filtering import filter_stage
from toolformer_ops.stages.ingestion import ingest_corpus
from toolformer_ops.stages.release import release_prefix
from toolformer_ops.stages.run_setup import finish_run, start_run
from toolformer_ops.storage.history.forgetting import forget
from toolformer_ops.storage.objects.publication import ObjectStore
from toolformer_ops.storage.postgres import database

AGED = "It was Friday today. Ada was born in 1987 and so she has lived a total of 33 years by now."
DATED = "It was Friday today. There were 2 cats and 4 dogs, a total of 6 animals, in the house of Ada."
WITH_DATE = AGED.replace(" Friday", " [Calendar() -> Today is Friday, November 20, 2020.] Friday")
WITH_BOTH = WITH_DATE.replace(" 33", " [Calculator(2020 - 1987) -> 33] 33")


class Model(FakeLanguageModel):
    """Expects a word where a call's result holds it."""

    def _exact_losses(self, text: str, call: PlacedCall) -> CallLosses:
        # Words of the text with calls are counted by spaces, so that tokens of the paragraph are words here,
        # too.
        word = text.split(" ")[call.token].strip(".,")
        return with_terms(CallLosses(2.0, 2.5, 1.0 if word in call.result.replace(",", "").split() else 2.25))


SCRIPT = ("Calculator(2020 - 1987)", "Calculator(2 + 4)", "Calendar()")


@pytest.fixture(autouse=True)
def _model(use_model):
    use_model(Model(SCRIPT))


def choices(corpus: str, tool: str, **changes: Any) -> RunChoices:
    values = {
        "corpus": corpus, "model": "fake", "tools": [tool], "max_positions": 20, "samples_per_position": 3, "placebos": 0,
        "placebo_sample": 0, "keep_thresholds": {tool: 0.5},
    }  # fmt: skip
    return RunChoices.parse(values | changes)


def released(settings: Settings, run_id: str, chosen: RunChoices) -> str:
    [tool] = chosen.tools
    ingest_corpus(settings, chosen.corpus)
    start_run(settings, run_id, chosen)
    filter_stage(settings, run_id, tool)
    annotate_stage(settings, run_id, tool, "0/1")
    check_tool(settings, run_id, tool)
    release_id = release(settings, run_id)
    check_release(settings, run_id)
    finish_run(settings, run_id, "success")
    return release_id


def write(settings: Settings) -> str:
    """The address of a release with the date in two texts."""
    corpus = settings.state_dir.with_name("dates.jsonl")  # no run reads a corpus in the state folder
    records = [{"text": text, "date": "2020-11-20"} for text in (AGED, DATED)]
    corpus.write_text("".join(json.dumps(record) + "\n" for record in records))
    with pytest.MonkeyPatch.context() as patch:
        loaded_by_stages(patch)(Model(SCRIPT))
        release_id = released(settings, "dates", choices(str(corpus), "Calendar"))
    return ObjectStore(settings).uri(release_prefix(release_id))


@pytest.fixture
def first(written):
    return written.value


def test_the_rows_of_workers_over_a_release_are_those_of_a_run(settings, first, tmp_path, monkeypatch):
    model = Model(SCRIPT)
    monkeypatch.setattr("toolformer_ops.on_a_file.annotate.annotator.load_scoring_model", model.load)
    chained = choices(first, "Calculator", chains=True)
    Worker.of(settings, chained, f"{tmp_path}/calls/", 1, 8).work()
    loaded = load_prefix(settings, f"{tmp_path}/calls")
    check_tool(settings, loaded.run_id, "Calculator")
    of_loaded = run_sql(settings, SCORED_OF, run=loaded.run_id), release(settings, loaded.run_id)
    run_sql(settings, "delete from stage_ledger where stage <> 'filter'")
    run_sql(settings, "truncate candidate_calls, call_results, call_losses, finished_work")
    release_id = released(settings, "sums", chained)
    assert (run_sql(settings, SCORED_OF, run="sums"), release_id) == of_loaded
    assert [row.parent_call for row in of_loaded[0]] == [0]


SCORED_OF = """select call.sampling_recipe_id, call.document_id, call.call_id, call.parent_call, losses.result,
    losses.loss_with_result
    from run_tools join candidate_calls call using (sampling_recipe_id)
    join call_losses losses using (scoring_recipe_id, call_id)
    where run_id = :run and losses.loss_reduction > 0.5 order by call.call_id"""


def texts(settings: Settings, release_id: str, folder: Path) -> list[ReleasedText]:
    ObjectStore(settings).fetch(release_prefix(release_id), folder)
    return list(read_release(folder))


def require_that_a_plain_run_refuses(settings: Settings, release_address: str) -> None:
    """A run without chains over the same texts shares no filter's decisions with one that has them, which is before or after it."""
    start_run(settings, "plain", choices(release_address, "Calculator"))
    filter_stage(settings, "plain", "Calculator")
    decided = """select distinct decision.kept, decision.reason
                 from filter_decisions decision join run_tools using (filter_recipe_id)
                 where run_id = 'plain'"""
    assert run_sql(settings, decided) == [(False, "holds_call_markup")]
    finish_run(settings, "plain", "failed")


def test_a_chain_goes_into_a_release_from_which_it_can_be_taken_out(settings, first, tmp_path):
    ingest_corpus(settings, first)
    require_that_a_plain_run_refuses(settings, first)
    second = released(settings, "sums", choices(first, "Calculator", chains=True))
    # 1. The release: the sum in the text with the date, and out of it again.
    [text] = texts(settings, second, tmp_path / "second")
    assert (text.text, text.plain_text) == (WITH_BOTH, WITH_DATE)
    assert take_out(text.text, ["Calculator"]) == WITH_DATE
    assert take_out(text.text, ["Calculator", "Calendar"]) == AGED
    assert text.tools == ("Calculator", "Calendar")
    messages = conversation(text, seed=0)
    assert [message["name"] for message in messages if message["role"] == "tool"] == [
        "Calendar",
        "Calculator",
    ]
    assert plain_text(messages) == AGED
    # 2. The call and its parent in SQL.
    assert run_sql(
        settings,
        """select chain.tool, kept.call_text, chain.parent_tool, parent.call_text, parent.document_id = chain.source_document_id
           from chained_calls chain
           join kept_calls kept using (run_id, tool, call_id)
           join scored_calls parent on parent.call_id = chain.parent_call_id""",
    ) == [("Calculator", "Calculator(2020 - 1987)", "Calendar", "Calendar()", True)]
    # 3. Every sample is counted: 2 + 4 uses no result, and no call is sampled before the date or right behind
    #    it.
    [(counts,)] = run_sql(
        settings,
        f"""select counts from stage_ledger
            where stage = 'sample' and document_id = '{document_id_of(WITH_DATE)}'""",
    )
    words_behind = (
        len(AGED.split(" ")) - 3
    )  # "It was Friday": the call is before the third word, which nothing separates from it
    assert counts["positions"] == words_behind
    assert counts["sample_without_earlier_result"] == counts["sample_of_another_tool"] == words_behind
    assert counts["candidates"] == words_behind
    # 4. The audit finds nothing.
    with database.transaction(database.connect(settings)) as connection:
        subjects = subjects_of(connection, "all", "")
    auditing = Auditing(settings, database.connect(settings), ObjectStore(settings), subjects, audit_id=0)
    assert check_releases(auditing, second, "").findings == []
    [(recipe_id,)] = run_sql(settings, "select sampling_recipe_id from run_tools where run_id = 'sums'")
    assert stage_rows("sample").page(auditing, recipe_id, "").findings == []
    # 5. A parent that is changed by hand is found.
    run_sql(settings, "update candidate_calls set parent_call = 1 where parent_call = 0")
    assert {finding.kind for finding in stage_rows("sample").page(auditing, recipe_id, "").findings} == {
        "changed"
    }


def test_chains_go_over_a_release_alone(settings, tmp_path):
    elsewhere = tmp_path / "claims.jsonl"
    elsewhere.write_text(json.dumps({"text": WITH_DATE}) + "\n")
    ingest_corpus(settings, str(elsewhere))
    with pytest.raises(UsageError, match="expected the s3:// address of a release"):
        start_run(settings, "claimed", choices(str(elsewhere), "Calculator", chains=True))


def test_chains_go_over_the_bytes_of_a_release(settings, first, tmp_path):
    second = released(settings, "sums", choices(first, "Calculator", chains=True))
    assert [text.text for text in texts(settings, second, tmp_path / "second")] == [WITH_BOTH]
    require_that_a_plain_run_refuses(settings, first)
    run_sql(settings, "update corpus_files set content_sha256 = repeat('0', 64) where file_uri like 's3:%'")
    with pytest.raises(CorpusError, match="expected the files of release"):
        start_run(settings, "swapped", choices(first, "Calculator", chains=True))


def test_chains_go_over_no_release_of_chains(settings, first):
    second = released(settings, "sums", choices(first, "Calculator", chains=True))
    address = ObjectStore(settings).uri(release_prefix(second))
    with pytest.raises(UsageError, match="A chain has two calls"):
        start_run(settings, "third", choices(address, "Calculator", chains=True))


def test_a_forgotten_text_takes_those_with_it_that_hold_it(settings, first):
    second = released(settings, "sums", choices(first, "Calculator", chains=True))
    forgotten = forget(settings, document_ids=[document_id_of(AGED)])
    assert {place.publication_id for place in forgotten.places} == {first.rpartition("/")[2], second}
    left = {text for (text,) in run_sql(settings, "select text from documents")}
    assert AGED not in left
    assert not any("1987" in text for text in left)
    assert run_sql(settings, "select count(*) from chained_texts") == [(1,)]
