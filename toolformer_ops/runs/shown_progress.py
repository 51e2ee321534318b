"""Show how far a run or a file is while a block works.

On a terminal a panel that changes in its place: a line a tool, what is done now, and the newest or the best
call that gains enough. In a notebook a line that changes in its place. Elsewhere a line when something has
changed, each after twice the time of the one before: the log of a long run stays short.
"""

import contextlib
import functools
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from toolformer_ops.runs.progress import Progress

SECONDS_TO_FIRST_LINE, MOST_SECONDS_BETWEEN_LINES = 30.0, 600.0
SECONDS_IN_A_NOTEBOOK = 1.0
"""Between two lines if the second replaces the first."""


def panel(progress: Progress, seconds: float) -> Group:
    """As a terminal shows the progress after so many seconds."""
    table = Table.grid(padding=(0, 1))
    for tool in progress.tools:
        stage = tool.at_work
        bar = ProgressBar(total=1.0, completed=1.0 if stage is None else stage.share_done, width=30)
        table.add_row(tool.tool, bar, "done" if stage is None else stage.words)
    lines = [Text(f"{_clock(seconds)} {progress.now}", style="dim")]
    if progress.newest is not None:
        lines.append(Text("newest, ", style="dim").append_text(progress.newest))
    if progress.best is not None:
        lines.append(Text("best so far, ", style="dim").append_text(progress.best))
    return Group(table, *lines)


@contextlib.contextmanager
def shown(look: Callable[[], Progress], console: Console) -> Iterator[None]:
    """Show what `look` returns while the block runs."""
    began = time.monotonic()
    if console.is_terminal:
        live = Live(
            get_renderable=lambda: panel(look(), time.monotonic() - began),
            console=console,
            refresh_per_second=4,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),
        )
        with live, _logs_above():
            yield
        return
    write = _line_writer(console)
    ended = threading.Event()

    def write_line(line: str) -> None:
        write(f"{_clock(time.monotonic() - began)} {line}")

    def write_lines() -> None:
        last = ""
        pause = SECONDS_IN_A_NOTEBOOK if console.is_jupyter else SECONDS_TO_FIRST_LINE
        while not ended.wait(pause):
            line = look().line
            if line != last:
                last = line
                write_line(line)
            if not console.is_jupyter:
                pause = min(time.monotonic() - began, MOST_SECONDS_BETWEEN_LINES)

    writer = threading.Thread(target=write_lines, daemon=True, name="progress")
    writer.start()
    try:
        yield
    finally:
        ended.set()
        writer.join()
    if console.is_jupyter:
        write_line(look().line)


def _line_writer(console: Console) -> Callable[[str], None]:
    """What shows a line; in a notebook it replaces the one before."""
    if not console.is_jupyter:
        return functools.partial(console.print, markup=False, highlight=False, soft_wrap=True)
    from IPython.display import display

    shown_line = display({"text/plain": "0:00"}, raw=True, display_id=True)
    return lambda line: shown_line.update({"text/plain": line}, raw=True)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


@contextlib.contextmanager
def _logs_above() -> Iterator[None]:
    """Within the block, lines of the log go above the panel, which has taken the place of stderr."""
    handlers = [
        handler
        for handler in logging.getLogger().handlers
        if isinstance(handler, logging.StreamHandler) and handler.stream is sys.__stderr__
    ]
    for handler in handlers:
        handler.setStream(sys.stderr)
    try:
        yield
    finally:
        for handler in handlers:
            handler.setStream(sys.__stderr__)
