import ctypes
from pathlib import Path

import pytest

from toolformer_ops.language_model import free_memory


def resident_pages() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])


def test_what_was_freed_goes_back_although_something_behind_it_is_still_used() -> None:
    if not hasattr(ctypes.CDLL(None), "malloc_trim"):
        pytest.skip("this C library keeps what is free")
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    size, count = 4096, 10_000
    blocks = [libc.malloc(size) for _ in range(count)]
    for block in blocks:
        ctypes.memset(block, 1, size)
    for block in blocks[:-1]:
        libc.free(block)
    before = resident_pages()
    free_memory.give_back()
    given_back = before - resident_pages()
    libc.free(blocks[-1])
    assert given_back > count // 2
