"""The parts of the embedded services that need no server: ports, files with secrets, accounts, the supervisor's configuration."""

import configparser
import json
import socket
import stat
from pathlib import Path

import pytest

from tests.servers import free_port
from toolformer_ops.config import load_settings
from toolformer_ops.errors import ServiceError
from toolformer_ops.local import airflow
from toolformer_ops.local.ports import (
    USUAL_PORTS,
    ReservedPorts,
    candidate_ports,
    choose_ports,
    is_free,
    ports_of,
    recalled_ports,
    settle_ports,
)
from toolformer_ops.local.postgres import Cluster
from toolformer_ops.local.state_folder import (
    SERVICES,
    StatePaths,
    load_or_make_secrets,
    write_environment,
    write_private,
)
from toolformer_ops.local.supervision import Supervisor

PORTS = ports_of("postgres", 15432) | ports_of("airflow", 8080) | ports_of("s3", 20_000)


@pytest.fixture
def paths(tmp_path):
    made = StatePaths(tmp_path / "state")
    made.make()
    return made


def settle_once(paths: StatePaths, wanted_ports: dict[str, int]) -> dict[str, int]:
    """The ports of an `up` that has ended."""
    reserved = ReservedPorts()
    try:
        return settle_ports(paths, wanted_ports, reserved)
    finally:
        reserved.release()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def taken_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", free_port()))
        server.listen()
        yield server.getsockname()[1]


def test_a_service_gets_a_port_of_which_all_its_ports_are_free(taken_port):
    free = free_port()
    assert choose_ports("postgres", taken_port, free) == {"postgres": free}
    assert choose_ports("postgres", free, avoid=[free]) != {"postgres": free}
    for place in range(5):
        chosen = choose_ports("s3", taken_port - place)
        assert taken_port not in chosen.values()
        assert all(map(is_free, chosen.values()))


@pytest.mark.parametrize("name", USUAL_PORTS)
def test_all_ports_of_a_chosen_service_are_below_those_of_outgoing_connections(name):
    """Linux takes the local ends of outgoing connections from 32768 on."""
    highest_ports = ports_of(name, candidate_ports(name)[-1])
    assert max(highest_ports.values()) == 31_999


def test_a_service_keeps_its_port_unless_it_is_taken_or_another_is_asked_for(paths, taken_port, caplog):
    free, wish = free_port(), free_port()
    for remembered, asked, expected in (
        (taken_port, None, None),
        (free, wish, wish),
        (free, None, free),
        (None, wish, wish),
    ):
        caplog.clear()
        paths.ports.write_text(json.dumps({"postgres": remembered} if remembered else {}))
        asks = {"postgres": asked} if asked else {}
        settled = settle_once(paths, asks)
        assert (expected or settled["postgres"]) == settled["postgres"] != taken_port
        assert (f"port {taken_port} is taken" in caplog.text) == (taken_port in (remembered, asked))
        assert len(set(settled.values())) == len(settled)
        assert recalled_ports(paths) == settled == settle_once(paths, asks)


def test_a_chosen_port_that_is_taken_is_an_error(paths, taken_port):
    with pytest.raises(
        ServiceError, match=rf"expected port {taken_port} .* as TOOLFORMER_POSTGRES_PORT says"
    ):
        settle_once(paths, {"postgres": taken_port})


def test_one_port_that_is_set_for_two_services_is_an_error(paths):
    wish = free_port()
    with pytest.raises(ServiceError, match=rf"expected port {wish} .* as TOOLFORMER_AIRFLOW_PORT says"):
        settle_once(paths, {"postgres": wish, "airflow": wish})


@pytest.fixture
def reserved_ports():
    reserved = ReservedPorts()
    yield reserved
    reserved.release()


def test_an_up_takes_no_port_that_another_up_has_chosen(paths, reserved_ports):
    chosen = settle_ports(paths, {}, reserved_ports)
    of_another = settle_once(paths, {})
    assert not set(chosen.values()) & set(of_another.values())


def test_an_up_that_finds_a_port_taken_reserves_none_of_the_service(taken_port, reserved_ports):
    free = free_port()
    assert not reserved_ports.reserve([free, taken_port])
    assert is_free(free)


def test_a_service_finds_its_port_free_once_it_is_released(reserved_ports):
    first, second = (free_port() for _ in range(2))
    assert reserved_ports.reserve([first, second])
    reserved_ports.release([first])
    assert [is_free(port) for port in (first, second)] == [True, False]


def test_the_environment_file_leads_the_settings(monkeypatch, tmp_path):
    monkeypatch.setenv("TOOLFORMER_STATE_DIR", str(tmp_path))
    path = tmp_path / "environment"
    path.write_text("# mine\nTOOLFORMER_DEVICE=cuda\nexport TOOLFORMER_S3_BUCKET=old\n")
    for value in ("it's", "two\nlines", "back\\slash", 'say "hello" # twice'):
        write_environment(
            path, {"s3_bucket": value, "database_dsn": "postgresql://o:p@127.0.0.1:1/toolformer"}
        )
        load_settings.cache_clear()
        settings = load_settings()
        assert (settings.s3_bucket, settings.device) == (value, "cuda")
        assert settings.database_dsn.get_secret_value() == "postgresql://o:p@127.0.0.1:1/toolformer"


def test_the_environment_file_keeps_lines_of_the_user(tmp_path):
    path = tmp_path / "environment"
    path.write_text("# mine\nTOOLFORMER_DEVICE=cuda\nexport TOOLFORMER_S3_BUCKET=old\n")
    write_environment(path, {"s3_bucket": "new", "database_dsn": "postgresql://o:p@127.0.0.1:1/toolformer"})
    lines = path.read_text().splitlines()
    assert lines.count("# mine") == 1
    assert sum("S3_BUCKET" in line for line in lines) == 1
    assert mode(path) == 0o600


def test_secrets_are_made_once_for_us_alone(tmp_path):
    path = tmp_path / "secrets.json"
    secrets = load_or_make_secrets(path)
    assert load_or_make_secrets(path) == secrets
    assert mode(path) == 0o600
    written = json.loads(path.read_text())
    assert len(set(written.values())) == len(written) == 13
    assert not any(secret in repr(secrets) for secret in written.values())


def test_a_secret_that_is_lacking_is_added(tmp_path):
    path = tmp_path / "secrets.json"
    path.write_text(json.dumps({"postgres_owner": "kept"}))
    secrets = load_or_make_secrets(path)
    assert (secrets.postgres_owner, json.loads(path.read_text())["postgres_reader"]) == (
        "kept",
        secrets.postgres_reader,
    )


def test_a_damaged_file_of_secrets_is_named_with_the_remedy(tmp_path):
    path = tmp_path / "secrets.json"
    path.write_text('{"postgres_owner": ')
    with pytest.raises(ServiceError, match=r"toolformer-ops clean"):
        load_or_make_secrets(path)


def test_state_folder_lets_others_list_nothing(paths):
    assert mode(paths.state) & 0o066 == 0
    assert mode(paths.logs) == mode(paths.airflow_home) == mode(paths.object_store) == 0o700


def test_the_supervisor_gets_words_with_blanks_or_percent_signs_whole(tmp_path):
    paths = StatePaths(tmp_path / "a state of 100%")
    paths.make()
    program = configured(paths)["program:postgres"]
    folder = str(paths.postgres).replace("%", "%%")
    assert f"'{folder}/data'" in program["command"]
    assert program["command"].endswith(f"-c port={PORTS['postgres']}")
    assert (program["directory"], program["stopsignal"]) == (folder, "INT")


def test_the_socket_of_a_deep_state_folder_is_short_enough_for_the_kernel(tmp_path):
    deep = StatePaths(tmp_path / ("x" * 60) / ("y" * 60))
    assert len(str(Supervisor(deep).socket)) < 100


def test_configuration_of_the_supervisor_holds_no_secret(paths, monkeypatch):
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "postgresql://production")
    parser = configured(paths)
    text = str([dict(section) for section in parser.values()])
    assert not any(secret in text for secret in json.loads(paths.secrets.read_text()).values())
    programs = {f"program:{name}" for name in ("postgres", "object-store", *airflow.COMMANDS)}
    assert {name for name in parser.sections() if name.startswith("program:")} == programs
    assert "inet_http_server" not in parser
    environment = Supervisor(paths).environment()
    assert [name for name in environment if name.startswith("AIRFLOW")] == [
        "AIRFLOW_HOME"
    ]  # none of the caller's
    # Postgres, the first, stops after all that use it.
    priorities = [int(parser[f"group:{service}"]["priority"]) for service in SERVICES]
    assert priorities == sorted(set(priorities))
    assert SERVICES[0] == "postgres"


def test_airflow_listens_on_the_loopback_address(paths):
    configured(paths)
    parser = configparser.RawConfigParser()
    parser.read(paths.airflow_configuration)
    assert parser["api"]["host"] == "127.0.0.1"
    assert parser["core"]["load_examples"] == "False"
    assert parser["core"]["execution_api_server_url"] == "http://127.0.0.1:8080/execution/"
    assert Path(parser["core"]["dags_folder"], "annotate_corpus.py").exists()
    assert mode(paths.airflow_configuration) == 0o600


def test_airflow_serves_no_logs_by_itself():
    for name in ("airflow-scheduler", "airflow-triggerer"):
        assert "--skip-serve-logs" in airflow.COMMANDS[name]


def configured(paths: StatePaths) -> configparser.RawConfigParser:
    """The supervisor's configuration for `paths`; that of Airflow is written."""
    of_airflow = airflow.configuration(paths, load_or_make_secrets(paths.secrets), PORTS, task_slots=4)
    write_private(paths.airflow_configuration, of_airflow)
    parser = configparser.RawConfigParser()
    cluster = Cluster(paths.postgres / "data", Path("/programs"), None)
    parser.read_string(Supervisor(paths).configuration(cluster, PORTS))
    return parser
