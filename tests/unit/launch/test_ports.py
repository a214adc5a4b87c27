"""Free ports, and the name of who holds one."""

import contextlib
import os
import socket

import psutil
import pytest

from dtrain.launch import ports


@contextlib.contextmanager
def bound(listening, address="127.0.0.1"):
    with socket.socket() as sock:
        sock.bind((address, 0))
        if listening:
            sock.listen()
        yield sock.getsockname()[1]


def test_free_ports_differ_and_can_be_bound():
    chosen = ports.free(20)
    assert len(set(chosen)) == 20
    for port in chosen[:3]:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", port))


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_the_holder_of_a_port_is_named_with_its_pid(address):
    with bound(listening=True, address=address) as port:
        name = psutil.Process().name()
        assert ports.holder(port) == f"process {os.getpid()} ({name})"
        assert ports.listens(os.getpid(), port)


def test_a_port_that_is_bound_without_listening_is_not_free():
    with bound(listening=False) as port:
        assert ports.holder(port) == "another program"
        assert not ports.listens(os.getpid(), port)


def test_nobody_holds_a_port_that_was_given_back():
    with bound(listening=True) as port:
        pass
    assert ports.holder(port) is None
    assert not ports.listens(os.getpid(), port)


def test_a_port_whose_last_connection_is_closing_is_free():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            connection, _ = server.accept()
            connection.close()  # the side that closes first keeps the port for a while
            assert client.recv(1) == b""
    with socket.socket() as strict, pytest.raises(OSError):
        strict.bind(("127.0.0.1", port))
    assert ports.holder(port) is None


def test_another_processs_port_is_not_this_ones():
    with bound(listening=True) as port:
        assert not ports.listens(os.getppid(), port)


def test_a_process_that_is_gone_listens_nowhere():
    assert not ports.listens(2**22 + 1, 80)
