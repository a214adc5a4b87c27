"""How much memory a server's process keeps of what its threads have freed."""

import contextlib
import ctypes
import os

_M_ARENA_MAX = -8  # glibc's malloc.h
# What glibc reads.
_VARIABLE = "MALLOC_ARENA_MAX"
_TUNABLE = "glibc.malloc.arena_max"


def limit_arenas() -> None:
    """Has all threads allocate from as few arenas as run at a time.

    By default glibc makes up to eight a processor. Tensors that one thread makes and
    another one frees then leave holes in all of them, which fill only slowly: a ps grew
    by 3% between its 1,000th and 20,000th step (`python -m benchmarks.memory`), of
    memory that nobody used. To be called before a server's threads are there.
    """
    if _VARIABLE in os.environ or _TUNABLE in os.environ.get("GLIBC_TUNABLES", ""):
        return
    with contextlib.suppress(AttributeError):  # no glibc
        count = max(2, len(os.sched_getaffinity(0)))
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, count)
