"""The TOML file of a tool of a database (docs/own_tools.md).

It says which database, the tables that queries may name, and limits. The file holds the tables and columns of
the database when it was written (`[recorded]`). No password is in it: a Postgres' address has the name of an
environment variable instead, or is an Airflow Connection's. `database_tool.py` makes a tool of it.
"""

import json
import re
from pathlib import PurePath
from typing import Annotated, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from pydantic import Field, model_validator

from toolformer_ops.config import secret_of
from toolformer_ops.errors import ToolError
from toolformer_ops.tools.files.secret_values import SecretNames, secret_values
from toolformer_ops.tools.files.tool_file import FilePart, RecordedTable, ToolFile, short_hash

ENGINES = {"sqlite": "SQLite", "postgresql": "Postgres"}
"""By the first part of an address, as people know them."""
CONNECTION_VARIABLE = "AIRFLOW_CONN_"
"""Airflow reads a Connection from the variable of this name and the Connection's in capitals; so do we."""
_PLACE = re.compile(r"\{([A-Z][A-Z0-9_]*)\}")
_PARAMETERS = frozenset(
    {"sslmode", "sslrootcert", "sslcert", "sslkey", "target_session_attrs", "connect_timeout"}
)
"""What an address may say after its `?`."""


class DatabasePart(FilePart):
    """`[database]`: which one. A `url`, or the `connection` that has it."""

    url: str = ""
    """`sqlite:///shop.db`, relative to the file's folder, or `postgresql://reader:{SHOP_PASSWORD}@host/shop`,
    with `sslmode` and the like after `?`. A password in it is refused."""
    secrets: SecretNames = ()
    """Environment variables of the stage that `url` names as `{NAME}`."""
    connection: str = Field(default="", pattern=r"^[A-Za-z0-9_]*$")
    """Instead of `url`: an Airflow Connection of a Postgres. A pod and a command read it in the variable
    AIRFLOW_CONN_ID, with the Connection's id in capitals."""
    tables: tuple[str, ...] = Field(default=(), strict=False)
    """Tables and views that a query may name; empty: all that the role can read."""
    shown_rows: str = ""
    """What the prompt has at `{rows}`; a proposer behind an endpoint never gets it."""

    @model_validator(mode="after")
    def _one_of(self) -> "DatabasePart":
        if bool(self.url) == bool(self.connection):
            raise ValueError("expected a `url` or a `connection`, found both or neither. Name one of them")
        if self.connection:
            return self
        engine = self.engine
        if engine not in ENGINES:
            raise ValueError(
                f"expected a `url` that begins with sqlite:/// or postgresql://, found {engine or 'none'!r}"
            )
        parts = urlsplit(self.url)
        if parts.password and not _PLACE.fullmatch(unquote(parts.password)):
            raise ValueError(
                "expected no password in `url`, found one. Put it into an environment variable, name that in "
                "`secrets`, and write {NAME} for it"
            )
        if unknown := set(_PLACE.findall(self.url)) - set(self.secrets):
            names = ", ".join(sorted(unknown))
            raise ValueError(f"`url` holds {names}, which `secrets` does not name. Name it: --secret {names}")
        return self

    @property
    def engine(self) -> str:
        """The kind of database, without the driver that an address may name; of a connection Postgres."""
        if self.connection:
            return "postgresql"
        engine = urlsplit(self.url).scheme.partition("+")[0]
        return "postgresql" if engine == "postgres" else engine

    @property
    def name(self) -> str:
        """What the database is called: a file without its ending, a Postgres' database, or the connection."""
        if self.connection:
            return self.connection
        path = urlsplit(self.url).path
        return PurePath(path).stem or "Database"

    @property
    def sqlite_path(self) -> str:
        """The path in `url` as SQLAlchemy has it: relative after three slashes, absolute after four."""
        return self.url.partition(":///")[2]


class ProposalsPart(FilePart):
    """`[proposals]`: the calls that the tool proposes by itself, from the cells of its tables."""

    cells: dict[str, Annotated[tuple[str, ...], Field(strict=False)]] = Field(default_factory=dict)
    """By the column that names the rows of a table, `products.name`, the columns whose cells are proposed:
    `supplier_id.city` is the city in the row that the foreign key `supplier_id` refers to."""
    common: tuple[str, ...] = Field(default=(), strict=False)
    """Names that are left out, since texts say these words without meaning a row."""


class LimitsPart(FilePart):
    """`[limits]`: of one query."""

    seconds: float = Field(default=5.0, gt=0, le=600, strict=False)
    """Longest run."""
    rows: int = Field(default=20, ge=1, le=10_000)
    """Most rows of an answer; a query with more has none."""
    bytes: int = Field(default=10_000, ge=1, le=1_000_000)
    """Longest answer."""
    result_tokens: int = Field(default=64, ge=1, le=1000)
    """Longest result, in words and punctuation marks; it is cut at the end of a sentence if there is one."""


class RecordedTables(RecordedTable):
    """`[recorded]`: tables and columns of the database."""

    engine: str
    """SQLite or Postgres."""
    tables: str
    """By table, the types of its columns by name, as JSON."""

    @model_validator(mode="after")
    def _is_json(self) -> "RecordedTables":
        try:
            tables = json.loads(self.tables)
        except ValueError as error:
            raise ValueError("`tables`: expected JSON") from error
        if not isinstance(tables, dict) or not all(isinstance(columns, dict) for columns in tables.values()):
            raise ValueError("`tables`: expected columns by table")
        return self

    @property
    def columns(self) -> dict[str, dict[str, str]]:
        """The types of columns by name, by table."""
        columns: dict[str, dict[str, str]] = json.loads(self.tables)
        return columns

    @property
    def schema_hash(self) -> str:
        """Names tables and columns, in whatever order they are listed."""
        return short_hash(json.dumps(self.columns, sort_keys=True))

    @property
    def words(self) -> str:
        """The engine, how many tables, and a hash of their columns."""
        return f"{self.engine}, {len(self.columns)} tables, schema {self.schema_hash}"


class DatabaseToolFile(ToolFile):
    """The whole file."""

    database: DatabasePart
    proposals: ProposalsPart = ProposalsPart()
    limits: LimitsPart = LimitsPart()
    recorded: RecordedTables | None = None


def postgres_address(part: DatabasePart, tool: str) -> tuple[dict[str, str], dict[str, str]]:
    """The parameters of libpq for a Postgres, and the secrets among them by name.

    Raises:
        ToolError: a secret or the Connection is not set, or is no address of a Postgres.
    """
    if part.connection:
        # The address that an Airflow Connection has: a URI, or JSON as Airflow writes it.
        connection = part.connection
        variable = connection_variable(connection)
        value = secret_of(variable)
        if not value:
            raise ToolError(
                f"tool {tool}: expected the address of the Connection {connection} in the variable {variable}, "
                "found nothing. A stage that Airflow starts on its worker gets it from Airflow; commands and "
                "pods need it in their environment."
            )
        try:
            address = _of_json(value) if value.lstrip().startswith("{") else _of_uri(value, tool)
        except (ValueError, AttributeError) as error:
            raise ToolError(
                f"tool {tool}: expected the address of a Postgres in {variable}, a URI or JSON as Airflow writes "
                "it, found other text."
            ) from error
        return address, {variable: value, f"{variable}'s password": address.get("password") or value}
    secrets = secret_values(part.secrets, tool)
    return _of_url(part.url, secrets, tool), secrets


def connection_variable(connection: str) -> str:
    """The environment variable in which Airflow looks for a Connection."""
    return CONNECTION_VARIABLE + connection.upper()


def _of_url(url: str, secrets: dict[str, str], tool: str) -> dict[str, str]:
    parts = urlsplit(url)
    try:
        port = str(parts.port or "")
    except ValueError as error:
        raise ToolError(f"tool {tool}: expected a port from 1 to 65535 in `url`, found another.") from error
    parameters = {
        "host": parts.hostname or "",
        "port": port,
        "user": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "dbname": unquote(parts.path.lstrip("/")),
    }
    more = dict(parse_qsl(parts.query))
    # psycopg2 and libpq take the folder of a socket as a parameter, too.
    parameters["host"] = more.pop("host", parameters["host"])
    if unknown := set(more) - _PARAMETERS:
        raise ToolError(
            f"tool {tool}: expected of {', '.join(sorted(_PARAMETERS))} after the `?` of the address, found "
            f"{', '.join(sorted(unknown))}. Remove it."
        )
    filled = {
        key: _PLACE.sub(lambda place: secrets.get(place[1], place[0]), value)
        for key, value in (parameters | more).items()
    }
    return {key: value for key, value in filled.items() if value}


def _of_uri(value: str, tool: str) -> dict[str, str]:
    """The parameters of libpq in the URI of a Connection; a ValueError says that it is none of a Postgres."""
    if urlsplit(value).scheme.partition("+")[0] not in {"postgres", "postgresql"}:
        raise ValueError("no address of a Postgres")
    whole, _, query = value.partition("?")
    more = dict(parse_qsl(query))
    # Airflow writes what else a Connection holds into its address, as JSON if a part of it is no text.
    more |= _of_libpq(more.pop("__extra__", "{}"))
    return _of_url(whole, {}, tool) | {key: item for key, item in more.items() if key in _PARAMETERS}


def _of_libpq(extra: Any) -> dict[str, str]:
    """The parameters of libpq among what else a Connection holds, an object or the JSON of one."""
    values = json.loads(extra) if isinstance(extra, str) else extra
    return {key: str(item) for key, item in values.items() if key in _PARAMETERS}


def _of_json(value: str) -> dict[str, str]:
    """The parameters of libpq in a Connection as JSON.

    A ValueError or an AttributeError says that it is none.
    """
    connection: dict[str, Any] = json.loads(value)
    named = {"host": "host", "port": "port", "user": "login", "password": "password", "dbname": "schema"}
    parameters = {key: str(connection.get(name) or "") for key, name in named.items()}
    parameters |= _of_libpq(connection.get("extra") or {})
    return {key: text for key, text in parameters.items() if text}
