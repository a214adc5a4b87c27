"""How many arenas the threads of a process share."""

import os
import subprocess
import sys

COUNT = """
import ctypes, sys, tempfile, threading
from dtrain.runtime import memory

if sys.argv[1] == "limited":
    memory.limit_arenas()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.fdopen.restype = ctypes.c_void_p
barrier = threading.Barrier(24)

def allocate():
    barrier.wait()
    libc.malloc(ctypes.c_size_t(1000))
    barrier.wait()

threads = [threading.Thread(target=allocate) for _ in range(24)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
with tempfile.TemporaryFile() as file:
    stream = ctypes.c_void_p(libc.fdopen(file.fileno(), b"w"))
    libc.malloc_info(0, stream)
    libc.fflush(stream)
    file.seek(0)
    print(file.read().count(b"<heap nr="))
"""
PROCESSORS = len(os.sched_getaffinity(0))


def arenas(how, **environ):
    done = subprocess.run(
        [sys.executable, "-c", COUNT, how],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


def test_threads_share_as_many_as_run_at_a_time():
    assert arenas("unlimited") > max(2, PROCESSORS)
    assert arenas("limited") <= max(2, PROCESSORS)


def test_what_the_user_says_stays():
    assert arenas("limited", MALLOC_ARENA_MAX="3") == 3
