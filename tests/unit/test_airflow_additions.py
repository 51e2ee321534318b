"""What a person adds to the embedded Airflow's configuration is taken; what is dropped is named."""

import configparser
import json
import socket
import subprocess
import sys

import pytest

from toolformer_ops.errors import ConfigurationError
from toolformer_ops.local import airflow
from toolformer_ops.local.airflow import write_passwords
from toolformer_ops.local.airflow_additions import FIXED, dropped, read_additions
from toolformer_ops.local.state_folder import StatePaths, load_or_make_secrets, write_private

PORTS = {"postgres": 15432, "s3": 18333, "airflow": 8080}
STATSD = "[metrics]\nstatsd_on = True\nstatsd_host = 127.0.0.1\nstatsd_port = {port}\n"


@pytest.fixture
def paths(tmp_path):
    found = StatePaths(tmp_path / "state")
    found.make()
    return found


def configured(paths: StatePaths, additions: str = "") -> str:
    """The text of airflow.cfg with these additions."""
    if additions:
        paths.airflow_additions.write_text(additions)
    return airflow.configuration(paths, load_or_make_secrets(paths.secrets), PORTS, 4)


def parsed(text: str) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser()
    parser.read_string(text)
    return parser


def test_an_addition_is_part_of_the_configuration(paths):
    text = configured(paths, "[logging]\njson_logs = True\n[metrics]\nstatsd_on = True\n")
    assert parsed(text)["logging"]["json_logs"] == "True"
    assert parsed(text)["metrics"]["statsd_on"] == "True"


def test_an_addition_wins_over_what_up_would_choose(paths):
    assert parsed(configured(paths, "[core]\nparallelism = 9\n"))["core"]["parallelism"] == "9"


def test_all_else_stays_as_up_sets_it(paths):
    before = parsed(configured(paths))
    after = parsed(configured(paths, "[core]\nparallelism = 9\n"))
    before["core"]["parallelism"] = "9"
    assert after == before


def test_what_up_sets_itself_is_part_of_its_configuration(paths):
    parser = parsed(configured(paths))
    assert [option for option in FIXED if not parser.has_option(*option)] == []


@pytest.mark.parametrize(("section", "key"), sorted(FIXED))
def test_an_addition_that_would_break_every_run_is_refused(paths, section, key):
    with pytest.raises(ConfigurationError, match=rf"found \[{section}\] {key}\. Take them out"):
        configured(paths, f"[{section}]\n{key} = x\n")


@pytest.mark.parametrize("text", ["statsd_on = True\n", "[metrics]\nstatsd_on\n", "[a]\n[a]\n"])
def test_a_file_that_is_no_configuration_is_named(paths, text):
    with pytest.raises(ConfigurationError, match=r"airflow-additions\.cfg: expected sections and keys"):
        configured(paths, text)


# Users


TWO_USERS = "[core]\nsimple_auth_manager_users = admin:admin,ann:viewer\n"


def passwords(paths: StatePaths, additions: str) -> dict[str, str]:
    write_passwords(paths, configured(paths, additions), "secret of admin")
    found: dict[str, str] = json.loads(paths.airflow_passwords.read_text())
    return found


def test_a_second_user_gets_a_password(paths):
    found = passwords(paths, TWO_USERS)
    assert found["admin"] == "secret of admin"
    assert len(found["ann"]) >= 20


def test_a_second_user_keeps_the_password(paths):
    assert passwords(paths, TWO_USERS)["ann"] == passwords(paths, TWO_USERS)["ann"]


def test_a_user_who_is_taken_out_has_no_password_any_more(paths):
    passwords(paths, TWO_USERS)
    assert set(passwords(paths, "[core]\nparallelism = 9\n")) == {"admin"}


def test_without_the_user_of_up_users_are_refused(paths):
    with pytest.raises(ConfigurationError, match="expected admin:admin among the users"):
        configured(paths, "[core]\nsimple_auth_manager_users = admin:viewer,ann:admin\n")


# What is dropped


@pytest.mark.parametrize(
    ("variable", "remedy"),
    [
        ("AIRFLOW__METRICS__STATSD_ON", "write statsd_on = ... below [metrics] into"),
        (
            "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES",
            "write parsing_processes = ... below [dag_processor] into",
        ),
        ("AIRFLOW__CORE__DAGS_FOLDER", "`up` sets it itself"),
        ("AIRFLOW_CONN_SMTP_DEFAULT", "make it in the UI (Admin)"),
    ],
)
def test_a_variable_that_is_dropped_is_named_with_what_to_do_instead(paths, variable, remedy):
    path = paths.airflow_additions
    [(name, said)] = dropped([variable, "PATH", "AIRFLOW_HOME"], read_additions(path), path).items()
    assert name == variable
    assert said.startswith(remedy)


def test_a_variable_whose_option_the_additions_set_is_not_named(paths):
    paths.airflow_additions.write_text("[metrics]\nstatsd_on = True\n")
    additions = read_additions(paths.airflow_additions)
    assert dropped(["AIRFLOW__METRICS__STATSD_ON"], additions, paths.airflow_additions) == {}


# That Airflow reads them


METRIC = """
from airflow.observability import stats
from airflow.observability.metrics.stats_utils import get_stats_factory

stats.initialize(factory=get_stats_factory(), export_legacy_names=True)
stats.incr("scheduler_heartbeat")
"""
LOGGER = """
from airflow.observability.metrics.stats_utils import get_stats_factory

print(get_stats_factory()().__class__.__name__)
"""


def airflow_says(paths: StatePaths, additions: str, program: str) -> str:
    """The last line that a program prints which imports Airflow with these additions."""
    write_private(paths.airflow_configuration, configured(paths, additions))
    variables = {"AIRFLOW_HOME": str(paths.airflow_home), "HOME": str(paths.state)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=variables
    )
    assert done.returncode == 0, done.stderr
    return (done.stdout.splitlines() or [""])[-1]


def test_airflow_sends_its_metrics_to_a_statsd_that_was_added(paths):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as statsd:
        statsd.bind(("127.0.0.1", 0))
        airflow_says(paths, STATSD.format(port=statsd.getsockname()[1]), METRIC)
        statsd.setblocking(False)  # the datagrams are there by now
        metrics = [statsd.recv(1000) for _ in range(2)]
    assert metrics[-1] == b"airflow.scheduler_heartbeat:1|c", "behind how long Airflow took to start"


def test_airflow_sends_its_metrics_by_opentelemetry_if_that_was_added(paths):
    assert airflow_says(paths, "[metrics]\notel_on = True\n", LOGGER) == "SafeOtelLogger"


def test_a_line_that_cannot_be_read_is_not_quoted(tmp_path):
    path = tmp_path / "airflow-additions.cfg"
    path.write_text("[smtp]\nhunter2-of-the-owner\n")
    with pytest.raises(ConfigurationError, match="found a ParsingError") as caught:
        read_additions(path)
    assert "hunter2" not in str(caught.value)
