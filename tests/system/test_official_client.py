"""Airflow's own REST client starts a run, follows it to its end and reads its log, as other people's programs do."""

import httpx
import pytest

from tests.system.conftest import TEXTS, put_lines, run_stages_as, until
from toolformer_ops.airflow_tasks.airflow_client import ENDED_STATES

pytestmark = pytest.mark.system

INGEST = "ingest_corpus"
OURS = {
    "annotate_corpus",
    "audit",
    "build_wiki_index",
    "finetune_release",
    "ingest_corpus",
    "retention",
    "send_notifications",
}


@pytest.fixture(scope="module")
def official():
    """Its module, imported in a CPU second, which workers that run other files need not spend."""
    import airflow_client.client

    return airflow_client.client


@pytest.fixture(scope="module")
def client(services, official):
    """The client, with the token of a user and a password."""
    login = {"username": services.airflow_username, "password": services.airflow_password.get_secret_value()}
    token = httpx.post(f"{services.airflow_url}/auth/token", json=login).json()["access_token"]
    configuration = official.Configuration(host=services.airflow_url, access_token=token)
    with official.ApiClient(configuration) as api:
        yield api


def test_it_finds_our_dags_by_their_tag(official, client):
    found = official.DAGApi(client).get_dags(tags=["toolformer"])
    assert {dag.dag_id for dag in found.dags} >= OURS


def test_no_dag_of_ours_is_paused_when_airflow_first_meets_it(official, client):
    found = official.DAGApi(client).get_dags(tags=["toolformer"])
    assert [dag.dag_id for dag in found.dags if dag.dag_id in OURS and dag.is_paused] == []


def test_a_run_id_that_no_folder_of_logs_can_have_is_refused(official, client):
    body = official.TriggerDAGRunPostBody(
        dag_run_id="r" * 201, logical_date=None, conf={"corpus": "s3://b/c"}
    )
    with pytest.raises(official.exceptions.BadRequestException, match="does not match regex pattern"):
        official.DagRunApi(client).trigger_dag_run(INGEST, body)


@pytest.mark.slow
def test_a_run_is_followed_to_its_end_with_its_log(services, airflow, official, client):
    run_stages_as(services, airflow, "local")
    runs, run_id = official.DagRunApi(client), "r" * 200
    corpus = put_lines(services, "corpora/of-the-client.jsonl", TEXTS)
    body = official.TriggerDAGRunPostBody(dag_run_id=run_id, logical_date=None, conf={"corpus": corpus})
    runs.trigger_dag_run(INGEST, body)
    until("an ingestion", lambda: runs.get_dag_run(INGEST, run_id).state in ENDED_STATES)
    assert runs.get_dag_run(INGEST, run_id).state == "success"
    log = official.TaskInstanceApi(client).get_log(INGEST, run_id, "ingest", 1, full_content=True)
    assert f"{len(TEXTS)} documents" in str(log.content)
