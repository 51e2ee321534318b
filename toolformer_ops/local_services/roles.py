"""The databases and roles of an embedded Postgres; safe to run again at every start.

| role | database | may |
|---|---|---|
| `toolformer` | `toolformer` | own and write everything there: the stages use it |
| `toolformer_reader` | `toolformer` | read, for at most five minutes a statement: people use it (`make sql`) |
| `airflow` | `airflow` | own Airflow's own tables |

Does not make tables: `toolformer_ops.storage.schema.migrate` and `airflow db migrate` do.
"""

from contextlib import closing
from dataclasses import dataclass

import psycopg2
from psycopg2 import extensions, sql

from toolformer_ops.local_services.postgres import PostgresAddress

OWNER = "toolformer"
READER = "toolformer_reader"
AIRFLOW = "airflow"


@dataclass(frozen=True)
class RolePasswords:
    """A password for each role; 32 random characters of base64."""

    owner: str
    reader: str
    airflow: str


def ensure_roles(address: PostgresAddress, passwords: RolePasswords) -> None:
    """Make the three roles, or give them these passwords if they are there."""
    with closing(_connect(address, "postgres")) as connection, connection.cursor() as cursor:
        for role, password in ((OWNER, passwords.owner), (READER, passwords.reader), (AIRFLOW, passwords.airflow)):
            _ensure_role(connection, cursor, role, password)
        reader = sql.Identifier(READER)
        cursor.execute(sql.SQL("alter role {} set default_transaction_read_only = on").format(reader))
        cursor.execute(sql.SQL("alter role {} set statement_timeout = '5min'").format(reader))


def ensure_databases(address: PostgresAddress) -> None:
    """Make the two databases, each for its owner alone; the reader may enter and read `toolformer`."""
    ensure_database(address, OWNER, OWNER)
    ensure_database(address, AIRFLOW, AIRFLOW)
    allow_reader(address, OWNER)


def ensure_database(address: PostgresAddress, database: str, owner: str, template: str = "template1") -> None:
    """Make `database` for `owner` unless it is there, as a copy of `template`, and keep other roles out."""
    with closing(_connect(address, "postgres")) as connection, connection.cursor() as cursor:
        cursor.execute("select 1 from pg_database where datname = %s", (database,))
        if cursor.fetchone() is None:
            names = (sql.Identifier(database), sql.Identifier(owner), sql.Identifier(template))
            cursor.execute(sql.SQL("create database {} owner {} template {}").format(*names))
        cursor.execute(sql.SQL("revoke all on database {} from public").format(sql.Identifier(database)))


def allow_reader(address: PostgresAddress, database: str) -> None:
    """Let the reader read every table and view of `database`, those to come included."""
    with closing(_connect(address, database)) as connection, connection.cursor() as cursor:
        names = {
            "database": sql.Identifier(database),
            "owner": sql.Identifier(OWNER),
            "reader": sql.Identifier(READER),
        }
        for statement in (
            "grant connect on database {database} to {reader}",
            "grant usage on schema public to {reader}",
            "grant select on all tables in schema public to {reader}",
            "alter default privileges for role {owner} in schema public grant select on tables to {reader}",
        ):
            cursor.execute(sql.SQL(statement).format(**names))


def drop_database(address: PostgresAddress, database: str) -> None:
    """Take `database` away, cutting the connections that it has."""
    with closing(_connect(address, "postgres")) as connection, connection.cursor() as cursor:
        cursor.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(database)))


def _ensure_role(connection: extensions.connection, cursor: extensions.cursor, role: str, password: str) -> None:
    cursor.execute("select 1 from pg_roles where rolname = %s", (role,))
    verb = "create" if cursor.fetchone() is None else "alter"
    # The SCRAM verifier, not the password: what the server logs or shows then gives nothing away.
    verifier = extensions.encrypt_password(password, role, scope=connection, algorithm="scram-sha-256")
    cursor.execute(
        sql.SQL("{} role {} login password {}").format(sql.SQL(verb), sql.Identifier(role), sql.Literal(verifier))
    )


def _connect(address: PostgresAddress, database: str) -> extensions.connection:
    connection = psycopg2.connect(address.dsn(database))
    connection.autocommit = True  # `create database` cannot run inside a transaction
    return connection
