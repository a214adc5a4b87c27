"""Connections are told to the kernel once, whoever made them."""

import os
import socket

import pytest

from dtrain.runtime.connections import Keeper


@pytest.fixture
def ends():
    """Both ends of a connection within this process."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
        server.accept()[0] as accepted,
    ):
        yield client, accepted


def patience(end):
    """Returns the milliseconds, seconds and number of probes that a socket is given."""
    assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    options = "TCP_USER_TIMEOUT", "TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT"
    return [
        end.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in options
    ]


def test_both_ends_of_a_connection_are_held(ends):
    Keeper(30.0).look()
    assert [patience(end) for end in ends] == [[60000, 10, 10, 6]] * 2


def test_it_is_asked_for_at_most_once_a_second(ends):
    Keeper(0.5).look()
    assert patience(ends[0]) == [1000, 1, 1, 6]


def test_each_is_told_once_and_a_new_one_behind_an_old_number_too(ends):
    keeper = Keeper(30.0)
    keeper.look()
    for end in ends:
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 7)
    keeper.look()
    assert [patience(end)[0] for end in ends] == [7, 7]
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as new,
    ):
        os.dup2(new.fileno(), ends[0].fileno())
        keeper.look()
        assert patience(ends[0])[0] == 60000


def test_what_is_no_tcp_connection_is_left_alone():
    pair = socket.socketpair()
    loose = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    idle = socket.socket()
    with pair[0], pair[1], loose, idle:
        keeper = Keeper(30.0)
        keeper.look()
        assert idle.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0
        with socket.create_server(("127.0.0.1", 0)) as server:
            idle.connect(server.getsockname())  # later, it is one
            keeper.look()
            assert patience(idle)[0] == 60000
