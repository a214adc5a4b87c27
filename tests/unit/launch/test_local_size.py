"""The size of a local cluster."""

import pytest

from dtrain.config import RunConfig
from dtrain.launch import local


@pytest.mark.parametrize(
    ("options", "sizes", "words"),
    [
        (
            {"strategy": "ps"},
            {"chief": 1, "worker": 2, "ps": 1},
            "1 chief, 2 workers, 1 ps",
        ),
        (
            {"strategy": "ps", "num_workers": 1, "num_ps": 3},
            {"chief": 1, "worker": 1, "ps": 3},
            "1 chief, 1 worker, 3 ps",
        ),
        ({"strategy": "sync"}, {"worker": 2}, "2 workers"),
        ({"strategy": "sync", "num_workers": 1}, {"worker": 1}, "1 worker"),
    ],
)
def test_a_local_cluster_has_the_tasks_of_its_strategy(options, sizes, words):
    config = RunConfig(**options)
    assert local.sizes(config) == sizes
    assert local.describe(config) == words
