"""The pages in tests: rows of two small runs, somebody who is signed in with chosen rights, and a browser."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from airflow.api_fastapi import app as airflow_app
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api import security
from fastapi import FastAPI
from fastapi.testclient import TestClient
from playwright.sync_api import Page, expect, sync_playwright
from pydantic import SecretStr

from tests.run_sql import run_sql
from tests.written_nights import RELEASED_CALLS_WERE_CHOSEN
from toolformer_ops.config import REPOSITORY, Settings
from toolformer_ops.run_page import rights
from toolformer_ops.run_page.app import create_app
from toolformer_ops.storage.postgres import database

ROWS = REPOSITORY / "tests" / "integration" / "data" / "small_annotation.sql"
OF_R1 = "dag_id=annotate_corpus&run_id=r1"
CHROMIUM = Path("/usr/bin/chromium")
needs_chromium = pytest.mark.skipif(
    not CHROMIUM.exists(), reason=f"needs {CHROMIUM}: apt-get install chromium"
)


class Rights:
    """Airflow's auth manager, with the DAGs that the only user may read."""

    def __init__(self, *dag_ids: str) -> None:
        self.dag_ids = set(dag_ids)
        self.without_runs: set[str] = set()
        """DAGs of them whose runs the user may not read."""

    def is_authorized_dag(self, *, details: Any, access_entity: Any = None, **_: Any) -> bool:
        return details.id in self.dag_ids and not (
            access_entity == DagAccessEntity.RUN and details.id in self.without_runs
        )

    def get_authorized_dag_ids(self, **_: Any) -> set[str]:
        return self.dag_ids

    def get_url_login(self, **_: Any) -> str:
        return "/auth/login"


_MADE: list[FastAPI] = []
"""The applications of the test that runs."""


@pytest.fixture
def allowed(monkeypatch):
    """What the user may read: the DAG `annotate_corpus`.

    After the test its applications give their connections back.
    """
    manager = Rights("annotate_corpus")
    for module in (security, airflow_app, rights):
        monkeypatch.setattr(module, "get_auth_manager", lambda: manager)
    monkeypatch.setattr(security.DagModel, "get_team_name", lambda dag_id: None)
    yield manager
    while _MADE:
        if (engine := _MADE.pop().state.reader._engine) is not None:
            # the role of the page has 20 connections, for all databases of the tests' server
            engine.dispose()


def application(**addresses: str) -> FastAPI:
    """The application with these addresses of Postgres, such as `reader_dsn`, and no others."""
    app = create_app(Settings(_env_file=None, **{name: SecretStr(dsn) for name, dsn in addresses.items()}))
    _MADE.append(app)
    return app


def sign_in(app: FastAPI, name: str = "somebody") -> None:
    """From now on every request is of this user."""

    async def user() -> Any:
        return SimpleNamespace(get_id=lambda: "1", get_name=lambda: name)

    app.dependency_overrides[security.get_user] = user


@pytest.fixture
def rows(engine):
    """Writes rows as the owner; the two runs of the small annotation are there."""
    with database.transaction(engine) as connection, database.raw_cursor(connection) as cursor:
        cursor.execute(ROWS.read_text())
        cursor.execute(RELEASED_CALLS_WERE_CHOSEN)
    return partial(run_sql, engine)


@pytest.fixture
def client(allowed, rows, reader_dsn):
    """A browser of somebody who is signed in, over an application with the reader's address and no other.

    Besides the small annotation there are a night of the schedule `posts`, and the run r9, which never
    started.
    """
    rows(
        "insert into annotation_runs (run_id, corpus_id, corpus_uri, corpus_version, tools, state, schedule) values "
        "('nightly_posts.n1', 'c000000000000000', 's3://toolformer/corpora/posts', 1, '{Calculator}', 'running', 'posts'); "
        "insert into run_tools (run_id, tool, filter_recipe_id, sampling_recipe_id, execution_recipe_id, scoring_recipe_id, "
        "tool_version, keep_threshold) values ('nightly_posts.n1', 'Calculator', 'f1', '51', 'e1', 'a1', '1', 1.0); "
        "insert into corpus_versions (corpus_id, version, documents, added, removed, corrected, changed, kept, files, records, "
        "duplicates, rejected) values ('c000000000000000', 1, 4, 4, 0, 0, 0, 0, 2, 7, 0, 3)"
    )
    rows(
        "insert into runs_not_started (run_id, problem) values ('r9', 'failed: ingest. There is no release.')"
    )
    app = application(reader_dsn=reader_dsn)
    sign_in(app)
    with TestClient(app) as client:
        yield client


@contextmanager
def browser(app: FastAPI) -> Iterator[tuple[Page, str]]:
    """A page of Chromium, and the address at which it finds the application."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            with sync_playwright() as playwright:
                chromium = playwright.chromium.launch(
                    executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
                )
                expect.set_options(timeout=60_000)
                yield chromium.new_page(), f"http://127.0.0.1:{listening.getsockname()[1]}"
                chromium.close()
        finally:
            server.should_exit = True
            thread.join()
