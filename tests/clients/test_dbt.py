"""dbt builds on our views, in the schema of analysts and as their role, and migrations leave what it built.

It is installed into an environment of its own, by the hashes of requirements/dbt.lock.
"""

import subprocess
from collections.abc import Callable

import pytest

from tests.clients.conftest import installed_apart
from tests.run_sql import run_sql
from toolformer_ops.local import postgres
from toolformer_ops.storage.postgres import schema

pytestmark = pytest.mark.slow

FILES = {
    "dbt_project.yml": """
name: ours
version: "1.0"
profile: ours
model-paths: [models]
""",
    "models/sources.yml": """
sources:
  - name: toolformer
    schema: public
    tables:
      - name: kept_calls
      - name: threshold_counts
models:
  - name: best_calls
    columns:
      - name: call_text
        data_tests: [not_null]
  - name: kept_by_tool
    columns:
      - name: tool
        data_tests: [unique]
""",
    "models/best_calls.sql": """
{{ config(materialized="view") }}
select run_id, tool, call_text, result, loss_reduction
from {{ source("toolformer", "kept_calls") }}
""",
    "models/kept_by_tool.sql": """
{{ config(materialized="table") }}
select tool, sum(calls) as calls
from {{ source("toolformer", "threshold_counts") }}
where is_keep_threshold
group by tool
""",
}
PROFILE = """
ours:
  target: test
  outputs:
    test:
      {{type: postgres, host: {host}, port: {port}, user: {user}, password: "{password}", dbname: {dbname},
        schema: analysts, threads: 1}}
"""


@pytest.fixture(scope="module")
def dbt(tmp_path_factory):
    """The program, in an environment of its own."""
    return installed_apart(tmp_path_factory.mktemp("dbt"), "dbt.lock") / "dbt"


Dbt = Callable[..., str]


@pytest.fixture
def run_dbt(dbt, released, postgres_server, database_name, tmp_path):
    """Runs a command of dbt in the project, as the role of analysts."""
    project = tmp_path / "project"
    for name, text in FILES.items():
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    dsn = postgres_server.dsn(database_name, postgres.ANALYST)
    login, _, place = dsn.removeprefix("postgresql://").rpartition("@")
    user, _, password = login.partition(":")
    address, _, dbname = place.partition("/")
    host, _, port = address.partition(":")
    (project / "profiles.yml").write_text(
        PROFILE.format(host=host, port=port, user=user, password=password, dbname=dbname)
    )

    def run(*words: str) -> str:
        environment = {"DBT_SEND_ANONYMOUS_USAGE_STATS": "false", "HOME": str(tmp_path), "PATH": ""}
        command = [str(dbt), "--no-use-colors", *words, "--profiles-dir", "."]
        done = subprocess.run(
            command, cwd=project, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_a_build_of_dbt_tests_its_views_with_tables_on_ours(run_dbt, engine):
    said = run_dbt("build")
    assert "PASS=4 WARN=0 ERROR=0" in said
    assert run_sql(engine, "select call_text, result from analysts.best_calls order by 1") == [
        ("Calculator(400 / 1400)", "0.29"),
        ("Calculator(520 - 187)", "333"),
    ]
    assert run_sql(engine, "select tool, calls from analysts.kept_by_tool") == [("Calculator", 2)]


def test_a_migration_leaves_what_dbt_built(run_dbt, engine):
    run_dbt("run")
    run_sql(engine, "update schema_files set sha256 = 'of an older version' where name like 'views/%'")
    assert "views/05_kept_calls.sql" in schema.migrate(engine)
    assert len(run_sql(engine, "select from analysts.best_calls")) == 2
