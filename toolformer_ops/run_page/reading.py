"""Answers from Postgres that slow nobody down: connections of the reader with a time limit, threads of their own, a cache.

Airflow's API server answers everybody from one process. So queries and templates run in a few threads of this room and not in those
that Airflow's own routes share; a statement is ended after `STATEMENT_SECONDS`; equal questions that come while one is being
answered wait for that answer; and an answer is kept for as long as it holds, at least ten times as long as it took.
Connects as the role `toolformer_reader` alone.
"""

import asyncio
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request, Response
from sqlalchemy import Connection, Engine, Row

from toolformer_ops.config import Settings
from toolformer_ops.errors import BusyError, DatabaseError
from toolformer_ops.run_page import pages
from toolformer_ops.storage import database

logger = logging.getLogger(__name__)

READER_SETTING = "TOOLFORMER_READER_DSN"
THREADS = 4
"""Queries at once, each on a connection; the reader may have 20."""
MOST_WAITING = 32
"""Questions that wait for a thread before others are turned away."""
STATEMENT_SECONDS = 8.0
QUERY_CANCELED = "57014"
"""SQLSTATE of a statement that took too long."""
CACHE_BYTES = 32 * 2**20
KEPT_LONGER_THAN_IT_TOOK = 10.0
OPTIONS = {
    "statement_timeout": f"{STATEMENT_SECONDS:.0f}s",
    "lock_timeout": "2s",
    "idle_in_transaction_session_timeout": "30s",
    "default_transaction_read_only": "on",
    "jit": "off",  # compiling takes longer than these queries
}


@dataclass(frozen=True)
class Page:
    """What a view shows: its template, with what it is filled with."""

    template: str
    values: dict[str, Any]
    seconds: float = 0.0
    """How long the answer holds for everybody who may ask for it; 0: it is not kept."""
    status: int = 200


@dataclass
class Reader:
    """The reader's pool, the threads and the cache of one application."""

    settings: Settings
    threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="run-page")
    )
    _engine: Engine | None = None
    _connecting: threading.Lock = field(default_factory=threading.Lock)
    _kept: "OrderedDict[Hashable, tuple[float, Response]]" = field(default_factory=OrderedDict)
    _kept_bytes: int = 0
    _asked: dict[Hashable, "asyncio.Task[Response]"] = field(default_factory=dict)
    _waiting: int = 0

    def engine(self) -> Engine:
        """The reader's connections.

        Raises:
            DatabaseError, ConfigurationError: Postgres cannot be reached as the settings say.
        """
        with self._connecting:
            if self._engine is None:
                dsn = self.settings.reader_dsn.get_secret_value()
                self._engine = database.connect_dsn(dsn, READER_SETTING, connections=THREADS, options=OPTIONS)
            return self._engine

    async def answer(self, key: Hashable, make: Callable[[Connection], Page]) -> Response:
        """The page that `make` makes, or the one that was made for this key a moment ago."""
        made = await self._made(key, make)
        # A response of its own for each request: middleware that packs a response changes its headers.
        return Response(made.body, made.status_code, pages.HEADERS, made.media_type)

    async def _made(self, key: Hashable, make: Callable[[Connection], Page]) -> Response:
        if (kept := self._kept.get(key)) is not None and kept[0] > time.monotonic():
            self._kept.move_to_end(key)
            return kept[1]
        task = self._asked.get(key)
        if task is None:
            if self._waiting >= MOST_WAITING:
                raise BusyError("Too many questions are being answered now. Ask again in a moment.")
            self._asked[key] = task = asyncio.create_task(self._answer(key, make))
            task.add_done_callback(lambda _: self._asked.pop(key, None))
        return await asyncio.shield(task)  # who leaves does not take the answer from those who wait for it

    async def _answer(self, key: Hashable, make: Callable[[Connection], Page]) -> Response:
        self._waiting += 1
        try:
            started = time.monotonic()
            response, seconds = await asyncio.get_running_loop().run_in_executor(self.threads, self._make, make)
            took = time.monotonic() - started
        finally:
            self._waiting -= 1
        if seconds > 0:
            self._keep(key, response, max(seconds, took * KEPT_LONGER_THAN_IT_TOOK))
        return response

    def _make(self, make: Callable[[Connection], Page]) -> tuple[Response, float]:
        with database.transaction(self.engine()) as connection:
            page = make(connection)
        return pages.response(page.template, page.values, page.status), page.seconds

    def _keep(self, key: Hashable, response: Response, seconds: float) -> None:
        if (replaced := self._kept.pop(key, None)) is not None:
            self._kept_bytes -= len(replaced[1].body)
        self._kept[key] = time.monotonic() + seconds, response
        self._kept_bytes += len(response.body)
        while self._kept_bytes > CACHE_BYTES:
            _, (_, oldest) = self._kept.popitem(last=False)
            self._kept_bytes -= len(oldest.body)


def within(connection: Connection, seconds: float, name: str, **parameters: object) -> list[Row[Any]] | None:
    """The rows of `sql/queries/NAME.sql`, or None where they take longer than this.

    Raises:
        DatabaseError: Postgres refuses the statement for another reason.
    """
    nested = connection.begin_nested()
    try:
        database.execute(connection, "page_time_limit", milliseconds=f"{1000 * seconds:.0f}ms")
        rows = database.fetch_all(connection, name, **parameters)
    except DatabaseError as error:
        nested.rollback()
        if took_too_long(error):
            return None
        raise
    database.execute(connection, "page_time_limit", milliseconds=OPTIONS["statement_timeout"])
    nested.commit()
    return rows


def took_too_long(error: BaseException) -> bool:
    """Whether Postgres ended the statement because of its time limit."""
    cause = error.__cause__
    return getattr(getattr(cause, "orig", None) or cause, "pgcode", None) == QUERY_CANCELED


async def answer(request: Request, make: Callable[[Connection], Page], visible_to: Hashable = None) -> Response:
    """The view's page for this address.

    Args:
        request: its path and query are the key of the cache; rights were asked for before.
        make: reads the rows, in a thread.
        visible_to: part of the key for a page that differs by visitor, such as the DAGs that they may see.
    """
    reader: Reader = request.app.state.reader
    key = (request.url.path, tuple(sorted(request.query_params.multi_items())), visible_to)
    return await reader.answer(key, make)
