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
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg2
import pytest
from click.testing import Result
from pydantic import SecretStr
from sqlalchemy import make_url
from typer.testing import CliRunner

from tests.run_sql import run_sql
from tests.servers import directory_in_memory, free_port_variables
from toolformer_ops.cli.services import app
from toolformer_ops.config import Settings, load_settings
from toolformer_ops.errors import BlockedMigrationError, ServiceError
from toolformer_ops.local.lifecycle import delete_state, down, status, up
from toolformer_ops.local.ports import choose_ports, is_free, recalled_ports
from toolformer_ops.local.postgres import PAGE, READER, cluster_of
from toolformer_ops.local.state_folder import StatePaths, load_or_make_secrets
from toolformer_ops.storage.objects.publication import ObjectStore
from toolformer_ops.storage.postgres import schema

WITHOUT_AIRFLOW = ("postgres", "object_store")


@dataclass(frozen=True)
class Deployment:
    """A state folder with ports of its own."""

    paths: StatePaths
    variables: dict[str, str]
    """Names and values of the environment with which commands find it."""

    def enter(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make it that of this machine, until the end of the test."""
        for name, value in self.variables.items():
            monkeypatch.setenv(name, value)
        load_settings.cache_clear()


@contextmanager
def new_deployment(folder: Path) -> Iterator[Deployment]:
    """A deployment that has not begun; what runs in it at the end is stopped, and its data deleted."""
    with directory_in_memory(folder) as folder_in_memory:
        paths = StatePaths(folder_in_memory / "state")
        # Another deployment may be on the usual ports.
        yield Deployment(paths, {"TOOLFORMER_STATE_DIR": str(paths.state), **free_port_variables()})
        delete_state(load_settings().model_copy(update={"state_dir": paths.state}))


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    """The deployment of the tests of this file that ask for `running`."""
    with new_deployment(tmp_path_factory.mktemp("deployment")) as deployment:
        yield deployment


@pytest.fixture
def running(deployment, monkeypatch):
    """The settings of Postgres and S3, which run; they are started only if the test before has stopped them."""
    deployment.enter(monkeypatch)
    if len(processes(load_settings())) < len(WITHOUT_AIRFLOW):
        return up(load_settings(), WITHOUT_AIRFLOW)
    return load_settings()


@pytest.fixture
def state(tmp_path, monkeypatch):
    """A state folder of the test's own; what runs in it is stopped after the test."""
    with new_deployment(tmp_path) as deployment:
        deployment.enter(monkeypatch)
        yield deployment.paths


def supervisors(paths: StatePaths) -> list[psutil.Process]:
    """The process that was started with the configuration of this folder, if it runs."""
    configuration = str(paths.supervisor_configuration)
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if configuration in (process.info["cmdline"] or [])
    ]


def kill_everything(paths: StatePaths) -> None:
    """End what runs as a crash of the machine does, which takes less time than `down`."""
    for supervisor in supervisors(paths):
        processes = [supervisor, *supervisor.children(recursive=True)]
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, timeout=60)


def kill_supervisor(paths: StatePaths) -> None:
    [supervisor] = supervisors(paths)
    supervisor.kill()


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


def as_reader(settings: Settings, paths: StatePaths) -> Settings:
    """The settings of a person who reads as the role of readers, and not as that of the page."""
    page = make_url(settings.reader_dsn.get_secret_value())
    assert page.username == PAGE
    reader = page.set(username=READER, password=load_or_make_secrets(paths.secrets).postgres_reader)
    dsn = SecretStr(reader.render_as_string(hide_password=False))
    return settings.model_copy(update={"reader_dsn": dsn})


def spoil_the_role_of_readers(settings: Settings, paths: StatePaths) -> None:
    """Do as a reader what a role may do to itself: another password, and a path on which it finds no table."""
    with closing(psycopg2.connect(as_reader(settings, paths).reader_dsn.get_secret_value())) as connection:
        cursor = connection.cursor()
        cursor.execute("set transaction read write")
        cursor.execute("alter role toolformer_reader set search_path = 'x'")
        cursor.execute("alter role toolformer_reader password 'x'")
        connection.commit()


def command(*words: str, **options: str) -> Result:
    return CliRunner().invoke(app, words, **options)  # type: ignore[arg-type]


# What `up` starts


def test_status_ends_with_1_where_nothing_runs(state):
    assert command("status").exit_code == 1


def test_up_starts_the_services_that_are_asked_for(running):
    assert set(processes(running)) == {"postgres", "object-store"}


def test_up_writes_the_address_of_postgres_into_the_environment_file(deployment, running):
    deployment.paths.environment.unlink()
    load_settings.cache_clear()
    started = up(load_settings(), WITHOUT_AIRFLOW)
    assert load_settings().database_dsn == started.database_dsn


def test_the_configuration_of_the_supervisor_is_its_users_alone(deployment, running):
    assert stat.S_IMODE(deployment.paths.supervisor_configuration.stat().st_mode) == 0o600


def test_a_second_up_restarts_nothing(running):
    before = processes(running)
    up(load_settings(), WITHOUT_AIRFLOW)
    assert processes(running) == before


def test_a_second_up_names_a_setting_that_what_runs_does_not_see(running, monkeypatch, caplog):
    monkeypatch.setenv("TOOLFORMER_MICRO_BATCH_DOCUMENTS", "7")  # as from another shell
    up(load_settings(), WITHOUT_AIRFLOW)
    assert "TOOLFORMER_MICRO_BATCH_DOCUMENTS" in caplog.text


def test_a_reader_cannot_lock_the_page_out(deployment, running):
    remember(running, "00000000000000cc")
    spoil_the_role_of_readers(running, deployment.paths)
    assert "00000000000000cc" in remembered(running)
    up(load_settings(), ["postgres"])


def test_up_repairs_the_role_of_readers(deployment, running):
    remember(running, "00000000000000dd")
    spoil_the_role_of_readers(running, deployment.paths)
    up(load_settings(), ["postgres"])
    assert "00000000000000dd" in remembered(as_reader(running, deployment.paths))


def test_a_migration_that_views_of_people_block_keeps_no_service_from_starting(
    deployment, running, monkeypatch, caplog
):
    def blocked(*_: object, **__: object) -> None:
        raise BlockedMigrationError("expected nothing but views, found table analysts.one.")

    kill_everything(deployment.paths)
    monkeypatch.setattr(schema, "migrate", blocked)
    up(load_settings(), ["postgres"])
    assert set(processes(running)) == {"postgres"}
    assert "keeps the tables and views of an earlier version: expected nothing but views" in caplog.text


# Commands on what runs


def test_migrate_has_nothing_to_do_after_up(running):
    assert command("migrate").output.strip() == "nothing to do"


@pytest.mark.parametrize(
    ("exit_code", "words"),
    [
        (0, ["sql", "select count(*) from documents"]),
        (2, ["sql", "delete from documents"]),
        (0, ["sql", "-"]),  # from standard input
        (2, ["sql", "--run=no-such-run", "--", "select :'run_id'"]),
        (0, ["logs", "postgres"]),
        (0, ["status"]),
    ],
)
def test_commands_on_what_runs_end_with_their_exit_code(running, exit_code, words):
    assert command(*words, input="select 1").exit_code == exit_code


@pytest.mark.parametrize(
    "psql_words", [r"\! touch {}", r"\copy documents to '{}'", r"select 1 \g {}", r"\o {}"]
)
def test_sql_of_people_writes_no_file(running, tmp_path, psql_words):
    written = tmp_path / "written"
    assert command("sql", "select 1;\n" + psql_words.format(written)).exit_code == 2
    assert not written.exists()


# What `down` leaves


@dataclass(frozen=True)
class Stop:
    """A `down` of what ran, and what was seen before and after it."""

    before: Settings
    process_ids: list[int]
    sockets: list[Path]
    """Files by which the programs of S3 talked to each other."""
    answers: tuple[bool, bool]
    """What the first `down` returned, and a second one."""

    @property
    def living(self) -> list[int]:
        return [process_id for process_id in self.process_ids if psutil.pid_exists(process_id)]


@pytest.fixture(scope="module")
def stop(deployment):
    """A stop after which a row and an object are there."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        deployment.enter(monkeypatch)
        settings = up(load_settings(), WITHOUT_AIRFLOW)
        remember(settings, "0123456789abcdef")
        ObjectStore(settings).put("kept", b"content" * 10_000, "text/plain")
        process_ids = list(processes(settings).values())
        filer = recalled_ports(deployment.paths)["filer"]
        sockets = list(Path("/tmp").glob(f"seaweedfs-*-{filer}.sock"))  # noqa: S108
        answers = down(settings), down(settings)
    return Stop(settings, process_ids, sockets, answers)


@pytest.fixture
def stopped(deployment, stop, monkeypatch):
    """The stop, in the environment of its deployment, where nothing runs."""
    deployment.enter(monkeypatch)
    kill_everything(deployment.paths)
    return stop


def test_down_leaves_no_process(stop):
    assert len(stop.process_ids) == 2
    assert stop.living == []


def test_down_leaves_no_socket(stop):
    assert stop.sockets
    assert not any(socket.exists() for socket in stop.sockets)


def test_status_shows_nothing_after_down(stopped):
    assert status(stopped.before) == []


def test_down_says_whether_anything_ran(stop):
    assert stop.answers == (True, False)


def test_rows_survive_a_restart_under_the_same_address(deployment, stopped):
    address = f"127.0.0.1:{deployment.variables['TOOLFORMER_POSTGRES_PORT']}"
    assert address in command("up", "--only", "postgres").output
    assert load_settings().database_dsn == stopped.before.database_dsn, "the address or the password changed"
    assert "0123456789abcdef" in remembered(stopped.before)


def test_objects_survive_another_port(stopped, monkeypatch):
    monkeypatch.setenv("TOOLFORMER_S3_PORT", str(choose_ports("s3")["s3"]))
    load_settings.cache_clear()
    moved = up(load_settings(), ["object_store"])
    assert moved.s3_endpoint_url != stopped.before.s3_endpoint_url
    assert ObjectStore(moved).get("kept") == b"content" * 10_000


# After a crash


def test_the_supervisor_starts_killed_services_again(running):
    before = processes(running)
    for process_id in before.values():
        os.kill(process_id, signal.SIGKILL)
    wait_until(
        lambda: len(processes(running)) == 2 and not set(before.values()) & set(processes(running).values()),
        "the supervisor saw nothing",
    )
    assert up(load_settings(), WITHOUT_AIRFLOW) == running


def test_services_end_with_a_killed_supervisor(deployment, running):
    before = processes(running)
    kill_supervisor(deployment.paths)
    wait_until(lambda: not any(map(psutil.pid_exists, before.values())), "services outlived their supervisor")


def test_rows_survive_a_crash_of_the_machine(deployment, running):
    """Postgres's pid file then names a process that is not its own."""
    remember(running, "00000000000000bb")
    kill_everything(deployment.paths)
    data = cluster_of(deployment.paths.postgres).data
    (data / "postmaster.pid").write_text(f"{os.getpid()}\n{data}\n")
    assert "00000000000000bb" in remembered(up(load_settings(), ["postgres"]))


def test_a_port_that_another_program_took_while_the_supervisor_runs_is_named(deployment, running):
    kill_everything(deployment.paths)
    up(load_settings(), ["postgres"])
    port = recalled_ports(deployment.paths)["s3"]
    with squatter(port), pytest.raises(ServiceError, match=rf"expected port {port} to be free for s3"):
        up(load_settings(), ["object_store"])


def test_a_service_that_does_not_come_up_shows_the_end_of_its_log(deployment, running):
    kill_everything(deployment.paths)
    control = cluster_of(deployment.paths.postgres).data / "global" / "pg_control"
    elsewhere = control.rename(control.with_name("elsewhere"))
    try:
        with pytest.raises(ServiceError, match=r"(?s)expected postgres to be ready .*could not open"):
            up(load_settings(), ["postgres"])
    finally:
        elsewhere.rename(control)
    assert up(load_settings(), ["postgres"]) == running, "it does not come up when it is mended"


def test_a_service_moves_when_a_port_that_no_person_set_is_taken(deployment, running, monkeypatch, caplog):
    remember(running, "00000000000000aa")
    port = recalled_ports(deployment.paths)["postgres"]
    kill_everything(deployment.paths)
    monkeypatch.delenv("TOOLFORMER_POSTGRES_PORT")
    with squatter(port):
        moved = up(load_settings(), ["postgres"])
        new_port = recalled_ports(deployment.paths)["postgres"]
        assert f"port {port} is taken, so postgres listens on {new_port}" in caplog.text
        assert up(load_settings(), ["postgres"]) == moved  # which it keeps while it runs
    assert "00000000000000aa" in remembered(moved)
    kill_everything(deployment.paths)  # the next test starts it on its port again


def test_clean_leaves_nothing(deployment, running):
    assert command("clean", "--yes").exit_code == 0
    assert not deployment.paths.state.exists()
    assert is_free(int(deployment.variables["TOOLFORMER_POSTGRES_PORT"]))


@pytest.fixture
def program_with_child(state, monkeypatch):
    """A service that has started another process.

    So do the workers of Airflow's scheduler, which is not started here; they overwrite their environment, too.
    """
    program = ["bash", "-c", "env -i sleep 1000 & wait"]
    monkeypatch.setattr("toolformer_ops.local.supervision.weed_command", lambda *_: program)
    monkeypatch.setattr("toolformer_ops.local.object_store.is_ready", lambda *_: True)
    settings = up(load_settings(), ["object_store"])
    wait_until(lambda: bool(children_of_service(settings)), "nothing was started")
    return settings


def children_of_service(settings: Settings) -> list[psutil.Process]:
    process_id = processes(settings).get("object-store")
    return psutil.Process(process_id).children() if process_id else []


def test_up_ends_what_a_killed_program_had_started(program_with_child):
    [orphan] = children_of_service(program_with_child)
    killed = processes(program_with_child)["object-store"]
    os.kill(killed, signal.SIGKILL)
    wait_until(
        lambda: processes(program_with_child).get("object-store", killed) != killed,
        "the supervisor saw nothing",
    )
    wait_until(lambda: bool(children_of_service(program_with_child)), "nothing was started again")
    [child] = children_of_service(program_with_child)
    assert orphan.is_running()
    up(load_settings(), ["object_store"])
    assert not orphan.is_running()
    assert child.is_running()


def test_down_ends_what_outlived_its_killed_supervisor(state, program_with_child):
    [child] = children_of_service(program_with_child)
    parent = psutil.Process(processes(program_with_child)["object-store"])
    kill_supervisor(state)
    wait_until(lambda: not parent.is_running(), "the program outlived its supervisor")
    assert child.is_running()
    assert down(program_with_child)
    assert not child.is_running()
