"""Servers and settings for the tests: an embedded Postgres and an embedded S3, started once a session if a test asks.

Every test that asks gets a database and a bucket of its own: the database is a copy of a migrated template
(tens of milliseconds in memory), so no test sees another's rows. The caller's variables, state folder and
home are hidden before a test file is imported (`tests/callers_machine.py`).

`make test` and `make test-slow` run three workers of pytest-xdist, each with servers of its own; one of them
begins with Airflow. What may share a worker is decided below; pytest alone (`pytest tests/unit/test_losses.py
-x`) runs everything in one process.
"""

import gc
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.callers_machine import CallersMachine
from tests.costs import Costs
from tests.kept_bucket import kept_bucket
from tests.servers import (
    PASSWORDS,
    copied_database,
    directory_in_memory,
    make_template,
    start_object_store,
    start_postgres,
)
from tests.tiny_models import smollm2_dir, tiny_gpt2_dir, tiny_model_dir
from tests.written_state import written_state
from toolformer_ops.config import STATE_DIR_VARIABLE, Settings, load_settings
from toolformer_ops.local import postgres

__all__ = [
    "smollm2_dir",
    "tiny_gpt2_dir",
    "tiny_model_dir",
]  # fixtures of all tests that live in a file of their own

_TEMPLATE = "toolformer_template"
_SLOWEST_FIRST = (
    "tests/system/test_one_run.py",
    "tests/system",
    "tests/slow",
    "tests/faults",
    "tests/kubernetes/test_stage_pods.py",
    "tests/integration/test_local_services_lifecycle.py",
    "tests/integration/test_training",
    "tests/integration",
    "tests/dags",
    "tests/unit/language_model",
    "tests/unit",
)
_GROUPED_FOLDERS = ("system", "dags")
"""Folders whose tests share one Airflow, or its import and its DAGs parsed."""

# Before torch is imported, and for every program that a test starts: threads of a training that spin while
# they wait for each other take ten times the CPU seconds where other workers keep the cores busy.
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"

gc.disable()  # nearly nothing of the 12,000 modules that are imported is garbage


def pytest_collection_finish() -> None:
    """What was imported is never looked through again."""
    gc.collect()
    gc.freeze()
    gc.enable()


CALLERS_MACHINE = pytest.StashKey[CallersMachine]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[CALLERS_MACHINE] = CallersMachine()
    config.pluginmanager.register(Costs())


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[CALLERS_MACHINE].show()


@pytest.fixture(scope="session")
def callers_machine(pytestconfig):
    """What is hidden from the tests, with the paths in it that were opened all the same."""
    return pytestconfig.stash[CALLERS_MACHINE]


class _ByGroup(LoadScopeScheduling):
    """One worker runs the tests of a file, all that need Airflow running, or all that import Airflow or parse DAGs.

    pytest-xdist 3.8 has marks for groups of files, which pytest 9.2 ignores (they are written into
    `Item._nodeid`).
    """

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        folder = path.split("/")[1]
        return folder if folder in _GROUPED_FOLDERS else path


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`make test-slow` imports only the files in which a test is marked as slow."""
    if config.option.markexpr != "slow" or not collection_path.name.startswith("test_"):
        return None
    return "mark.slow" not in collection_path.read_text(encoding="utf-8") or None


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return _ByGroup(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Workers take groups in the order of the tests; the slowest come first, so that all workers end at about the same time.

    ORDER, a number, names another order of the files, the longest group still first: no test may depend on
    those before it.
    """
    if order := os.environ.get("ORDER"):
        digest = {item: hashlib.sha256(f"{order} {item.path}".encode()).digest() for item in items}
        items.sort(key=lambda item: (not item.nodeid.startswith("tests/system"), digest[item]))
    elif hasattr(config, "workerinput"):  # a worker; all workers sort alike
        places = {
            item: [item.nodeid.startswith(path) for path in (*_SLOWEST_FIRST, "")].index(True)
            for item in items
        }
        items.sort(key=places.__getitem__)


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch, tmp_path):
    """Each test has settings and a state folder of its own."""
    monkeypatch.setenv(STATE_DIR_VARIABLE, str(tmp_path / "state"))
    monkeypatch.setenv("TOOLFORMER_OUTAGE_SECONDS", "0")  # what is away in a test does not come back
    load_settings.cache_clear()
    yield
    load_settings.cache_clear()


@pytest.fixture
def tools_folder(tmp_path, monkeypatch):
    """The folder of tool files that the registry looks into."""
    from tests.tool_files import forget_tools  # with a server of HTTP, which few tests need

    monkeypatch.setenv("TOOLFORMER_TOOLS_DIR", str(tmp_path))
    forget_tools()
    yield tmp_path
    monkeypatch.undo()
    forget_tools()


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory):
    """A Postgres with the roles of a deployment and no database yet."""
    on_disk = tmp_path_factory.mktemp("postgres")
    with directory_in_memory(on_disk) as directory, start_postgres(directory) as server:
        postgres.ensure_roles(server.address, PASSWORDS)
        yield server


@pytest.fixture(scope="session")
def migrated_template(postgres_server):
    """The name of a database with every migration and view applied, to be copied and never written."""
    make_template(postgres_server.address, _TEMPLATE)
    return _TEMPLATE


@pytest.fixture(scope="module")
def written(request, postgres_server, migrated_template, object_store_server, tmp_path_factory):
    """What the function `write` of the test file made of a database and a bucket, once for all of its tests."""
    with written_state(
        postgres_server,
        migrated_template,
        object_store_server,
        tmp_path_factory.mktemp("written"),
        request.module.write,
    ) as state:
        yield state


@pytest.fixture
def copied_state(request):
    """The written state, if the test uses it."""
    return request.getfixturevalue("written") if "written" in request.fixturenames else None


@pytest.fixture
def database_name(postgres_server, migrated_template, copied_state):
    """A fresh migrated database on `postgres_server`, or a copy of the written one; dropped after the test.

    The rights inside it are copied with it.
    """
    template = copied_state.database if copied_state else migrated_template
    with copied_database(postgres_server, template, postgres.OWNER) as name:
        yield name


@pytest.fixture
def postgres_dsn(postgres_server, database_name):
    """`postgresql://...` of a fresh migrated database, as its owner."""
    return postgres_server.dsn(database_name, postgres.OWNER)


@pytest.fixture
def engine(postgres_dsn):
    """A fresh migrated database, as its owner."""
    from toolformer_ops.storage.postgres import (
        database,  # tests that need no database do not load its libraries
    )

    return database.connect_dsn(postgres_dsn, database.DSN_SETTING)


@pytest.fixture
def reader_dsn(postgres_server, database_name):
    """`postgresql://...` of the same database as `postgres_dsn`, as the read-only role of the run page and of commands."""
    return postgres_server.dsn(database_name, postgres.PAGE)


@pytest.fixture
def reviewer_dsn(postgres_server, database_name):
    """`postgresql://...` of the same database, as the role that may add judgements."""
    return postgres_server.dsn(database_name, postgres.REVIEWER)


@pytest.fixture(scope="session")
def object_store_server(tmp_path_factory):
    """An S3 that takes only requests signed with its keys."""
    with start_object_store(tmp_path_factory.mktemp("object-store")) as server:
        yield server


@pytest.fixture
def bucket(object_store_server, copied_state):
    """The name of an empty bucket of the test's own, or of the written one, whose objects are put back.

    The empty one goes with its test: each takes a volume of SeaweedFS, of which there are as many as
    gigabytes are free.
    """
    if copied_state:
        yield copied_state.bucket.name
        copied_state.bucket.restore()
    else:
        with kept_bucket(object_store_server.address) as bucket:
            yield bucket.name


@pytest.fixture
def s3_settings(object_store_server, bucket, monkeypatch, _own_settings):
    """Settings with an S3 and `bucket`, and no database; also set as environment variables."""
    address = object_store_server.address
    return _settings_by_environment(
        monkeypatch,
        TOOLFORMER_S3_ENDPOINT_URL=address.endpoint,
        TOOLFORMER_S3_ACCESS_KEY_ID=address.access_key,
        TOOLFORMER_S3_SECRET_ACCESS_KEY=address.secret_key,
        TOOLFORMER_S3_BUCKET=bucket,
    )


@pytest.fixture
def settings(s3_settings, postgres_dsn, reader_dsn, monkeypatch):
    """Settings with a database and a bucket of the test's own; also set as environment variables, for subprocesses."""
    return _settings_by_environment(
        monkeypatch, TOOLFORMER_DATABASE_DSN=postgres_dsn, TOOLFORMER_READER_DSN=reader_dsn
    )


def _settings_by_environment(monkeypatch: pytest.MonkeyPatch, **variables: str) -> Settings:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    load_settings.cache_clear()
    return load_settings()
