"""Where TensorFlow 1's peer puts variables: on the ps that has fewest bytes."""

import types

from benchmarks.peers.tf1 import LeastLoaded

IMPORT = """
import sys
from benchmarks.peers import tf1
print("tensorflow" in sys.modules)
"""


def op(num_elements, size=4):
    """Returns what a variable is made by: that many elements of that many bytes."""
    shape = types.SimpleNamespace(num_elements=lambda: num_elements)
    output = types.SimpleNamespace(shape=shape, dtype=types.SimpleNamespace(size=size))
    return types.SimpleNamespace(outputs=[output])


def test_each_goes_to_the_ps_that_has_fewest_bytes():
    place = LeastLoaded(2)
    tasks = [place(op(count)) for count in (100, 10, 10, 10, 200, 10)]
    # Bytes then: 400|0, 400|40, 400|80, 400|120, 400|920, 440|920.
    assert tasks == [0, 1, 1, 1, 1, 0]


def test_it_counts_bytes_and_not_elements():
    place = LeastLoaded(2)
    assert place(op(10, size=8)) == 0  # 80 bytes
    assert place(op(15, size=4)) == 1  # 60
    assert place(op(5, size=4)) == 1  # 80
    assert place(op(1, size=8)) == 0  # even: the first; 88
    assert place(op(1, size=1)) == 1


def test_one_ps_has_everything():
    place = LeastLoaded(1)
    assert [place(op(8)) for _ in range(3)] == [0, 0, 0]


def test_the_command_itself_needs_no_tensorflow(run_python, pytestconfig):
    done = run_python(IMPORT, cwd=pytestconfig.rootpath)
    assert done.stdout == "False\n", done.stderr
