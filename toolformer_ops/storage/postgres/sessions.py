"""Sessions of Postgres: what they are called, how long they wait, and for whom. Owns no table.

A process that is lost keeps its locks as long as Postgres keeps its session, and the retry waits for them:

    its machine is lost           TCP asks on both sides whether the other answers (`KEEPALIVES`): a minute
    it is frozen, or a proxy      its machine answers for it. Whoever waits for a lock looks who has it (`LockWatch`),
    keeps its connection          and ends a session that is in a transaction and has said nothing for half of
                                  `lock_seconds`: no process of ours thinks that long within a transaction. Of
                                  one within a COPY each look sees whether it has sent more since the last
    it is frozen, and no one      Postgres ends a session that is idle within a transaction
    waits for it

Postgres looks at none of its time limits while it reads from a client within COPY (seen with 18: neither
`statement_timeout` nor `transaction_timeout` nor `idle_in_transaction_session_timeout` ends such a session),
so the second line is needed. A process that is frozen and wakes finds its connection gone, and its
transaction never happened.

A session belongs to one client: temporary tables and locks of a session are its own. A pooler that gives
sessions to clients for a transaction each, such as pgbouncer with `pool_mode = transaction`, is refused.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass

from psycopg2.extensions import connection as PsycopgConnection  # noqa: N812 - a class
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as NoConnectionFreeError

from toolformer_ops.errors import ConfigurationError, ToolformerError
from toolformer_ops.storage.postgres import queries

logger = logging.getLogger(__name__)

KEEPALIVES: Mapping[str, int] = {
    "keepalives": 1,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
"""The settings of this side of a connection, in seconds, the last in milliseconds: a Postgres whose machine
is lost is noticed in a minute."""
LIMITS: Mapping[str, str] = {
    "tcp_keepalives_idle": "30s",
    "tcp_keepalives_interval": "10s",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "60s",
    "idle_in_transaction_session_timeout": "30min",
}
"""The settings of Postgres's side; the last is longer than a stage waits within a transaction for what is
away."""
NAME = "toolformer"
"""Begins the name of each of our sessions."""
OTHERS_SECONDS = 3600.0
"""Longest wait for another ingestion or audit: its session is idle while it works, so that no one sees
whether it does. The error names its process, and the next try waits again."""
_SET = "select set_config(name, value, false) from unnest(%s, %s) as setting (name, value)"
_NAME_BYTES = 63
_LOOKS = 8
"""So often `LockWatch` looks within `lock_seconds`."""
_PROBES = 5

_introduced: list[str] = []
"""What this process does, and for which run; empty for a process that runs no stage."""


def introduce(work: str, run: str = "") -> None:
    """Say what this process does, such as `sample Calculator 0/3`, and for which run."""
    _introduced[:] = [" ".join(work.split()), run]


def session_name() -> str:
    """The application_name of this process's sessions: who waits for a lock is told it.

    `toolformer sample Calculator 0/3 4711@node-7 night-1`: 63 characters at most, as Postgres has it; of a
    long host or run the end is shown.
    """
    if not _introduced:
        return f"{NAME}-ops"
    work, run = _introduced
    start = f"{NAME} {work} {os.getpid()}@"
    room = _NAME_BYTES - len(start) - 1
    host = _end_of(socket.gethostname(), max(room - len(run), room // 2))
    name = f"{start}{host} {_end_of(run, room - len(host))}".strip()
    return name.encode("ascii", "replace").decode()


def _end_of(text: str, length: int) -> str:
    return text if len(text) <= length else f"~{text[len(text) - length + 1 :]}"


# What a session begins with


def begin(
    connection: PsycopgConnection, settings: Mapping[str, str], connect_again: Callable[[], PsycopgConnection]
) -> int:
    """Give a new session its limits and `settings`; returns the number of its process in Postgres.

    Raises:
        ConfigurationError: a pooler gives the session to other clients between transactions.
    """
    connection.autocommit = True  # a pooler of statements takes no transaction
    process = _server_process(connection)
    # A pooler makes up the number that it tells its client.
    if process != connection.info.backend_pid:
        with closing(connect_again()) as other:
            other.autocommit = True
            if _share_sessions(connection, other):
                raise ConfigurationError(
                    "expected sessions of Postgres of our own, found a pooler that gives them to other "
                    "clients between transactions, such as pgbouncer with pool_mode=transaction: temporary "
                    "tables and locks would be other clients'. Name Postgres itself, or a pool with "
                    "pool_mode=session."
                )
    all_settings = {**LIMITS, **settings}
    with connection.cursor() as cursor:
        cursor.execute(_SET, ([*all_settings], [*all_settings.values()]))
    connection.autocommit = False
    return process


def _server_process(connection: PsycopgConnection) -> int:
    with connection.cursor() as cursor:
        cursor.execute("select pg_backend_pid()")
        [process] = cursor.fetchone() or (0,)
    return int(process)


def _share_sessions(one: PsycopgConnection, other: PsycopgConnection) -> bool:
    """Whether a session that is between transactions is given to another client."""
    for _ in range(_PROBES):
        first = _server_process(one)
        # A pool gives away what it got back last. If a third client was faster, `one` gets another session.
        if _server_process(other) == first or _server_process(one) != first:
            return True
    return False


# Who has a lock


@dataclass(frozen=True)
class Holder:
    """A session that has a lock that another one waits for, and waits for none itself."""

    process: int
    """Its process in Postgres."""
    user_name: str
    name: str
    """Its application_name; empty if it has none."""
    transaction_seconds: int | None
    """How long it has been in a transaction; None if it is in none, or is another role's."""
    silent_seconds: int | None
    """For how long its client has been expected to say something; None if it is at work, or is another
    role's."""
    is_ours: bool
    """Whether it is a session of this project and of the same role."""
    progress: str | None
    """For a client that is in the middle of a statement, such as a COPY: which one it is, and how much of it
    has come."""

    def __str__(self) -> str:
        """Who it is, and for how long."""
        words = (
            f"{self.name or 'an unnamed session'} (process {self.process} of Postgres, user {self.user_name})"
        )
        if self.transaction_seconds is not None:
            words += f", in a transaction for {self.transaction_seconds} s"
        if self.silent_seconds is not None:
            words += f", silent for {self.silent_seconds} s"
        return words


class LockWatch:
    """Looks in a thread whom a session waits for.

    Tells the log, and ends a session that is silent in a transaction.

    Args:
        engine: opens the connection that looks.
        process: the session's process in Postgres.
        lock_seconds: an eighth of it is between two looks, half of it a session may be silent.
        ends_silent: whether silent sessions are ended.
    """

    def __init__(self, engine: Engine, process: int, lock_seconds: float, *, ends_silent: bool) -> None:
        self.holders: list[Holder] = []
        """The sessions that hold the lock, as of the last look that saw some."""
        self._engine, self._process, self._seconds = engine, process, lock_seconds
        self._ends_silent = ends_silent
        self._waits = 0
        self._progress: dict[int, tuple[str, float]] = {}
        """By process of Postgres, the progress of its statement, and when it was seen first."""
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look_again, daemon=True, name="lock watch")

    def __enter__(self) -> "LockWatch":
        """Begin to look."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Look no more."""
        self._is_over.set()

    def _look_again(self) -> None:
        while not self._is_over.wait(self._seconds / _LOOKS):
            try:
                self._look()
            except (DBAPIError, NoConnectionFreeError, ToolformerError) as error:
                logger.info("it is not known who has the lock: %s", " ".join(str(error).split())[:200])

    def _look(self) -> None:
        with self._engine.begin() as connection:
            rows = connection.execute(queries.locks.holders.clause, {"process": self._process}).all()
            holders = [Holder(**row._asdict()) for row in rows]
            if self._is_over.is_set() or not holders:
                return
            self.holders = holders
            self._waits += 1
            if self._waits.bit_count() == 1:  # the 1st, 2nd, 4th, 8th look
                logger.warning("waiting for a lock of %s", "; ".join(map(str, holders)))
            for holder in holders:
                is_silent = self._silence(holder) >= self._seconds / 2
                is_ended = is_silent and holder.is_ours and holder.transaction_seconds is not None
                if self._ends_silent and is_ended:
                    connection.execute(queries.locks.end_session.clause, {"process": holder.process})
                    logger.warning(
                        "ended the session of %s: its process is frozen or lost, and what it did is not "
                        "committed",
                        holder,
                    )

    def _silence(self, holder: Holder) -> float:
        """For how many seconds its client has said nothing.

        Within a statement it counts as far as the looks have seen it.
        """
        now = time.monotonic()
        if holder.progress is None:
            self._progress.pop(holder.process, None)
            return holder.silent_seconds or 0
        progress, since = self._progress.get(holder.process, ("", now))
        if progress != holder.progress:
            since = now
            self._progress[holder.process] = (holder.progress, now)
        return now - since
