"""SIGTERM to a process: clean-up is done once and whole, the status is 143, and nothing can hold the process for long."""

import subprocess
import sys
import textwrap

import pytest

from toolformer_ops.config import REPOSITORY

BEGINNING = """
import os, signal, sys, threading, time
from pathlib import Path
from toolformer_ops import termination
from toolformer_ops.errors import TerminationRequest
termination.install()
def told_to_end():
    os.kill(os.getpid(), signal.SIGTERM)
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    """The program after `BEGINNING`, to its end."""
    return subprocess.run(
        [sys.executable, "-c", BEGINNING + textwrap.dedent(program)],
        cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


def test_clean_up_is_done_whole_though_a_second_request_comes_in_its_middle():
    ended = run("""
        try:
            told_to_end()
            print("not reached")
        finally:
            print("begun")
            told_to_end()
            print("cleaned up", termination.requested())
    """)
    assert (ended.returncode, ended.stdout.split("\n")[:2]) == (143, ["begun", "cleaned up True"])


def test_a_block_that_defers_the_request_ends_by_itself():
    ended = run("""
        signal.signal(signal.SIGUSR1, lambda *_: print("told something else"))
        os.kill(os.getpid(), signal.SIGUSR1)
        for name in ("first", "second"):
            with termination.deferred():
                if name == "first":
                    told_to_end()
                print(name, termination.requested())
    """)
    assert (ended.returncode, ended.stdout) == (143, "told something else\nfirst True\n")


@pytest.mark.parametrize("answer", ["leaves", "stays"])
def test_what_holds_the_main_thread_inside_a_library_is_interrupted_or_at_last_left(answer):
    """A mutex that is locked twice holds a thread in C, as a long forward pass or query does."""
    ended = run(f"""
        import ctypes
        termination.PATIENCE_SECONDS, termination.LIMIT_SECONDS = 0.05, {60 if answer == "leaves" else 0.1}
        library, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
        library.pthread_mutex_lock(mutex)
        def interrupt():
            print("interrupted", flush=True)
            if {answer == "leaves"}:
                library.pthread_mutex_unlock(mutex)
        termination.on_delay(interrupt)
        threading.Timer(0.2, told_to_end).start()
        with termination.farewell(lambda: print("last words", flush=True)):
            library.pthread_mutex_lock(mutex)
            time.sleep(0)
            print("not reached")
    """)
    said = "interrupted\n" if answer == "leaves" else "interrupted\nlast words\n"
    assert (ended.returncode, ended.stdout) == (143, said)


def test_the_command_line_ends_with_143_without_waiting_for_threads():
    ended = run("""
        from toolformer_ops import __main__ as command_line
        def app():
            threading.Thread(target=time.sleep, args=(600,)).start()
            try:
                told_to_end()
            finally:
                raise ValueError("what a cancelled query looks like")
        command_line.app = app
        command_line.main()
    """)
    assert ended.returncode == 143
    assert ended.stderr.rstrip().endswith("ended by SIGTERM: what is committed stays")


def test_java_in_the_process_leaves_the_signal_to_python():
    ended = run("""
        from toolformer_ops.tools.retrieval.java_runtime import start_java
        start_java()
        try:
            told_to_end()
        finally:
            print("cleaned up")
    """)
    assert (ended.returncode, ended.stdout) == (143, "cleaned up\n")
