"""`up`, `down`, `status` of the embedded Postgres and S3, and what `up` repairs. Airflow is started in `tests/system`."""

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import psycopg2
import pytest
from pydantic import SecretStr
from sqlalchemy import make_url
from typer.testing import CliRunner

from tests.servers import directory_in_memory
from toolformer_ops.cli.services import app
from toolformer_ops.config import Settings, load_settings
from toolformer_ops.local import lifecycle, ports, supervision
from toolformer_ops.local.accounts import relocated_directory
from toolformer_ops.local.lifecycle import ServiceStatus, delete_state, down, status, up
from toolformer_ops.local.object_store import ObjectStoreAddress
from toolformer_ops.local.ports import accepts_connections, choose_port, recalled_ports
from toolformer_ops.local.postgres import READER
from toolformer_ops.local.state_folder import StatePaths
from toolformer_ops.local.supervision import ProcessReport, Supervisor
from toolformer_ops.storage import database

WITHOUT_AIRFLOW = ("postgres", "object_store")
LONG_STATUS = [
    ServiceStatus(ProcessReport(name, "", "RUNNING", process_id, 0), address, 3661, 123_000_000)
    for name, process_id, address in (
        ("postgres", 4_100_001, "127.0.0.1:15432"),
        ("object-store", 4_100_002, "http://127.0.0.1:18333"),
        ("airflow-api-server", 4_100_003, "http://127.0.0.1:28080"),
    )
]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StatePaths]:
    """A state folder of the test's own; what runs in it is stopped after the test."""
    with directory_in_memory(tmp_path) as folder:
        paths = StatePaths(folder / "state")
        monkeypatch.setenv("TOOLFORMER_STATE_DIR", str(paths.state))
        for name in ("POSTGRES", "S3", "AIRFLOW"):  # another deployment may be on the usual ones
            monkeypatch.setenv(f"TOOLFORMER_{name}_PORT", str(choose_port()))
        load_settings.cache_clear()
        yield paths
        delete_state(load_settings())


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def processes(settings: Settings) -> dict[str, int]:
    return {service.report.name: service.report.process_id for service in status(settings) if service.report.process_id}


def remember(settings: Settings, corpus: str) -> None:
    with closing(psycopg2.connect(settings.database_dsn.get_secret_value())) as connection:
        connection.cursor().execute(
            "insert into corpora (corpus_id, uri) values (%s, %s)", (corpus, f"file:///{corpus}")
        )
        connection.commit()


def remembered(settings: Settings) -> list[str]:
    with closing(psycopg2.connect(settings.reader_dsn.get_secret_value())) as connection:
        cursor = connection.cursor()
        cursor.execute("select corpus_id from corpora order by corpus_id")
        return [row[0] for row in cursor.fetchall()]


def object_store(settings: Settings) -> ObjectStoreAddress:
    assert settings.s3_endpoint_url is not None
    assert settings.s3_access_key_id is not None
    assert settings.s3_secret_access_key is not None
    return ObjectStoreAddress(
        settings.s3_endpoint_url,
        settings.s3_access_key_id.get_secret_value(),
        settings.s3_secret_access_key.get_secret_value(),
    )


def test_services_start_stop_and_keep_what_they_were_given(state: StatePaths, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = up(load_settings(), WITHOUT_AIRFLOW)
    assert load_settings().database_dsn == settings.database_dsn, "the environment file holds another address"
    assert set(processes(settings)) == {"postgres", "object-store"}
    remember(settings, "0123456789abcdef")
    client = object_store(settings).client()
    client.put_object(Bucket=settings.s3_bucket, Key="kept", Body=b"content" * 10_000)
    before = processes(settings)
    # What the reader does to its own role, the page does not feel, and the next `up` puts right.
    page = make_url(settings.reader_dsn.get_secret_value())
    reader = page.set(username=READER, password=json.loads(state.secrets.read_text())["postgres_reader"])
    with closing(psycopg2.connect(reader.render_as_string(hide_password=False))) as connection:
        cursor = connection.cursor()
        cursor.execute("set transaction read write")
        cursor.execute("alter role toolformer_reader set search_path = 'x'; alter role toolformer_reader password 'x'")
        connection.commit()
    assert (page.username, remembered(settings)) == ("toolformer_page", ["0123456789abcdef"])
    up(load_settings(), WITHOUT_AIRFLOW)
    assert processes(settings) == before, "a second `up` restarted what ran"
    as_reader = settings.model_copy(update={"reader_dsn": SecretStr(reader.render_as_string(hide_password=False))})
    assert remembered(as_reader) == ["0123456789abcdef"]

    assert down(settings)
    assert not any(psutil.pid_exists(process_id) for process_id in before.values())
    assert status(settings) == []
    assert not down(settings), "the second `down` found something"

    again = up(load_settings(), WITHOUT_AIRFLOW)
    assert again == settings, "addresses and passwords changed"
    assert remembered(again) == ["0123456789abcdef"]
    down(again)
    state.ports.unlink()
    monkeypatch.setenv("TOOLFORMER_S3_PORT", str(choose_port()))
    moved = up(load_settings(), ["object_store"])
    assert moved.s3_endpoint_url != settings.s3_endpoint_url
    kept = object_store(moved).client(timeout_seconds=30).get_object(Bucket=moved.s3_bucket, Key="kept")
    assert kept["Body"].read() == b"content" * 10_000


def test_what_was_killed_comes_back_with_its_data_and_up_says_what_it_found(
    state: StatePaths, caplog: pytest.LogCaptureFixture
) -> None:
    settings = up(load_settings(), WITHOUT_AIRFLOW)
    remember(settings, "00000000000000aa")
    # 1. The services.
    before = processes(settings)
    for process_id in before.values():
        os.kill(process_id, signal.SIGKILL)
    wait_until(lambda: not set(before.values()) & set(processes(settings).values()), "the supervisor saw nothing")
    up(load_settings(), WITHOUT_AIRFLOW)
    assert f"postgres (process {before['postgres']}) had ended" in caplog.text
    assert f"object-store (process {before['object-store']}) had ended" in caplog.text
    # 2. The supervisor, which takes its services along.
    remember(settings, "00000000000000bb")
    before = processes(settings)
    supervisor = Supervisor(state).process_id()
    assert supervisor is not None
    os.kill(supervisor, signal.SIGKILL)
    wait_until(lambda: not any(map(psutil.pid_exists, before.values())), "services outlived their supervisor")
    up(load_settings(), WITHOUT_AIRFLOW)
    assert "stale pid file" in caplog.text
    assert remembered(settings) == ["00000000000000aa", "00000000000000bb"]


def test_postgres_starts_though_its_pid_file_names_another_process_and_its_port_is_taken(
    state: StatePaths, caplog: pytest.LogCaptureFixture
) -> None:
    settings = up(load_settings(), ["postgres"])
    remember(settings, "00000000000000cc")
    down(settings)
    folders = (state.postgres, relocated_directory(state.postgres))
    data = next(folder / "data" for folder in folders if (folder / "data").exists())
    (data / "postmaster.pid").write_text(f"{os.getpid()}\n{data}\n")
    port = recalled_ports(state)["postgres"]
    with contextlib.closing(socket.socket()) as squatter:
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        squatter.bind(("127.0.0.1", port))
        squatter.listen()
        moved = up(load_settings(), ["postgres"])
        assert recalled_ports(state)["postgres"] != port
        assert remembered(moved) == ["00000000000000cc"]
    assert f"stale pid file (process {os.getpid()}) was removed" in caplog.text


def test_a_port_that_is_lost_between_choice_and_use_costs_a_second_try(
    state: StatePaths, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    choices: list[dict[str, int]] = []

    def settle_late(*arguments: Any) -> dict[str, int]:
        settled = ports.settle_ports(*arguments)
        choices.append(settled | ({"postgres": squatter.getsockname()[1]} if not choices else {}))
        return choices[-1]

    monkeypatch.setattr(lifecycle, "settle_ports", settle_late)
    with contextlib.closing(socket.socket()) as squatter:
        squatter.bind(("127.0.0.1", 0))
        squatter.listen()
        settings = up(load_settings(), ["postgres"])
    assert len(choices) == 2
    assert remembered(settings) == []
    assert "another program took the port of postgres" in caplog.text


def test_only_the_service_with_other_settings_is_restarted_and_up_says_so_before(
    state: StatePaths, caplog: pytest.LogCaptureFixture
) -> None:
    state.make()
    settings = load_settings()
    supervisor = Supervisor(state)
    program = "[group:{0}]\nprograms={0}\n[program:{0}]\ncommand=sleep {1}\nautostart=false\n"
    head = f"""[unix_http_server]
file={supervisor.socket}
[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface
[supervisord]
logfile={state.logs}/supervisord.log
pidfile={state.state}/supervisord.pid
"""
    supervisor.apply(head + program.format("postgres", 100) + program.format("airflow", 100))
    supervisor.start()
    for service in ("postgres", "airflow"):
        assert supervisor.start_service(service)
        assert not supervisor.start_service(service)
    before = processes(settings)

    supervisor.apply(head + program.format("postgres", 100) + program.format("airflow", 200))
    assert processes(settings) == {"postgres": before["postgres"]}
    assert "airflow runs with other settings than those of now: it is stopped and started again" in caplog.text
    assert "postgres runs with other settings" not in caplog.text
    assert supervisor.start_service("airflow")
    assert processes(settings)["airflow"] != before["airflow"]


def test_up_from_another_shell_restarts_nothing_and_with_other_settings_that_service_though_another_was_asked_for(
    state: StatePaths, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = processes(up(load_settings(), WITHOUT_AIRFLOW))
    monkeypatch.setenv("PATH", f"/somewhere/else:{os.environ['PATH']}")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert processes(up(load_settings(), ["postgres"])) == before
    assert "`toolformer-ops down` before `toolformer-ops up`, if they are to see the new OMP_NUM_THREADS" in caplog.text
    command = supervision.weed_command
    monkeypatch.setattr(supervision, "weed_command", lambda *values: [*command(*values), "-s3.domainName=s3.example"])
    settings = up(load_settings(), ["postgres"])
    after = processes(settings)
    assert after["postgres"] == before["postgres"]
    assert after["object-store"] != before["object-store"]
    assert object_store(settings).client().list_buckets()["Buckets"]


def test_addresses_are_shown_whole_in_a_narrow_terminal(state: StatePaths, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = CliRunner()
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(lifecycle, "status", lambda _settings: LONG_STATUS)
    lines = runner.invoke(app, ["status"]).output.splitlines()
    assert len(lines) == 1 + len(LONG_STATUS), "a line was broken"
    for line, service in zip(lines[1:], LONG_STATUS, strict=True):
        assert service.report.name in line
        assert service.address in line
        assert str(service.report.process_id) in line
        assert "1 h 1 min" in line


def test_commands_show_and_query_and_clean(state: StatePaths) -> None:
    runner = CliRunner()
    assert runner.invoke(app, ["status"]).exit_code == 1
    started = runner.invoke(app, ["up", "--only", "postgres"])
    assert started.exit_code == 0, started.output
    assert f"127.0.0.1:{recalled_ports(state)['postgres']}" in started.output
    assert runner.invoke(app, ["migrate"]).output.strip() == "nothing to do"
    assert runner.invoke(app, ["sql", "select count(*) from documents"]).exit_code == 0
    assert runner.invoke(app, ["sql", "delete from documents"]).exit_code == 2
    example = (database.SQL_DIR / "examples" / "13_what_became_of_the_candidates.sql").read_text()
    assert runner.invoke(app, ["sql", "-"], input=example).exit_code == 0
    assert runner.invoke(app, ["sql", "--run=no-such-run", "--", example]).exit_code == 2
    for command in (r"\! touch {}", r"\copy documents to '{}'", r"select 1 \g {}", r"\o {}"):  # psql's own, not SQL
        written = state.state / "written"
        assert runner.invoke(app, ["sql", "select 1;\n" + command.format(written)]).exit_code == 2
        assert not written.exists()
    assert runner.invoke(app, ["logs", "postgres"]).exit_code == 0
    assert runner.invoke(app, ["clean", "--yes"]).exit_code == 0
    assert not state.state.exists()
    assert not accepts_connections(int(os.environ["TOOLFORMER_POSTGRES_PORT"]))
