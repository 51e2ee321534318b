"""Answers from Postgres that slow no other request down: connections of the reader with a time limit, separate threads, a cache.

Airflow's API server answers everybody from one process. So queries and templates run in a few threads of this
room and not in those that Airflow's own routes share; a statement is ended after `STATEMENT_SECONDS`; equal
questions that come while one is being answered wait for that answer; and an answer is kept for as long as it
holds, at least ten times as long as it took. What takes longer and is not stored, such as the numbers of a
large run that works, is counted in a thread beside them, one count after the other (`Reader.counted`): a page
shows the newest count. Connects by `TOOLFORMER_READER_DSN` alone, as the role `toolformer_page`.
"""

import asyncio
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request, Response
from sqlalchemy import Connection, Engine

from toolformer_ops.config import Settings
from toolformer_ops.errors import BusyError, ToolformerError
from toolformer_ops.run_page import pages
from toolformer_ops.storage.postgres import database, queries

logger = logging.getLogger(__name__)

READER_SETTING = "TOOLFORMER_READER_DSN"
Done = TypeVar("Done")

THREADS = 4
"""Queries at once, each on a connection; the role may have 20."""
MOST_WAITING = 32
"""Questions that wait for a thread before others are turned away."""
STATEMENT_SECONDS = 8.0
QUERY_CANCELED = "57014"
"""SQLSTATE of a statement that took too long."""
CONTENT_DISPOSITION = "content-disposition"
CACHE_BYTES = 32 * 2**20
SECONDS_TO_COUNT = 60.0
"""A statement that counts is given up after so long, and the count is asked for again after ten times as
long."""
SECONDS_TO_WAIT = 0.15
"""A page waits so long for a count: that of a small run is ready by then."""
OLD_COUNT, MOST_SECONDS_TO_WAIT = 30.0, 5.0
"""After so many seconds a count is old, and a page waits longer for the next one, but no longer than this."""
OLDEST_COUNT = 600.0
"""After so many seconds a count is not shown any more."""
MOST_COUNTS = 64
KEPT_LONGER_THAN_IT_TOOK = 10.0
OPTIONS = {
    "statement_timeout": f"{STATEMENT_SECONDS:.0f}s",
    "lock_timeout": "2s",
    "idle_in_transaction_session_timeout": "30s",
    "default_transaction_read_only": "on",
    "jit": "off",  # compiling takes longer than these queries
}


@dataclass(frozen=True)
class File:
    """A file that a browser saves."""

    name: str
    """Letters, digits and punctuation of ASCII alone."""
    media_type: str
    content: bytes


@dataclass(frozen=True)
class Page:
    """What a view shows: a template and its values, or a file."""

    template: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    """How long the answer holds for everybody who may ask for it; 0: it is not kept."""
    status: int = 200
    file: File | None = None

    def response(self) -> Response:
        """As it is sent."""
        if self.file is None:
            return pages.response(self.template, self.values, self.status)
        headers = {CONTENT_DISPOSITION: f'attachment; filename="{self.file.name}"'}
        return Response(self.file.content, self.status, headers, self.file.media_type)


@dataclass(frozen=True)
class Counted:
    """Numbers that were counted."""

    values: Any
    at: float
    """When the counting began, seconds since 1970."""
    seconds: float
    """How long it took."""

    @property
    def age(self) -> float:
        """Seconds since then."""
        return time.time() - self.at


@dataclass
class _Count:
    """The state of one count."""

    newest: Counted | None = None
    next_at: float = 0.0
    """Not before this monotonic time is it made again."""
    under_way: threading.Event | None = None
    """Set when the count that is being made is ready."""


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
    """Until which monotonic time an answer holds, by key, that which was asked for last at the end."""
    _asked: dict[Hashable, "asyncio.Task[Response]"] = field(default_factory=dict)
    """What is being answered."""
    seconds_to_wait: float = SECONDS_TO_WAIT
    _counts: "OrderedDict[Hashable, _Count]" = field(default_factory=OrderedDict)
    _counts_lock: threading.Lock = field(default_factory=threading.Lock)
    _counting: threading.Lock = field(default_factory=threading.Lock)

    def engine(self) -> Engine:
        """The reader's connections.

        Raises:
            DatabaseError, ConfigurationError: Postgres cannot be reached as the settings say.
        """
        with self._connecting:
            if self._engine is None:
                dsn = self.settings.reader_dsn.get_secret_value()
                self._engine = database.connect_dsn(
                    dsn, READER_SETTING, connections=THREADS + 1, options=OPTIONS
                )
            return self._engine

    async def in_thread(self, work: Callable[[], Done]) -> Done:
        """What `work` returns, in one of the threads."""
        return await asyncio.get_running_loop().run_in_executor(self.threads, work)

    async def answer(self, key: Hashable, make: Callable[[Connection], Page]) -> Response:
        """The page that `make` makes, or the page that was made for this key a moment ago."""

        def rendered() -> tuple[Response, float]:
            with database.transaction(self.engine()) as connection:
                page = make(connection)
            return page.response(), page.seconds

        async def made() -> Response:
            started = time.monotonic()
            response, seconds = await self.in_thread(rendered)
            now = time.monotonic()
            if seconds > 0:
                self._kept[key] = now + max(seconds, (now - started) * KEPT_LONGER_THAN_IT_TOOK), response
                self._kept.move_to_end(key)
                while sum(len(kept.body) for _, kept in self._kept.values()) > CACHE_BYTES:
                    self._kept.popitem(last=False)
            return response

        if (kept := self._kept.get(key)) is not None and kept[0] > time.monotonic():
            self._kept.move_to_end(key)
            return kept[1]
        task = self._asked.get(key)
        if task is None:
            if len(self._asked) >= MOST_WAITING:
                raise BusyError("Too many questions are being answered now. Ask again in a moment.")
            self._asked[key] = task = asyncio.create_task(made())
            task.add_done_callback(lambda _: self._asked.pop(key, None))
        return await asyncio.shield(task)  # who leaves does not take the answer from those who wait for it

    def counted(self, key: Hashable, count: Callable[[Connection], Any]) -> Counted | None:
        """What `count` read lately.

        It is None while it counts for the first time, and if that takes longer than `SECONDS_TO_COUNT`.
        `count` is made again beside the page if it is asked for, after ten times as long as it takes. Waits
        for `seconds_to_wait`, or if the newest count is old for twice as long as that took, so call it in a
        thread.
        """

        def make(state: _Count, done: threading.Event) -> None:
            with self._counting:
                began, started = time.time(), time.monotonic()
                try:
                    with database.transaction(self.engine()) as connection:
                        limit = f"{1000 * SECONDS_TO_COUNT:.0f}ms"
                        database.execute(connection, queries.locks.statement_time_limit, milliseconds=limit)
                        values = count(connection)
                    state.newest = Counted(values, began, time.monotonic() - started)
                except ToolformerError as error:
                    logger.warning("a page shows no counts: %s", error)
                finally:
                    now = time.monotonic()
                    with self._counts_lock:
                        state.next_at = now + (now - started) * KEPT_LONGER_THAN_IT_TOOK
                        state.under_way = None
                    done.set()

        with self._counts_lock:
            state = self._counts.setdefault(key, _Count())
            self._counts.move_to_end(key)
            while len(self._counts) > MOST_COUNTS:
                self._counts.popitem(last=False)
            under_way = state.under_way
            if under_way is None and time.monotonic() >= state.next_at:
                state.under_way = under_way = threading.Event()
                # A daemon, so that the server's end waits for no count.
                threading.Thread(
                    target=make, args=(state, under_way), name="run-page-count", daemon=True
                ).start()
        if under_way is not None:
            newest, patience = state.newest, self.seconds_to_wait
            if newest is not None and newest.age >= OLD_COUNT:
                patience = max(patience, min(2 * newest.seconds, MOST_SECONDS_TO_WAIT))
            under_way.wait(patience)
        newest = state.newest
        return newest if newest is not None and newest.age < OLDEST_COUNT else None


async def reader_of(request: Request) -> Reader:
    """The reader of the application."""
    reader: Reader = request.app.state.reader
    return reader


ReaderDep = Annotated[Reader, Depends(reader_of)]


def took_too_long(error: BaseException) -> bool:
    """Whether Postgres ended the statement because of its time limit."""
    cause = error.__cause__
    return getattr(getattr(cause, "orig", None) or cause, "pgcode", None) == QUERY_CANCELED


async def answer(
    request: Request, make: Callable[[Connection], Page], visible_to: Hashable = None
) -> Response:
    """The view's page for this address.

    Args:
        request: its path and query are the key of the cache; rights were asked for before.
        make: reads the rows, in a thread.
        visible_to: part of the key for a page that differs by visitor, such as the DAGs that they may see.
    """
    key = (request.url.path, tuple(sorted(request.query_params.multi_items())), visible_to)
    response = await (await reader_of(request)).answer(key, make)
    # Each request gets its own response: middleware that packs a response changes its headers.
    own = (
        {CONTENT_DISPOSITION: response.headers[CONTENT_DISPOSITION]}
        if CONTENT_DISPOSITION in response.headers
        else {}
    )
    return Response(response.body, response.status_code, {**pages.HEADERS, **own}, response.media_type)
