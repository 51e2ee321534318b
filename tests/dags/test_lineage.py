"""What stages tell Airflow's OpenLineage provider: datasets with versions, counts and checks."""

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.openlineage.extractors.manager import ExtractorManager
from openlineage.client.serde import Serde

from tests.annotated_runs import AnnotatedRun, release
from toolformer_ops.airflow_tasks.local_process import StageProcess
from toolformer_ops.audit.checking import check_release, check_tool
from toolformer_ops.errors import NoResultError
from toolformer_ops.stages.ingestion import ingest_corpus

SUM = "Out of 1400 people, 400 passed, that is 29 %."
Sent = dict[str, dict[str, dict[str, Any]]]


def told(*arguments: str) -> Sent:
    """What the provider sends when a stage with these arguments has ended: inputs and outputs by name, without the schema's."""
    task = StageProcess(task_id="stage", arguments=["stage", *arguments])
    found = ExtractorManager().extract_metadata(
        dagrun=SimpleNamespace(dag_id="d", run_id="r"),
        task=task,
        task_instance_state=None,
        task_instance=None,
    )
    sent = {"inputs": map(Serde.to_dict, found.inputs), "outputs": map(Serde.to_dict, found.outputs)}
    return {side: {item["name"].rpartition(".")[2]: item for item in items} for side, items in sent.items()}


@pytest.fixture
def run(settings):
    made = AnnotatedRun(settings, {"Calculator": 0.5})
    made.add_call("Calculator", made.add_text(SUM), " 29", "400 / 1400", "0.29", saves=1.25)
    made.complete("Calculator")
    made.change(
        "insert into micro_batches (run_id, tool, stage, recipe_id, documents, rows_written) "
        "values ('run-1', 'Calculator', 'sample', 'r', 1, 4), ('run-1', 'Calculator', 'sample', 'r', 1, 3), "
        "('run-1', 'QA', 'sample', 'r', 1, 9)"
    )
    return made


def test_a_shard_names_its_tables_with_the_corpus_at_the_version_of_the_run(run):
    sent = told("sample", "--run", "run-1", "--tool", "Calculator", "--shard", "0/2")
    assert sent["inputs"].keys() == {"corpus_documents", "filter_decisions"}
    assert sent["outputs"].keys() == {"candidate_calls"}
    corpus = sent["inputs"]["corpus_documents"]
    assert corpus["facets"]["version"]["datasetVersion"] == "corpus version 1"
    url = run.engine.url
    assert corpus["namespace"] == f"postgres://{url.host}:{url.port}"
    assert corpus["name"] == f"{url.database}.public.corpus_documents"


def test_a_check_has_the_rows_of_all_shards_with_its_findings_also_where_it_fails(settings, run):
    with pytest.raises(NoResultError, match="recipes_are_described"):  # nobody described them here
        check_tool(settings, "run-1", "Calculator")
    sent = told("check", "--run", "run-1")["inputs"]
    assert set(sent) == {"filter_decisions", "candidate_calls", "call_results", "call_losses"}
    assert sent["candidate_calls"]["inputFacets"]["inputStatistics"]["rowCount"] == 1 + 4 + 3 + 9
    found = sent["call_losses"]["inputFacets"]["dataQualityAssertions"]["assertions"]
    assert {(item["assertion"], item["success"], item["severity"]) for item in found} >= {
        ("recipes_are_described", False, "error"),
        ("enough_texts_are_kept", True, "error"),
        ("some_call_is_kept", True, "warn"),
    }


def test_a_release_is_made_of_tables_then_checked_by_name(settings, run):
    before = told("release", "--run", "run-1")
    assert before["outputs"] == {}
    release_id = release(settings, "run-1")
    check_release(settings, "run-1")
    sent = told("release", "--run", "run-1")
    name = f"releases/{release_id}"
    assert set(sent["inputs"]) >= {"corpus_documents", "candidate_calls", "call_results", "call_losses"}
    assert set(sent["outputs"]) == {name, "release_calls"}
    made = sent["outputs"][name]
    assert made["namespace"] == f"s3://{settings.s3_bucket}"
    assert made["facets"]["version"]["datasetVersion"] == release_id
    assert made["outputFacets"]["outputStatistics"]["rowCount"] == 1
    checked = told("check-release", "--run", "run-1")["inputs"][name]
    found = checked["inputFacets"]["dataQualityAssertions"]["assertions"]
    assert {item["assertion"]: item["success"] for item in found}["calls_removed_give_the_text_back"]
    trained = told("finetune", "--run", "run-1")
    assert (set(trained["inputs"]), trained["outputs"]) == ({name}, {})
    # Nothing that was told lets anybody sign in.
    secrets = (run.engine.url.password, settings.s3_secret_access_key.get_secret_value())
    assert all(secret and secret not in str((before, sent, trained)) for secret in secrets)


def test_a_corpus_with_a_mapping_leads_from_the_address_of_its_files_to_its_version(settings, tmp_path):
    path = tmp_path / "posts.jsonl"
    path.write_text('{"raw": "One."}\n')
    ingest_corpus(settings, f"{path} --field text=raw")
    sent = told("ingest", "--corpus", str(path), "--field", "text=raw")
    assert list(sent["inputs"]) == [str(path).rpartition(".")[2]]
    [corpus] = sent["outputs"].values()
    assert corpus["facets"]["version"]["datasetVersion"] == "corpus version 1"


def test_a_corpus_leads_from_its_address_to_its_table(settings):
    sent = told("ingest", "--corpus", "s3://corpora/posts")
    assert (sent["inputs"]["posts"]["namespace"], sent["outputs"]) == ("s3://corpora", {})
    assert told("start-run", "--run", "r") == {"inputs": {}, "outputs": {}}
