"""What a sink of lineage gets: events of OpenLineage over HTTP, sent by Airflow's provider with its own client."""

import http.server
import json
import threading
import uuid
from typing import Any

import pytest
from airflow.providers.openlineage.plugins.adapter import OpenLineageAdapter
from openlineage.client import OpenLineageClient
from openlineage.client.transport.http import HttpConfig, HttpTransport

from tests.clients.conftest import Released
from toolformer_ops.airflow_tasks.lineage import lineage_of

Event = dict[str, Any]


class Sink(http.server.ThreadingHTTPServer):
    """Takes events as Marquez and DataHub do: JSON, by POST to /api/v1/lineage."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.events: list[Event] = []
        self.paths: set[str] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Sink

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.paths.add(self.path)
        self.server.events.append(json.loads(body))
        self.send_response(201)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def sink():
    with Sink() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def sent(released: Released, sink: Sink, *arguments: str) -> Event:
    """The event that a sink gets when a stage with these arguments has ended."""
    client = OpenLineageClient(transport=HttpTransport(HttpConfig.from_dict({"url": sink.url})))
    OpenLineageAdapter(client).complete_task(
        run_id=str(uuid.uuid4()),
        job_name=f"annotate_corpus.{arguments[0]}",
        end_time="2026-11-26T02:00:00+00:00",
        task=lineage_of(released.settings, ["stage", *arguments]),
        nominal_start_time=None,
        nominal_end_time=None,
        owners=["toolformer"],
        tags=[],
        job_description=None,
    )
    client.close()
    [event] = sink.events
    return event


def names(of: list[Event]) -> set[str]:
    return {f"{item['namespace']}/{item['name']}" for item in of}


def test_a_release_is_an_output_by_the_address_at_which_it_can_be_read(released, sink):
    event = sent(released, sink, "release", "--run", released.run_id)
    bucket = f"s3://{released.settings.s3_bucket}"
    assert f"{bucket}/releases/{released.release_id}" in names(event["outputs"])
    assert (event["eventType"], event["job"]["name"]) == ("COMPLETE", "annotate_corpus.release")


def test_the_rows_that_a_release_holds_are_counted(released, sink):
    event = sent(released, sink, "release", "--run", released.run_id)
    [release] = [item for item in event["outputs"] if item["namespace"].startswith("s3://")]
    assert release["outputFacets"]["outputStatistics"]["rowCount"] == 2
    assert release["facets"]["version"]["datasetVersion"] == released.release_id


def test_an_event_holds_neither_a_text_nor_a_login(released, sink):
    said = json.dumps(sent(released, sink, "release", "--run", released.run_id))
    assert "shirts" not in said
    assert released.settings.s3_secret_access_key.get_secret_value() not in said


def test_a_sink_is_asked_at_the_path_of_the_standard(released, sink):
    sent(released, sink, "release", "--run", released.run_id)
    assert sink.paths == {"/api/v1/lineage"}
