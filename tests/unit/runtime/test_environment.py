"""Environment variables that TensorFlow reads when it is imported."""

import pytest

from dtrain.cluster.spec import Cluster
from dtrain.runtime import environment

CLUSTER = Cluster({"worker": ["w:1", "10.0.0.1:2"], "ps": ["[fe80::1]:3"]})
HOSTS = ["10.0.0.1", "127.0.0.1", "fe80::1", "localhost", "w"]


def prepared(cluster=CLUSTER, **environ):
    environment.prepare(cluster, environ)
    return environ


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, HOSTS),
        ({"http_proxy": "http://proxy:3128"}, HOSTS),
        ({"no_grpc_proxy": "a,b"}, ["a", "b", *HOSTS]),
        ({"no_grpc_proxy": " a , ,w"}, ["a", "w", *HOSTS[:-1]]),
        # gRPC reads no_proxy only where there is no no_grpc_proxy.
        ({"no_proxy": "a,.corp"}, ["a", ".corp", *HOSTS]),
        ({"no_grpc_proxy": "a", "no_proxy": "b"}, ["a", *HOSTS]),
        ({"no_grpc_proxy": ",".join(HOSTS)}, HOSTS),
    ],
)
def test_cluster_traffic_goes_past_any_proxy(environ, expected):
    assert prepared(**environ)["no_grpc_proxy"].split(",") == expected


def test_the_users_own_proxy_stays():
    given = {"http_proxy": "http://proxy:3128", "https_proxy": "x", "no_proxy": "a"}
    after = prepared(**given)
    assert {name: after[name] for name in given} == given


def test_a_second_time_changes_nothing():
    once = prepared(no_proxy="a")
    assert prepared(**once) == once


def test_without_a_cluster_proxies_are_left_alone():
    assert "no_grpc_proxy" not in prepared(None, http_proxy="x")


@pytest.mark.parametrize("cluster", [None, CLUSTER], ids=["alone", "cluster"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TF_FORCE_GPU_ALLOW_GROWTH", "true"),
        ("KERAS_BACKEND", "tensorflow"),
        ("TF_CPP_MIN_LOG_LEVEL", "1"),
    ],
)
def test_a_variable_is_set_unless_the_user_has_set_it(name, value, cluster):
    assert prepared(cluster)[name] == value
    assert prepared(cluster, **{name: "mine"})[name] == "mine"
