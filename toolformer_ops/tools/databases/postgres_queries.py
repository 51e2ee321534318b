"""Queries of Postgres, which only read.

Each runs in a transaction that is READ ONLY, under the server's own time limits.

1. The text is read (`query_text.py`): one SELECT, functions of a list, no system catalog.
2. The server parses it as one statement, by the extended protocol, which takes no second one. It then has a
   lock on each table that the query reads, also below a view: each has to be offered, or read by an offered
   view.
3. A text that may be a date of today is made a parameter, and the server says of which type it is.
4. It becomes a cursor over its rows as JSON, cut to the longest answer by the server, so that neither a huge
   value nor 10^9 rows are ever sent. What a parsed SELECT is in brackets no text of it can leave.
5. So many rows are fetched, and the transaction is rolled back.

What the role may not read it cannot read here. A role that may do more than read is named in a warning.
"""

import contextlib
import json
import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import psycopg
from psycopg.pq import DiagnosticField, ExecStatus

from toolformer_ops.errors import RejectedInputError
from toolformer_ops.tools.databases import reasons
from toolformer_ops.tools.databases.query_text import (
    Names,
    Token,
    check_postgres_query,
    is_repeatable,
    names_relation,
    postgres_tokens,
    texts_of_the_clock,
    without_last_semicolon,
)
from toolformer_ops.tools.databases.requests import DatabaseOpening, DescribedDatabase, Queries, Table
from toolformer_ops.tools.databases.table_texts import PRIMARY_KEY, references
from toolformer_ops.tools.files.answering import AwayError, WrongError
from toolformer_ops.tools.files.number_text import number_text

RelationKey = tuple[str, str]
"""Schema and name of a table or view, as the server has them."""

_FUNCTIONS = """
abs acos age any_value array_agg array_append array_cat array_dims array_length array_lower array_ndims
array_position array_positions array_prepend array_remove array_replace array_to_json array_to_string
array_upper ascii asin atan atan2 avg bit_and bit_length bit_or bool_and bool_or btrim cardinality cbrt
ceil ceiling char_length character_length chr coalesce concat concat_ws corr cos count covar_pop
covar_samp cume_dist date date_bin date_part date_trunc daterange degrees dense_rank div every exp extract
factorial first_value floor format gcd generate_series generate_subscripts greatest grouping initcap
int4range int8range isempty isfinite json_agg json_array json_array_elements json_array_elements_text
json_array_length json_arrayagg json_build_array json_build_object json_each json_each_text json_exists
json_extract_path json_extract_path_text json_object json_object_agg json_object_keys json_objectagg
json_query json_strip_nulls json_typeof json_value jsonb_agg jsonb_array_elements
jsonb_array_elements_text jsonb_array_length jsonb_build_array jsonb_build_object jsonb_each
jsonb_each_text jsonb_extract_path jsonb_extract_path_text jsonb_object_agg jsonb_object_keys
jsonb_path_exists jsonb_path_match jsonb_path_query jsonb_path_query_array jsonb_path_query_first
jsonb_pretty jsonb_strip_nulls jsonb_typeof justify_days justify_hours justify_interval lag last_value lcm
lead least left length ln log log10 lower lower_inc lower_inf lpad ltrim make_date make_interval make_time
make_timestamp max md5 min min_scale mod mode nth_value ntile nullif num_nonnulls num_nulls numrange
octet_length overlay percent_rank percentile_cont percentile_disc phraseto_tsquery pi plainto_tsquery
position power quote_ident quote_literal radians range_merge rank regexp_count regexp_instr regexp_like
regexp_match regexp_matches regexp_replace regexp_split_to_array regexp_split_to_table regexp_substr
regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope repeat replace reverse right round row
row_number row_to_json rpad rtrim scale sign sin split_part sqrt starts_with stddev stddev_pop stddev_samp
string_agg string_to_array string_to_table strpos substr substring sum tan to_char to_date to_hex to_json
to_jsonb to_number to_timestamp to_tsquery to_tsvector translate trim trim_scale trunc ts_headline ts_rank
ts_rank_cd tsrange unnest upper upper_inc upper_inf var_pop var_samp variance websearch_to_tsquery
width_bucket
"""
FUNCTIONS = frozenset(_FUNCTIONS.split())
"""What a query may call: what computes a value from its arguments alone."""
_TEXT_TYPES = frozenset({"json", "jsonb", "tsquery", "tsvector"})
"""Types of texts that are in no category of Postgres, beside its categories of texts and of enumerations."""
CONNECT_SECONDS = 10

_SETTINGS = b"""
select pg_catalog.set_config('statement_timeout', '%(limit)d', true),
    pg_catalog.set_config('lock_timeout', '%(limit)d', true),
    pg_catalog.set_config('idle_in_transaction_session_timeout', '%(idle)d', true),
    pg_catalog.set_config('standard_conforming_strings', 'on', true),
    pg_catalog.set_config('search_path', pg_catalog.concat_ws(', ', 'pg_catalog',
        nullif(pg_catalog.current_setting('search_path'), '')), true),
    pg_catalog.set_config('max_parallel_workers_per_gather', '0', true),
    pg_catalog.set_config('synchronize_seqscans', 'off', true),
    pg_catalog.set_config('datestyle', 'ISO, MDY', true),
    pg_catalog.set_config('intervalstyle', 'postgres', true),
    pg_catalog.set_config('timezone', 'UTC', true),
    pg_catalog.set_config('lc_numeric', 'C', true),
    pg_catalog.set_config('lc_time', 'C', true),
    pg_catalog.set_config('transform_null_equals', 'off', true)
"""
_RELATIONS = b"""
select n.nspname, c.relname, pg_catalog.pg_table_is_visible(c.oid),
    pg_catalog.has_any_column_privilege(c.oid, 'SELECT'),
    pg_catalog.has_table_privilege(c.oid, 'INSERT') or pg_catalog.has_table_privilege(c.oid, 'UPDATE')
        or pg_catalog.has_table_privilege(c.oid, 'DELETE') or pg_catalog.has_table_privilege(c.oid, 'TRUNCATE'),
    c.relispartition
from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'v', 'm', 'f', 'p') and n.nspname !~ '^pg_' and n.nspname <> 'information_schema'
order by n.nspname, c.relname
"""
_COLUMNS = b"""
select r.nspname, r.relname, a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod),
    k.contype, k.nspname, k.relname, k.attname
from (
    select c.oid, n.nspname, c.relname
    from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
    where c.relkind in ('r', 'v', 'm', 'f', 'p') and n.nspname !~ '^pg_' and n.nspname <> 'information_schema'
) r
join pg_catalog.pg_attribute a on a.attrelid = r.oid and a.attnum > 0 and not a.attisdropped
left join lateral (
    select o.contype, n.nspname, c.relname, t.attname
    from pg_catalog.pg_constraint o
    left join pg_catalog.pg_class c on c.oid = o.confrelid
    left join pg_catalog.pg_namespace n on n.oid = c.relnamespace
    left join pg_catalog.pg_attribute t on t.attrelid = o.confrelid and t.attnum = o.confkey[1]
    where o.conrelid = a.attrelid and o.contype in ('p', 'f') and o.conkey = array[a.attnum]
    order by o.contype desc, o.conname
    limit 1
) k on true
where pg_catalog.has_column_privilege(a.attrelid, a.attnum, 'SELECT')
order by r.nspname, r.relname, a.attnum
"""
_OWN_FUNCTIONS = b"""
select distinct p.proname
from pg_catalog.pg_proc p join pg_catalog.pg_namespace n on n.oid = p.pronamespace
where n.nspname not in ('pg_catalog', 'information_schema') and not exists (
    select from pg_catalog.pg_depend d
    where d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass and d.objid = p.oid and d.deptype = 'e')
"""
_VIEWS = b"""
select n.nspname, c.relname, pg_catalog.pg_get_viewdef(c.oid)
from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where c.relkind = 'v' and n.nspname !~ '^pg_' and n.nspname <> 'information_schema'
"""
_READ_BY_VIEWS = b"""
select distinct vn.nspname, v.relname, n.nspname, c.relname
from pg_catalog.pg_rewrite r
join pg_catalog.pg_class v on v.oid = r.ev_class
join pg_catalog.pg_namespace vn on vn.oid = v.relnamespace
join pg_catalog.pg_depend d on d.classid = 'pg_catalog.pg_rewrite'::pg_catalog.regclass and d.objid = r.oid
    and d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass
join pg_catalog.pg_class c on c.oid = d.refobjid
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where c.oid <> v.oid
"""
_WITH_TIMES_OF_DAY = b"""
select distinct n.nspname, c.relname
from pg_catalog.pg_attribute a
join pg_catalog.pg_class c on c.oid = a.attrelid
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where a.atttypid in (1083, 1266) and not a.attisdropped
"""
_LOCKED = b"""
select n.nspname, c.relname
from pg_catalog.pg_locks l
join pg_catalog.pg_class c on c.oid = l.relation
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where l.pid = pg_catalog.pg_backend_pid() and l.locktype = 'relation' and c.relkind not in ('i', 'I')
"""
LOCKED_BY_THE_LOOK = frozenset({("pg_catalog", name) for name in ("pg_class", "pg_locks", "pg_namespace")})
"""Relations that the look at the locks itself reads; no query may name them (`check_postgres_query`)."""
_KINDS_OF_TYPES = b"""
select t.typcategory, t.typname from pg_catalog.pg_type t where t.oid = $1::pg_catalog.oid
"""
_ROLE = b"""
select r.rolname, r.rolsuper,
    pg_catalog.pg_has_role(r.oid, 'pg_read_server_files', 'MEMBER')
        or pg_catalog.pg_has_role(r.oid, 'pg_write_server_files', 'MEMBER')
        or pg_catalog.pg_has_role(r.oid, 'pg_execute_server_program', 'MEMBER')
from pg_catalog.pg_roles r where r.rolname = current_user
"""
_LOST_CLASSES = ("08", "57P", "58", "25P03", "53300")
"""SQLSTATEs that say something of the server, and nothing of the query."""

_BUSY = ("starting up", "shutting down", "too many", "connection slots", "recovery")
"""What a server says that refuses now, and may not later."""


_FLOATS = frozenset({700, 701})
_TIMES = frozenset({1114, 1184})
"""OIDs of types: float4 and float8; timestamps without and with a time zone."""
_NUMERIC = 1700
_NO_LENGTH = -1
"""The modifier of a type that no column's declaration has given a scale."""


class _Relation:
    """A table or view of the database."""

    def __init__(self, row: list[str | None]) -> None:
        schema, name, is_visible, may_read, may_write, is_partition = row
        self.schema, self.relation = schema or "", name or ""
        self.name = self.relation if is_visible == "t" else f"{schema}.{name}"
        """As a query names it."""
        self.may_read, self.may_write = may_read == "t", may_write == "t"
        self.is_partition = is_partition == "t"


def _connection(opening: DatabaseOpening) -> "psycopg.Connection[Any]":
    """A connection that commits each statement by itself.

    Raises:
        WrongError: the server refuses the role, or has no such database.
        AwayError: it does not answer.
    """
    try:
        return psycopg.connect(
            **{"connect_timeout": str(CONNECT_SECONDS), **opening.address},  # type: ignore[arg-type]
            client_encoding="UTF8",
            autocommit=True,
            application_name="toolformer-ops tool",
        )
    except psycopg.Error as error:
        said = " ".join(str(error).split())
        refused = "FATAL" in said and not any(words in said for words in _BUSY)
        raise (WrongError if refused else AwayError)(said) from error


def _offered_tables(relations: Sequence[_Relation], named: Sequence[str]) -> tuple[str, ...]:
    """The tables that the tool's file names, or without names all that the role may read.

    Raises:
        WrongError: the role may not read one of those that are named.
    """
    readable = [relation for relation in relations if relation.may_read]
    whole = [relation.name for relation in readable if not relation.is_partition]
    tables = tuple(named or whole)
    if missing := set(tables) - {relation.name for relation in readable}:
        raise WrongError(
            f"expected tables {', '.join(sorted(missing))} that the role may read, found "
            f"{', '.join(whole) or 'none'}"
        )
    return tables


def _read_by(offered: Collection[RelationKey], rows: Sequence[Sequence[str | None]]) -> set[RelationKey]:
    """What offered views read, also through others; `rows` are a view and what it reads, each with its schema."""
    read = set(offered)
    while True:
        more = {(schema or "", name or "") for *view, schema, name in rows if tuple(view) in read}
        if more <= read:
            return read - set(offered)
        read |= more


class PostgresQueries(Queries):
    """A connection to Postgres; queries run on it one by one."""

    def __init__(self, opening: DatabaseOpening) -> None:
        """Connect.

        Raises:
            WrongError: it refuses the role, or there is no such database or table.
            AwayError: it does not answer.
        """
        self._opening = opening
        self._connection = _connection(opening)
        self._server = self._connection.pgconn
        # 1. What the database has, and the tables that are offered.
        with self._reading():
            relations = [_Relation(row) for row in self._rows(_RELATIONS)]
            own_functions = {(name or "").lower() for (name,) in self._rows(_OWN_FUNCTIONS)}
            # Views that ask for the time, for chance or for the role. One whose text has escapes is not read.
            self._changing: set[RelationKey] = set()
            for schema, name, definition in self._rows(_VIEWS):
                with contextlib.suppress(RejectedInputError):
                    if not is_repeatable(postgres_tokens(definition or "")):
                        self._changing.add((schema or "", name or ""))
            read_by_views = self._rows(_READ_BY_VIEWS)
            with_times_of_day = {(schema, name) for schema, name in self._rows(_WITH_TIMES_OF_DAY)}
        self._tables = _offered_tables(relations, opening.tables)
        # 2. What a query may name.
        offered = [relation for relation in relations if relation.name in self._tables]
        self._offered = {(relation.schema, relation.relation): relation.name for relation in offered}
        self._read_by_offered = _read_by(self._offered, read_by_views)
        self._names = Names(
            functions=FUNCTIONS,
            own_functions=own_functions,
            has_times_of_day=any(key in with_times_of_day for key in self._offered),
        )
        self._writable = [relation.name for relation in offered if relation.may_write]

    def describe(self) -> DescribedDatabase:
        """Its tables, and what the role may do beyond reading them."""
        with self._reading():
            columns = self._rows(_COLUMNS)
            [(role, is_superuser, reads_files)] = self._rows(_ROLE)
        tables = {name: Table(name, {}, {}) for name in self._tables}
        for schema, relation, column, kind, key, target_schema, target, target_column in columns:
            name = self._offered.get((schema or "", relation or ""))
            if name is None:
                continue
            table = tables[name]
            table.columns[column or ""] = kind or ""
            referred = self._offered.get((target_schema or "", target or ""))
            if key == "p":
                table.keys[column or ""] = PRIMARY_KEY
            elif referred is not None:
                table.keys[column or ""] = references(referred, target_column, "Postgres")
                table.foreign_keys[column or ""] = (referred, target_column or "")
        may = []
        if is_superuser == "t":
            may.append("is a superuser")
        if reads_files == "t":
            may.append("may read files of the server, or run programs there")
        if self._writable:
            may.append(f"may write to {', '.join(self._writable[:5])}")
        warnings = [
            f"the role {role} {what}. Queries only read, whatever it may; make a role that may do no more: "
            "docs/own_tools.md#a-role-that-only-reads."
            for what in may
        ]
        return DescribedDatabase(list(tables.values()), warnings)

    def answer(self, query: str) -> list[list[str | None]]:
        """The rows of a query, as `Queries` says."""
        limit, most = self._opening.rows + 1, self._opening.bytes
        with self._reading():
            kinds = self._declare_rows(query)
            rows = self._rows(b"fetch forward %d from tool_rows" % limit)
        if len(rows) == limit:
            raise RejectedInputError(reasons.MANY_ROWS, f"more than {self._opening.rows} rows")
        if sum(len((row or "").encode()) for (row,) in rows) > most:
            raise RejectedInputError(reasons.TOO_LARGE)
        return [_values(row or "{}", kinds) for (row,) in rows]

    def pages(self, query: str) -> Iterator[list[list[str | None]]]:
        """All rows of a query, as `Queries` says, but those that are longer than an answer."""
        with self._reading():
            kinds = self._declare_rows(query)
            while rows := self._rows(b"fetch forward %d from tool_rows" % self._opening.rows):
                if whole := [row for (row,) in rows if len(row or "") <= self._opening.bytes]:
                    yield [_values(row or "{}", kinds) for row in whole]

    def _declare_rows(self, query: str) -> list[tuple[int, int]]:
        """Declare the cursor `tool_rows` for a query; returns the types of its columns, each with its modifier."""
        tokens = check_postgres_query(query, self._names)
        try:
            text = query.encode()
        except UnicodeEncodeError as error:
            raise RejectedInputError(reasons.INVALID) from error
        self._take(self._server.prepare(b"", text))
        columns = self._take(self._server.describe_prepared(b""))
        kinds = [(columns.ftype(number), columns.fmod(number)) for number in range(columns.nfields)]
        self._require_offered(tokens)
        self._require_no_day_of_the_clock(query, tokens)
        self._rows(
            b"declare tool_rows no scroll cursor for select pg_catalog.left("
            b"pg_catalog.row_to_json(tool_row.*)::pg_catalog.text, %d) from (\n%b\n) tool_row"
            % (self._opening.bytes + 1, without_last_semicolon(query).encode())
        )
        return kinds

    def _require_offered(self, tokens: Sequence[Token]) -> None:
        """Raise a RejectedInputError unless all that the parsed query reads is offered, also through views.

        What is only read by an offered view the query must not name itself.
        """
        locked = {(schema or "", name or "") for schema, name in self._rows(_LOCKED)} - LOCKED_BY_THE_LOOK
        for schema, name in sorted(locked.difference(self._offered)):
            is_below = (schema, name) in self._read_by_offered
            if not is_below or names_relation(tokens, schema, name):
                raise RejectedInputError(reasons.TABLE, f"{schema}.{name} is not offered")
        if changing := sorted(locked & self._changing):
            raise RejectedInputError(
                reasons.NOT_REPEATABLE, f"{changing[0][1]} asks for the time or for chance"
            )

    def _require_no_day_of_the_clock(self, query: str, tokens: Sequence[Token]) -> None:
        """Raise a RejectedInputError if Postgres reads a text such as `'today'` as no text."""
        places = texts_of_the_clock(tokens)
        if not places:
            return
        pieces, end = [], 0
        for number, (start, after) in enumerate(places, 1):
            pieces.append(f"{query[end:start]} ${number} ")
            end = after
        try:
            self._take(self._server.prepare(b"", "".join([*pieces, query[end:]]).encode()))
        except RejectedInputError as error:  # such as `date 'today'`, where no parameter may stand
            raise RejectedInputError(reasons.NOT_REPEATABLE) from error
        described = self._take(self._server.describe_prepared(b""))
        for number in range(described.nparams):
            [(category, name)] = self._rows(_KINDS_OF_TYPES, str(described.param_type(number)))
            if category not in {"S", "E"} and name not in _TEXT_TYPES:
                raise RejectedInputError(reasons.NOT_REPEATABLE)

    @contextlib.contextmanager
    def _reading(self) -> Any:
        """A transaction that only reads, within the limits of time; it is always rolled back.

        What a role may set otherwise and what answers depend on, such as the time zone, is the same for all.
        """
        milliseconds = int(self._opening.seconds * 1000)
        try:
            self._rows(b"begin transaction isolation level read committed read only")
            self._rows(_SETTINGS % {b"limit": milliseconds, b"idle": milliseconds + 60_000})
            yield
        finally:
            with contextlib.suppress(AwayError, RejectedInputError, psycopg.Error):
                self._rows(b"rollback")

    def _rows(self, statement: bytes, *values: str) -> list[list[str | None]]:
        """The rows of one statement, as texts."""
        parameters = [value.encode() for value in values]
        result = self._take(self._server.exec_params(statement, parameters))
        rows = []
        for row in range(result.ntuples):
            fields = [result.get_value(row, column) for column in range(result.nfields)]
            rows.append([None if field is None else field.decode() for field in fields])
        return rows

    def _take(self, result: Any) -> Any:
        """A result of the server, or the error that it says."""
        if result.status in {ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK}:
            return result
        state = (result.error_field(DiagnosticField.SQLSTATE) or b"").decode()
        message = (result.error_field(DiagnosticField.MESSAGE_PRIMARY) or result.error_message).decode(
            errors="replace"
        )
        if not state or (state.startswith(_LOST_CLASSES) and state != "08P01"):
            raise AwayError(" ".join(message.split()) or "the connection was lost")
        raise RejectedInputError(_reason(state, message), message)


def _reason(state: str, message: str) -> str:
    """The reason that an SQLSTATE is: https://www.postgresql.org/docs/current/errcodes-appendix.html."""
    by_state = {
        "25006": reasons.WRITES,  # read_only_sql_transaction
        "57014": reasons.TIMED_OUT,  # query_canceled
        "55P03": reasons.TIMED_OUT,  # lock_not_available
        "42501": reasons.TABLE,  # insufficient_privilege
    }
    by_class = {"53": reasons.MEMORY, "54": reasons.TOO_LARGE}
    if state == "08P01":  # a place for a parameter, which a query has none of
        return reasons.INVALID
    if "multiple commands" in message:
        return reasons.SEVERAL
    if "data-modifying" in message:
        return reasons.WRITES
    return by_state.get(state) or by_class.get(state[:2]) or reasons.INVALID


def _values(row: str, kinds: Sequence[tuple[int, int]]) -> list[str | None]:
    """The values of a row that Postgres wrote as JSON, as texts say them.

    `kinds` are the types of its columns, each with the type's modifier.
    """
    pairs = json.loads(row, parse_int=str, parse_float=str, object_pairs_hook=list)
    return [_column(value, *kind) for (_, value), kind in zip(pairs, kinds, strict=True)]


def _column(value: Any, kind: int, modifier: int) -> str | None:
    """The value of a column.

    Its declaration gives a numeric its scale; what is computed has digits that no text writes.
    """
    text = _value(value)
    if text is None:
        return None
    if kind in _FLOATS and math.isfinite(float(text)):
        return number_text(float(text))
    if kind == _NUMERIC and modifier == _NO_LENGTH:
        return _without_digits_of_a_division(text)
    return text.replace("T", " ", 1).removesuffix("+00:00") if kind in _TIMES else text


def _without_digits_of_a_division(text: str) -> str:
    """A numeric with all of its digits, but with 15 where it has the scale that a division gives.

    Postgres gives a quotient 16 digits or more, by four: 20 places below 1, 16 below 10^4, 12 below 10^8.
    Source: `select_div_scale` in src/backend/utils/adt/numeric.c
    """
    whole, _, places = text.lstrip("-").partition(".")
    groups = -1 if whole == "0" else (len(whole) - 1) // 4
    is_quotient = len(whole) + len(places) > 15 and len(places) >= max(4, 16 - 4 * groups)
    return number_text(float(text)) if is_quotient else text


def _value(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        parts = []
        for part in value:
            text = f"{part[0]}: {_value(part[1])}" if isinstance(part, tuple) else _value(part)
            parts.append("NULL" if text is None else text)
        return ", ".join(parts)
    return value if value is None else str(value)
