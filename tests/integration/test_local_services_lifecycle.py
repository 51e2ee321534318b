"""`up`, `down`, `status` of the embedded Postgres and S3, and what `up` repairs.

Airflow is started in `tests/system`.
"""

import contextlib
import os
import signal
import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psutil
import psycopg2
import pytest
from click.testing import Result
from pydantic import SecretStr
from sqlalchemy import make_url
from typer.testing import CliRunner

from tests.run_sql import run_sql
from tests.servers import directory_in_memory, free_port
from toolformer_ops.cli.services import app
from toolformer_ops.config import Settings, load_settings
from toolformer_ops.errors import BlockedMigrationError, ServiceError
from toolformer_ops.local.lifecycle import delete_state, down, status, up
from toolformer_ops.local.ports import choose_ports, is_free, recalled_ports
from toolformer_ops.local.postgres import READER, cluster_of
from toolformer_ops.local.state_folder import StatePaths, load_or_make_secrets
from toolformer_ops.storage import schema
from toolformer_ops.storage.publication import ObjectStore

WITHOUT_AIRFLOW = ("postgres", "object_store")


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StatePaths]:
    """A state folder of the test's own; what runs in it is stopped after the test."""
    with directory_in_memory(tmp_path) as folder:
        paths = StatePaths(folder / "state")
        monkeypatch.setenv("TOOLFORMER_STATE_DIR", str(paths.state))
        for name in ("POSTGRES", "S3", "AIRFLOW"):  # another deployment may be on the usual ones
            monkeypatch.setenv(f"TOOLFORMER_{name}_PORT", str(free_port()))
        load_settings.cache_clear()
        yield paths
        delete_state(load_settings())


def squatter(port: int) -> socket.socket:
    """Another program that listens on a port."""
    return socket.create_server(("127.0.0.1", port))


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def processes(settings: Settings) -> dict[str, int]:
    return {report.name: report.process_id for report, _ in status(settings) if report.process_id}


def remember(settings: Settings, corpus: str) -> None:
    run_sql(
        settings,
        "insert into corpora (corpus_id, uri) values (:id, :uri)",
        id=corpus,
        uri=f"file:///{corpus}",
    )


def remembered(settings: Settings) -> list[str]:
    with closing(psycopg2.connect(settings.reader_dsn.get_secret_value())) as connection:
        cursor = connection.cursor()
        cursor.execute("select corpus_id from corpora order by corpus_id")
        return [row[0] for row in cursor.fetchall()]


def command(*words: str, **options: str) -> Result:
    return CliRunner().invoke(app, words, **options)  # type: ignore[arg-type]


def test_services_start_stop_and_keep_what_they_were_given(
    state: StatePaths, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert command("status").exit_code == 1
    settings = up(load_settings(), WITHOUT_AIRFLOW)
    assert load_settings().database_dsn == settings.database_dsn, "the environment file holds another address"
    assert set(processes(settings)) == {"postgres", "object-store"}
    assert stat.S_IMODE(state.supervisor_configuration.stat().st_mode) == 0o600
    remember(settings, "0123456789abcdef")
    ObjectStore(settings).put("kept", b"content" * 10_000, "text/plain")
    before = processes(settings)
    # What the reader does to its own role, the page does not feel, and the next `up` puts right.
    page = make_url(settings.reader_dsn.get_secret_value())
    reader = page.set(username=READER, password=load_or_make_secrets(state.secrets).postgres_reader)
    as_reader = settings.model_copy(
        update={"reader_dsn": SecretStr(reader.render_as_string(hide_password=False))}
    )
    with closing(psycopg2.connect(as_reader.reader_dsn.get_secret_value())) as connection:
        cursor = connection.cursor()
        cursor.execute("set transaction read write")
        cursor.execute(
            "alter role toolformer_reader set search_path = 'x'; alter role toolformer_reader password 'x'"
        )
        connection.commit()
    assert (page.username, remembered(settings)) == ("toolformer_page", ["0123456789abcdef"])
    monkeypatch.setenv("TOOLFORMER_MICRO_BATCH_DOCUMENTS", "7")  # as from another shell
    up(load_settings(), WITHOUT_AIRFLOW)
    assert "TOOLFORMER_MICRO_BATCH_DOCUMENTS" in caplog.text
    assert processes(settings) == before, "a second `up` restarted what ran"
    assert remembered(as_reader) == ["0123456789abcdef"]

    assert down(settings)
    assert not any(psutil.pid_exists(process_id) for process_id in before.values())
    assert not list(Path("/tmp").glob(f"seaweedfs-*-{recalled_ports(state)['filer']}.sock"))  # noqa: S108
    assert status(settings) == []
    assert not down(settings), "the second `down` found something"

    assert f"127.0.0.1:{recalled_ports(state)['postgres']}" in command("up", "--only", "postgres").output
    assert load_settings().database_dsn == settings.database_dsn, "the address or the password changed"
    assert remembered(settings) == ["0123456789abcdef"]
    down(settings)
    monkeypatch.setenv(
        "TOOLFORMER_S3_PORT", str(choose_ports("s3")["s3"])
    )  # one whose other ports are free, too
    load_settings.cache_clear()
    moved = up(load_settings(), WITHOUT_AIRFLOW)
    assert moved.s3_endpoint_url != settings.s3_endpoint_url
    assert ObjectStore(moved).get("kept") == b"content" * 10_000

    # Commands ask the database, and run nothing but SQL; `clean` leaves nothing.
    assert command("migrate").output.strip() == "nothing to do"
    for expected, *words in (
        (0, "sql", "select count(*) from documents"),
        (2, "sql", "delete from documents"),
        (0, "sql", "-"),
        (2, "sql", "--run=no-such-run", "--", "select :'run_id'"),
        (0, "logs", "postgres"),
        (0, "status"),
    ):
        assert command(*words, input="select 1").exit_code == expected, words
    written = state.state / "written"
    for of_psql in (r"\! touch {}", r"\copy documents to '{}'", r"select 1 \g {}", r"\o {}"):
        assert command("sql", "select 1;\n" + of_psql.format(written)).exit_code == 2
        assert not written.exists()
    assert command("clean", "--yes").exit_code == 0
    assert not state.state.exists()
    assert is_free(int(os.environ["TOOLFORMER_POSTGRES_PORT"]))


def test_what_was_killed_comes_back_with_its_data_and_what_does_not_come_up_is_said(
    state: StatePaths, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = up(load_settings(), WITHOUT_AIRFLOW)
    remember(settings, "00000000000000aa")
    # 1. The services, which the supervisor starts again.
    before = processes(settings)
    for process_id in before.values():
        os.kill(process_id, signal.SIGKILL)
    wait_until(
        lambda: (
            len(processes(settings)) == 2 and not set(before.values()) & set(processes(settings).values())
        ),
        "the supervisor saw nothing",
    )
    assert up(load_settings(), WITHOUT_AIRFLOW) == settings
    # 2. The supervisor, which takes its services along.
    before = processes(settings)
    running_supervisor(state).kill()
    wait_until(lambda: not any(map(psutil.pid_exists, before.values())), "services outlived their supervisor")
    up(load_settings(), ["postgres"])
    # 3. Everything at once; Postgres's pid file then names a process that is not its own, as after a restart
    #    of the machine.
    remember(settings, "00000000000000bb")
    supervisor = running_supervisor(state)
    everything = [supervisor, *supervisor.children(recursive=True)]
    for process in everything:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(everything, timeout=60)
    data = cluster_of(state.postgres).data
    (data / "postmaster.pid").write_text(f"{os.getpid()}\n{data}\n")
    up(load_settings(), ["postgres"])
    # 4. Another program takes a port while the supervisor runs.
    s3, port = recalled_ports(state)["s3"], recalled_ports(state)["postgres"]
    with squatter(s3), pytest.raises(ServiceError, match=rf"expected port {s3} to be free for s3"):
        up(load_settings(), ["object_store"])
    # 5. One takes a port while nothing runs, which no person has set, and a service does not come up until it is
    #    mended.
    down(settings)
    monkeypatch.delenv("TOOLFORMER_POSTGRES_PORT")
    (data / "global" / "pg_control").rename(data / "elsewhere")
    with squatter(port):
        with pytest.raises(ServiceError, match=r"(?s)expected postgres to be ready .*could not open"):
            up(load_settings(), ["postgres"])
        (data / "elsewhere").rename(data / "global" / "pg_control")
        moved = up(load_settings(), ["postgres"])
        assert (
            f"port {port} is taken, so postgres listens on {recalled_ports(state)['postgres']}" in caplog.text
        )
        assert up(load_settings(), ["postgres"]) == moved  # which it keeps while it runs
    assert remembered(moved) == ["00000000000000aa", "00000000000000bb"]


def test_what_people_built_on_our_views_keeps_no_service_from_starting(
    state: StatePaths, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def blocked(*_: object, **__: object) -> None:
        raise BlockedMigrationError("expected nothing but views, found table analysts.one.")

    monkeypatch.setattr(schema, "migrate", blocked)
    settings = up(load_settings(), ["postgres"])
    assert set(processes(settings)) == {"postgres"}
    assert "keeps the tables and views of an earlier version: expected nothing but views" in caplog.text
    assert down(settings)


def running_supervisor(state: StatePaths) -> psutil.Process:
    """The one process that was started with the configuration of this folder."""
    configuration = str(state.supervisor_configuration)
    [found] = [
        each for each in psutil.process_iter(["cmdline"]) if configuration in (each.info["cmdline"] or [])
    ]
    return found


def test_what_a_program_that_was_killed_has_started_is_ended(
    state: StatePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the workers of Airflow's scheduler, which is not started here; they overwrite their environment, too."""
    program = ["bash", "-c", "env -i sleep 1000 & wait"]
    monkeypatch.setattr("toolformer_ops.local.supervision.weed_command", lambda *_: program)
    monkeypatch.setattr("toolformer_ops.local.object_store.is_ready", lambda *_: True)
    settings = up(load_settings(), ["object_store"])

    def children() -> list[psutil.Process]:
        number = processes(settings).get("object-store")
        return psutil.Process(number).children() if number else []

    # 1. The program is killed, and the supervisor starts another.
    wait_until(lambda: bool(children()), "nothing was started")
    [orphan] = children()
    killed = processes(settings)["object-store"]
    os.kill(killed, signal.SIGKILL)
    wait_until(
        lambda: processes(settings).get("object-store", killed) != killed, "the supervisor saw nothing"
    )
    wait_until(lambda: bool(children()), "nothing was started again")
    [child] = children()
    assert orphan.is_running()
    up(load_settings(), ["object_store"])
    assert not orphan.is_running()
    assert child.is_running()
    # 2. The supervisor is killed, and its program with it.
    parent = psutil.Process(processes(settings)["object-store"])
    running_supervisor(state).kill()
    wait_until(lambda: not parent.is_running(), "the program outlived its supervisor")
    assert child.is_running()
    assert down(settings)
    assert not child.is_running()
