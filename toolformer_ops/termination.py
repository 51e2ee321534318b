"""SIGTERM: this process ends soon and in order, with status 143.

Whoever ends a pod, a drained node or an Airflow task sends SIGTERM first, and SIGKILL when a grace period is
over. Python has no handler for it: as the first process of a container it would not even notice. Here SIGTERM
raises `TerminationRequest` in the main thread, so that every `with` block on the way out closes what it
opened: the transaction at work is rolled back, what was computed before is committed. A second SIGTERM
changes nothing.

Python runs signal handlers between two of its instructions, in the main thread alone. While that thread is
inside a library (a forward pass, a query of minutes) nothing would happen, so a thread watches: after
`PATIENCE_SECONDS` it calls what was registered for interrupting such work, and after `LIMIT_SECONDS` it ends
the process without the rest of the clean-up. What is committed stays.

A training must not be torn out of a step: inside `deferred` the request waits to be asked for.
"""

import contextlib
import ctypes
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import NoReturn

from toolformer_ops.errors import EXIT_TERMINATED, TerminationRequest

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 2.0
"""After which queries that are still at work are cancelled."""
LIMIT_SECONDS = 20.0
"""After which the process ends without clean-up: below the 30 s that Kubernetes gives, and above any ordinary
forward pass."""

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None

_requested = threading.Event()
_deferred = threading.Event()
_interrupts: list[Callable[[], None]] = []
_farewells: list[Callable[[], None]] = []


def install() -> None:
    """Handle SIGTERM from now on; called once, by the main thread."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(
        writer, warn_on_full_buffer=False
    )  # written to at once, also while the main thread is busy
    signal.signal(signal.SIGTERM, _handle)
    threading.Thread(target=_watch, args=(reader,), daemon=True, name="termination").start()


def requested() -> bool:
    """Whether SIGTERM came."""
    return _requested.is_set()


def end_with_parent(signal_number: int = signal.SIGTERM) -> None:
    """Ask the kernel (Linux) for that signal to this process when the process that started it dies, even by SIGKILL."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal_number)


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Within the block SIGTERM raises nothing, and nothing ends the process: the block looks at `requested` and ends by itself.

    Not to be used within itself.

    Raises:
        TerminationRequest: at the end of the block, if SIGTERM came meanwhile and nothing else is raised.
    """
    _deferred.set()
    try:
        yield
    finally:
        _deferred.clear()
    if requested():
        raise TerminationRequest(EXIT_TERMINATED)


def on_delay(interrupt: Callable[[], None]) -> None:
    """Call `interrupt` from another thread if the process has not ended `PATIENCE_SECONDS` after SIGTERM: to cancel a query."""
    _interrupts.append(interrupt)


@contextlib.contextmanager
def farewell(last_words: Callable[[], None]) -> Iterator[None]:
    """Within the block, call `last_words` from another thread before the process is ended without clean-up."""
    _farewells.append(last_words)
    try:
        yield
    finally:
        _farewells.remove(last_words)


def end() -> NoReturn:
    """End the process with status 143 at once: threads that hang, and Java, are not waited for."""
    logging.shutdown()
    sys.stdout.flush()
    os._exit(EXIT_TERMINATED)


def _handle(_number: int, _frame: object) -> None:
    if _requested.is_set():
        return  # the first request is being seen to: its clean-up must not be torn
    _requested.set()
    if not _deferred.is_set():
        raise TerminationRequest(EXIT_TERMINATED)


def _watch(wakeups: int) -> None:
    # 1. Wait for SIGTERM; Python's other signals come through here, too.
    while os.read(wakeups, 1) != bytes([signal.SIGTERM]):
        pass
    # 2. The main thread may be inside a library, which a cancelled query leaves.
    _sleep_unless_deferred(PATIENCE_SECONDS)
    for interrupt in _interrupts:
        _attempt(interrupt)
    # 3. It did not come back: end without it.
    _sleep_unless_deferred(LIMIT_SECONDS - PATIENCE_SECONDS)
    logger.warning("still at work %.0f s after SIGTERM: ending without what is not committed", LIMIT_SECONDS)
    for last_words in [*_farewells]:
        _attempt(last_words)
    end()


def _sleep_unless_deferred(seconds: float) -> None:
    """Sleep that long outside of `deferred`."""
    never = threading.Event()
    while _deferred.is_set():
        never.wait(0.1)
    never.wait(seconds)


def _attempt(action: Callable[[], None]) -> None:
    try:
        action()
    except Exception as error:
        logger.warning("while ending: %s: %s", type(error).__name__, error)
