"""A network of a cluster's own: what is reached from inside, and from outside."""

import os
import socket
import subprocess
import sys

import pytest

from dtrain.launch import private_network
from dtrain.launch.private_network import PrivateNetwork

INSIDE = """
import os, socket
ours = socket.create_server(("127.0.0.1", int(os.environ["PORT"])))
with socket.create_connection(ours.getsockname(), 5):
    where = os.environ["DTRAIN_PRIVATE_NETWORK"]
    print("reached", where, len(os.listdir("/proc/self/fd")))
for address in (("10.1.2.3", 80), ("::1", 9)):
    try:
        socket.create_connection(address, 5)
    except OSError as error:
        print(type(error).__name__, error.errno)
"""


@pytest.fixture
def network():
    try:
        network = PrivateNetwork()
    except OSError as error:
        if os.environ.get("CI"):
            pytest.fail(f"no private network can be made here: {error}")
        pytest.skip(f"needs network namespaces: {error}")
    yield network
    network.close()


def test_tasks_reach_each_other_and_nobody_else(network):
    with socket.create_server(("127.0.0.1", 0)) as outside:
        # The same port is free inside: it is another network's.
        port = str(outside.getsockname()[1])
        result = subprocess.run(
            network.inside([sys.executable, "-c", INSIDE]),
            env={**os.environ, "PORT": port},
            pass_fds=network.descriptors,
            capture_output=True,
            text=True,
            timeout=60,
        )
    first, unreachable, refused = result.stdout.splitlines()
    assert first.startswith("reached inside")
    assert int(first.split()[-1]) < 8  # the network's descriptors are closed again
    assert unreachable.startswith("OSError")  # network is unreachable
    assert refused.startswith("ConnectionRefusedError")
    assert result.returncode == 0


@pytest.mark.parametrize(
    "text",
    [
        "URLError: <urlopen error [Errno -3] Temporary failure in name resolution>",
        "OSError: [Errno 101] Network is unreachable",
        "Error executing an HTTP request: Couldn't resolve host name",
    ],
)
def test_a_failed_look_up_inside_names_the_flag(text):
    inside = {"DTRAIN_PRIVATE_NETWORK": "inside"}
    assert "--private_network=off" in private_network.hint(text, inside)
    assert private_network.hint(text, {}) == ""
    assert private_network.hint("ValueError: no", inside) == ""
